package tcp

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"

	"msb/guest/bulk/bulktest"
	"msb/guest/port"
	"msb/protocol/agent"
	"msb/protocol/frame"
)

// step is one line of a recorded exchange with the published agent.
type step struct {
	Section string
	From    string
	ID      uint32
	V       uint8
	Type    string
	Payload string
	Kind    uint8
	Flow    uint8
	Offset  uint64
	Data    string
}

// The TCP streams recorded with the published agent 0.7.2 go the same way here.
func TestReplay(t *testing.T) {
	for _, name := range []string{"agent-0.7.2-basic.json", "agent-0.7.2-bulk.json"} {
		t.Run(name, func(t *testing.T) {
			raw, err := os.ReadFile("testdata/" + name)
			if err != nil {
				t.Fatal(err)
			}
			var steps []step
			if err := json.Unmarshal(raw, &steps); err != nil {
				t.Fatal(err)
			}
			c := newClient(t)
			server := listen(t, echo)
			section := ""
			for _, st := range steps {
				switch {
				case st.Section != "":
					section = st.Section
				case st.From == "host":
					replayHost(c, st, server)
				default:
					replayGuest(t, c, section, st)
				}
			}
			if name == "agent-0.7.2-bulk.json" {
				// The recording ends before the answer to an offer without credit.
				c.message(34, agent.TCPConnected)
				c.failed(34, "TCP bulk offer must grant guest-to-host credit")
			}
			c.quiet()
		})
	}
}

func replayHost(c *client, st step, server uint16) {
	data, _ := hex.DecodeString(st.Data)
	p, _ := hex.DecodeString(st.Payload)
	switch st.Type {
	case "":
		c.s.Bulk(frame.Bulk{ID: st.ID, Kind: st.Kind, Flow: st.Flow, Offset: st.Offset, Payload: data}, noRelease)
	case "core.tcp.connect":
		req := decode[agent.TCPConnectPayload](c.t, p)
		if req.Port != 1 {
			req.Port = server
		}
		c.send(st.ID, st.V, req)
	case "core.tcp.data":
		c.s.Data(port.Input{ID: st.ID, Data: decode[agent.Data](c.t, p).Data, Release: noRelease})
	case "core.tcp.eof":
		c.s.EOF(st.ID, noRelease)
	case "core.bulk.finish":
		c.s.Finish(st.ID, decode[agent.BulkFinishPayload](c.t, p))
	default:
		c.t.Fatalf("host sent %s", st.Type)
	}
}

func replayGuest(t *testing.T, c *client, section string, st step) {
	got := c.out.Next(t, st.ID)
	if st.Type == "" {
		b := got.Bulk
		if got.Type != 0 || b.Kind != st.Kind || b.Flow != st.Flow || b.Offset != st.Offset || hex.EncodeToString(b.Payload) != st.Data {
			t.Fatalf("%s: got %v, want %+v", section, got, st)
		}
		return
	}
	p, _ := hex.DecodeString(st.Payload)
	if got.Type.String() != st.Type || !bytes.Equal(got.Payload, p) {
		t.Fatalf("%s: got %v, want %+v", section, got, st)
	}
}

func decode[P any](t testing.TB, p []byte) P {
	t.Helper()
	return bulktest.Decode[P](t, bulktest.Frame{Payload: p}, 0)
}

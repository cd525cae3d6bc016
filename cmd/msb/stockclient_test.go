package main

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

// recorded is one frame of what a published client and the published agent said to each other.
type recorded struct {
	Dir        string
	Slot       int
	ID         uint32
	Type       string
	Hex        string
	HexHead    string `json:"hex_head"`
	PayloadLen int    `json:"payload_len"`
	Offset     uint64
	fromClient bool
	begins     bool // a connection, in its slot
	raw        []byte
}

// TestStockClient plays the client's side of recorded conversations at the socket of a sandbox of ours, byte for byte
// but for the ids, which a relay gives out, and compares the answers by meaning with those of the published agent.
func TestStockClient(t *testing.T) {
	home := sandboxHome(t)
	mustMSB(t, home, "exec", "x", "-u", "root", "--", "sh", "-c", "mkdir /data; echo 'alice:x:1000:1000::/home/dev:/bin/sh' >>/etc/passwd")
	socket := agentSocket(t, home, "x")
	open := map[int]*stockConn{}
	for i, r := range loadRecorded(t, "client.json") {
		switch {
		case r.begins:
			if old := open[r.Slot]; old != nil {
				old.end()
			}
			open[r.Slot] = dialStock(t, socket, r)
		case r.fromClient:
			open[r.Slot].send(r)
		default:
			open[r.Slot].expect(fmt.Sprintf("frame %d, %s", i, r.Type), r)
		}
	}
	for _, c := range open {
		c.end()
	}
}

func loadRecorded(t *testing.T, name string) []recorded {
	t.Helper()
	b, err := os.ReadFile("../../protocol/agent/testdata/exchanges/" + name)
	if err != nil {
		t.Fatal(err)
	}
	var doc struct{ Frames []recorded }
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	var all []recorded
	for _, r := range doc.Frames {
		if r.raw, err = hex.DecodeString(r.Hex + r.HexHead); err != nil {
			t.Fatal(err)
		}
		for n := frame.BulkOverhead + r.PayloadLen; r.PayloadLen > 0 && len(r.raw) < n; { // only its head was kept
			r.raw = append(r.raw, byte(len(r.raw)*7))
		}
		switch r.Dir {
		case "client->agent":
			r.fromClient = true
		case "relay->client prologue":
			r.begins = true
		case "agent->client":
		default:
			continue // a remark
		}
		all = append(all, r)
	}
	return all
}

// stockConn is a connection of the recorded client, to our relay.
type stockConn struct {
	t      *testing.T
	conn   net.Conn
	frames *frame.Reader
	shift  uint32            // from recorded ids to ours
	output map[string][]byte // by stream: what has come of the output that was asked for
}

// dialStock connects and checks what the relay says first.
func dialStock(t *testing.T, socket string, hello recorded) *stockConn {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(2 * patience))
	c := &stockConn{t: t, conn: conn, frames: frame.NewReader(conn), output: map[string][]byte{}}
	var ids [8]byte
	if err := c.frames.ReadFull(ids[:]); err != nil {
		t.Fatal(err)
	}
	start, end := binary.BigEndian.Uint32(ids[:]), binary.BigEndian.Uint32(ids[4:])
	theirs := binary.BigEndian.Uint32(hello.raw)
	if length := binary.BigEndian.Uint32(hello.raw[4:]) - theirs; start == 0 || end-start != length {
		t.Fatalf("ids %d to %d; the recorded relay gave %d", start, end, length)
	}
	c.shift = start - theirs
	ready, err := c.frames.Next()
	if err != nil {
		t.Fatal(err)
	}
	e, err := agent.ParseEnvelope(ready.Body)
	var p agent.ReadyPayload
	if err == nil {
		err = agent.DecodePayload(e.P, &p)
	}
	if err != nil || e.T != "core.ready" || e.V != agent.Generation || p.AgentVersion == "" || p.BarrierVersion == nil {
		t.Fatalf("ready %+v %+v: %v", e, p, err)
	}
	return c
}

// send sends what the client sent, under our id. The offer of shared memory is refused outside of all frames.
func (c *stockConn) send(r recorded) {
	c.t.Helper()
	raw := bytes.Clone(r.raw)
	upgrade := false
	if f, err := frame.Parse(raw); err != nil {
		c.t.Fatal(err)
	} else if upgrade = frame.IsShmRequest(f); !upgrade && f.ID != 0 {
		binary.BigEndian.PutUint32(raw[4:], f.ID+c.shift)
	}
	if _, err := c.conn.Write(raw); err != nil {
		c.t.Fatal(err)
	}
	if upgrade {
		var answer [8]byte
		if err := c.frames.ReadFull(answer[:]); err != nil || hex.EncodeToString(answer[:]) != "4d53424101010000" {
			c.t.Fatalf("the upgrade was answered with %x, %v", answer, err)
		}
	}
}

// expect reads until our agent has said what the recorded one said. Output may come in other pieces.
func (c *stockConn) expect(what string, r recorded) {
	c.t.Helper()
	want := c.said(r.raw, r.ID)
	for {
		if stream, data := want.stream(); stream != "" {
			have := c.output[stream]
			if len(have) >= len(data) {
				if !bytes.Equal(have[:len(data)], data) {
					c.t.Fatalf("%s: %q, want %q", what, have, data)
				}
				c.output[stream] = have[len(data):]
				return
			}
		}
		f, err := c.frames.Next()
		if err != nil {
			c.t.Fatalf("%s: %v", what, err)
		}
		raw, err := frame.Append(nil, f.ID, f.Flags, f.Body)
		if err != nil {
			c.t.Fatal(err)
		}
		got := c.said(raw, f.ID-c.shift)
		if stream, data := got.stream(); stream != "" {
			c.output[stream] = append(c.output[stream], data...)
			continue
		}
		if got.meaning != want.meaning {
			c.t.Fatalf("%s:\n got %s\nwant %s", what, got.meaning, want.meaning)
		}
		return
	}
}

// end closes the connection. Everything that was sent has been asked for.
func (c *stockConn) end() {
	c.t.Helper()
	for stream, data := range c.output {
		if len(data) > 0 {
			c.t.Errorf("%s has %d bytes more than the recorded agent sent", stream, len(data))
		}
	}
	c.conn.Close()
}

// statement is a frame of an agent, and what it means.
type statement struct {
	meaning string
	name    string
	id      uint32
	data    []byte
}

// stream is the stream that the frame is data of, with a name of its own.
func (s statement) stream() (name string, data []byte) {
	if s.data == nil {
		return "", nil
	}
	return fmt.Sprintf("%s of %d", s.name, s.id), s.data
}

// said takes a frame apart. Times, process ids and counters differ from run to run.
func (c *stockConn) said(raw []byte, id uint32) statement {
	c.t.Helper()
	f, err := frame.Parse(raw)
	if err != nil {
		c.t.Fatal(err)
	}
	if f.Flags == frame.FlagBulk {
		b, err := frame.ParseBulk(f)
		if err != nil {
			c.t.Fatal(err)
		}
		return statement{name: "raw records", id: id, data: b.Payload}
	}
	e, err := agent.ParseEnvelope(f.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	var p any
	if err := cbor.Unmarshal(e.P, &p); err != nil {
		c.t.Fatal(err)
	}
	s := statement{name: e.T, id: id, meaning: fmt.Sprintf("%d %s flags %d v %d %v", id, e.T, f.Flags, e.V, settled(p))}
	if t, _ := e.Type(); t == agent.ExecStdout || t == agent.ExecStderr {
		var d agent.Data
		if err := agent.DecodePayload(e.P, &d); err != nil {
			c.t.Fatal(err)
		}
		s.data = d.Data
	}
	return s
}

func settled(v any) any {
	m, ok := v.(map[any]any)
	if !ok {
		return v
	}
	for k, x := range m {
		switch k {
		case "pid", "atime", "mtime", "modified", "activity_seq":
			m[k] = "…"
		default:
			m[k] = settled(x)
		}
	}
	return m
}

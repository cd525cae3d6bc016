package agent

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

// What a host sends may be as long as a frame, and it may not read before it has sent everything. The answers are
// short, and the agent goes on reading.
func TestLongTextsAreAnsweredShortly(t *testing.T) {
	const length = frame.MaxLength - 300
	long := strings.Repeat("x", length)
	encode := func(id uint32, typ agent.Type, p any) []byte {
		b, err := agent.AppendFrame(nil, id, typ, agent.Generation, p)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	unknown, err := agent.AppendEncoded(nil, 1, 0, agent.Generation, long, []byte{0xa0})
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		wire   []byte
		answer agent.Type // 0: none
	}{
		"name of a type":       {unknown, agent.Error},
		"mode of a thaw":       {encode(frame.IDLifecycle, agent.WorkloadThaw, agent.ThawPayload{AttemptID: "a", Mode: long}), agent.Error},
		"attempt of a freeze":  {encode(frame.IDLifecycle, agent.WorkloadThaw, agent.ThawPayload{AttemptID: long, Mode: agent.ThawContinue}), agent.Error},
		"host of a connection": {encode(1, agent.TCPConnect, agent.TCPConnectPayload{Host: long, Port: 1}), agent.TCPFailed},
		"command":              {encode(1, agent.ExecRequest, agent.ExecRequestPayload{Cmd: long}), agent.ExecFailed},
		"message of a cancel":  {encode(1, agent.BulkCancel, agent.BulkCancelPayload{Kind: 1, Reason: 1, Message: long}), 0},
		"directory":            {encode(1, agent.FSRequest, agent.FSRequestPayload{Op: agent.OpList{Path: long}}), agent.FSResponse},
	} {
		t.Run(name, func(t *testing.T) {
			h := serve(t, Machine{})
			h.boot()
			const times = 4
			_ = h.conn.SetWriteDeadline(time.Now().Add(time.Minute))
			if _, err := h.conn.Write(bytes.Repeat(tc.wire, times)); err != nil {
				t.Fatalf("the agent does not read on: %v", err)
			}
			h.send(9, agent.Ping, agent.Empty{})
			answers := 0
			for pong := false; !pong || tc.answer != 0 && answers == 0; {
				id, typ, p := h.next()
				switch {
				case id == 9 && typ == agent.Pong:
					pong = true
				case typ == tc.answer && len(p) < 4096:
					answers++
				default:
					t.Fatalf("id %d: %s of %d bytes", id, typ, len(p))
				}
			}
		})
	}
}

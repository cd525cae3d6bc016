package relay

import (
	"testing"

	"msb/protocol/agent"
)

// Data that waits with its request, behind many other commands, does not overtake it.
func TestDataFollowsItsRequest(t *testing.T) {
	r := newRig(t, kind{generation: 9, barrier: true})
	p := r.dial()
	var wire []byte
	const commands = 600 // more than the guest's credit for commands
	for id := uint32(1); id <= commands; id++ {
		wire = append(wire, encode(t, id, agent.ExecRequest, 9, agent.ExecRequestPayload{Cmd: "cat"})...)
	}
	wire = append(wire, encode(t, commands, agent.ExecStdin, 9, agent.Data{Data: []byte("input")})...)
	p.send(wire)
	open := map[uint32]bool{}
	for seen, limit := 0, agent.InitialGrants; seen <= commands; seen++ {
		f := r.guest.next()
		e, err := agent.ParseEnvelope(f.Body)
		if err != nil {
			t.Fatal(err)
		}
		switch e.T {
		case agent.ExecRequest.String():
			open[f.ID] = true
		default:
			if !open[f.ID] {
				t.Fatalf("frame %d: %s of %d came before its request", seen, e.T, f.ID)
			}
		}
		limit.ControlFrames, limit.BulkFrames = limit.ControlFrames+1, limit.BulkFrames+1
		limit.ControlBytes, limit.BulkBytes = limit.ControlBytes+1000, limit.BulkBytes+1000
		r.guest.send(encode(t, 0xffffffff, agent.TransportCredit, 9, limit))
	}
}

package relay

import (
	"io"
	"sync"
	"testing"
	"time"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

// FuzzSequence lets two clients and the guest do things in any order, each a well-formed frame, that fit together or
// not: operations that open, end, are used again, finish too early; acceptances, credit, reports and leases of the guest
// for what was never asked. A third client is served all the time.
func FuzzSequence(f *testing.F) {
	f.Add([]byte{0, 0, 9, 0, 5, 0, 6, 0, 10, 0, 11, 0})
	f.Add([]byte{1, 4, 9, 4, 12, 4, 10, 4, 11, 4, 4, 4, 8, 4})
	f.Add([]byte{2, 1, 3, 1, 14, 1, 13, 1, 8, 1, 15, 1, 2, 1, 16, 3})
	f.Fuzz(func(t *testing.T, ops []byte) {
		if len(ops) > 120 {
			return
		}
		dual, exact := len(ops)%2 == 1, len(ops)%3 == 1
		r := newRig(t, kind{generation: 9, leases: true, barrier: true, dual: dual, exact: exact, opts: Options{Stall: time.Second}})
		var guest sync.Mutex // one writer at a time: obliging writes too
		say := func(wire []byte) {
			guest.Lock()
			defer guest.Unlock()
			r.guest.control.SetWriteDeadline(time.Now().Add(patience))
			r.guest.control.Write(wire)
		}
		r.guest.answers = say
		go r.guest.obliging()
		if dual {
			go io.Copy(io.Discard, r.guest.bulk)
		}
		villains := []*peer{r.dial(), r.dial()}
		victim := r.dial()
		for _, v := range villains {
			go io.Copy(io.Discard, v.conn)
		}
		victim.pinged(victim.start)
		limit := agent.InitialGrants
		for i := 0; i+1 < len(ops); i += 2 {
			x := ops[i+1]
			v := villains[x%2]
			id := v.start + uint32(x>>1)%4
			do := func(wire []byte) { v.conn.Write(wire) }
			msg := func(typ agent.Type, p any) []byte { return encode(t, id, typ, 9, p) }
			rec := func(flow uint8) []byte {
				return encodeBulk(t, id, 1+x>>7, flow, uint64(x%8), make([]byte, 1+int(x)))
			}
			switch ops[i] % 18 {
			case 0:
				do(writeRequest(t, id))
			case 1:
				do(readRequest(t, id))
			case 2:
				do(msg(agent.ExecRequest, agent.ExecRequestPayload{Cmd: "x"}))
			case 3:
				do(stdinFrame(t, id, int(x)<<8))
			case 4:
				do(tcpRequest(t, id))
			case 5:
				do(rec(frame.FlowHostToGuest))
			case 6:
				do(msg(agent.BulkFinish, agent.BulkFinishPayload{Kind: 1, Flow: 1 + x>>7, FinalOffset: uint64(x)}))
			case 7:
				do(msg(agent.TCPClose, agent.Empty{}))
			case 8:
				v.conn.Close()
			case 9:
				say(accepted(t, id))
			case 10:
				say(finish(t, id, uint64(x%16)))
			case 11:
				say(ended(t, id))
			case 12:
				if dual {
					r.guest.bulk.SetWriteDeadline(time.Now().Add(patience))
					r.guest.bulk.Write(append(make([]byte, frame.IncarnationSize), rec(frame.FlowGuestToHost)...))
				} else {
					say(rec(frame.FlowGuestToHost))
				}
			case 13:
				limit.BulkBytes += uint64(x) << 10
				limit.BulkFrames += uint64(x % 8)
				say(encode(t, frame.IDLifecycle, agent.TransportCredit, 9, limit))
			case 14:
				say(encode(t, frame.IDLifecycle, agent.InputConsumed, 9, agent.InputConsumedPayload{Operations: []agent.ConsumedInput{{ID: id, Bytes: uint64(x) << 50, Frames: uint64(x)}}}))
			case 15:
				say(frame.AppendLease(nil, frame.Lease{Event: x % 3, Start: v.start, End: v.end, Incarnation: frame.Incarnation{x}}))
			case 16:
				say(encode(t, frame.IDLifecycle, agent.WorkloadFrozen, 9, agent.FrozenPayload{AttemptID: "a"}))
			case 17:
				say(msg(agent.ExecExited, agent.ExecExitedPayload{Code: int32(x)}))
			}
		}
		victim.pinged(victim.start + 1)
	})
}

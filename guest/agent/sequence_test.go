package agent

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"msb/guest/exec"
	"msb/protocol/agent"
	"msb/protocol/frame"
)

// FuzzSequence sends sequences of well-formed and nearly well-formed messages: leases and ends of clients, freezes and
// thaws at right and wrong positions, streams that are there and that are not. The agent answers a ping all the time,
// and is there at the end.
func FuzzSequence(f *testing.F) {
	dir := filepath.Join(f.TempDir(), exec.WorkloadName)
	if err := os.Mkdir(dir, 0o755); err != nil {
		f.Fatal(err)
	}
	for name, text := range map[string]string{"cgroup.freeze": "0", "cgroup.events": "frozen 0\nfrozen 1\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			f.Fatal(err)
		}
	}
	f.Add([]byte{0, 0, 3, 0, 4, 0, 5, 0, 6, 0, 3, 1, 4, 3, 1, 0, 0, 1})
	f.Add([]byte{0, 4, 7, 4, 8, 4, 9, 4, 10, 4, 11, 4, 12, 4, 13, 4, 1, 4, 7, 4})
	f.Add([]byte{14, 0, 7, 3, 3, 0, 4, 1, 2, 0, 7, 7, 14, 1, 3, 2, 4, 2})
	f.Fuzz(func(t *testing.T, ops []byte) {
		if len(ops) > 120 {
			return
		}
		h := &counting{host: serve(t, Machine{Workload: func() (*exec.Workload, error) { return exec.OpenWorkload(filepath.Dir(dir)) }})}
		h.boot()
		// The answers are read all the time; pongs are counted.
		pongs := make(chan uint32, len(ops)+1)
		var reader sync.WaitGroup
		reader.Go(func() {
			for {
				_ = h.conn.SetReadDeadline(time.Now().Add(time.Minute))
				fr, err := h.r.Next()
				if err != nil {
					return
				}
				if e, err := agent.ParseEnvelope(fr.Body); err == nil && e.T == agent.Pong.String() {
					pongs <- fr.ID
				}
			}
		})
		defer reader.Wait()
		defer h.conn.Close()
		attempts := []string{"a", "b", "", "c d"}
		for i := 0; i+1 < len(ops); i += 2 {
			x := ops[i+1]
			slot := int(x % 3)
			start, end := frame.Range(slot)
			id := start + uint32(x>>2)%4
			inc := frame.Incarnation{1 + x>>4}
			switch ops[i] % 15 {
			case 0:
				h.raw(frame.AppendLease(nil, frame.Lease{Event: frame.LeaseConnected, Start: start, End: end, Incarnation: inc}), false)
			case 1:
				h.send(0, agent.ClientDisconnected, agent.ClientDisconnectedPayload{IDStart: start, IDEndExclusive: end, Incarnation: agent.Octets(inc[:])})
			case 2:
				h.send(0, agent.ClientDisconnected, agent.ClientDisconnectedPayload{IDStart: start, IDEndExclusive: end + uint32(x)<<20})
			case 3:
				at := h.sent
				if x >= 128 {
					at.BulkFrames++
				}
				h.freeze(attempts[x%4], at)
			case 4:
				mode := agent.ThawContinue
				if x >= 128 {
					mode = agent.ThawRestore
				}
				h.send(frame.IDLifecycle, agent.WorkloadThaw, agent.ThawPayload{AttemptID: attempts[x%4], Mode: mode})
			case 5:
				h.send(id, agent.ExecStdin, agent.Data{Data: make([]byte, x)})
			case 6:
				h.send(id, agent.FSData, agent.Data{Data: make([]byte, x)})
			case 7:
				rec, err := frame.AppendBulk(nil, frame.Bulk{ID: id, Kind: 1 + x%2, Flow: frame.FlowHostToGuest, Offset: uint64(x), Payload: make([]byte, int(x)+1)})
				if err != nil {
					t.Fatal(err)
				}
				h.raw(rec, true)
			case 8:
				h.send(id, agent.BulkCredit, agent.BulkCreditPayload{Kind: x % 4, Flow: x % 3, ConsumedOffset: uint64(x), CreditLimit: uint64(x) << 40})
			case 9:
				h.send(id, agent.BulkFinish, agent.BulkFinishPayload{Kind: x % 4, Flow: x % 3, FinalOffset: uint64(x)})
			case 10:
				h.send(id, agent.BulkCancel, agent.BulkCancelPayload{Kind: x % 4, Reason: x, Message: "no"})
			case 11:
				h.send(id, agent.FSRequest, agent.FSRequestPayload{Op: agent.OpRead{Handle: uint64(x)}, Bulk: &agent.BulkOffer{Format: 1, MaxRecordPayload: uint32(x) << 12, GuestToHostCreditLimit: uint64(x)}})
			case 12:
				h.send(id, agent.TCPEOF, agent.Empty{})
			case 13:
				h.send(id, agent.ExecCredit, agent.ExecCreditPayload{Stdout: uint64(x)})
			case 14:
				h.send(frame.IDLifecycle, agent.InputWatch, agent.InputWatchPayload{})
			}
		}
		// Whatever is frozen or gone, the agent answers who has a lease.
		for _, attempt := range attempts[:2] {
			h.send(frame.IDLifecycle, agent.WorkloadThaw, agent.ThawPayload{AttemptID: attempt, Mode: agent.ThawContinue})
		}
		start, end := frame.Range(9)
		h.raw(frame.AppendLease(nil, frame.Lease{Event: frame.LeaseConnected, Start: start, End: end, Incarnation: frame.Incarnation{1}}), false)
		h.send(start, agent.Ping, agent.Empty{})
		select {
		case <-pongs:
		case <-time.After(time.Minute):
			t.Fatal("the agent does not answer any more")
		}
	})
}

// raw sends bytes that are a frame already.
func (c *counting) raw(b []byte, data bool) {
	c.t.Helper()
	if data {
		c.sent.BulkBytes += uint64(len(b))
		c.sent.BulkFrames++
	} else {
		c.sent.ControlBytes += uint64(len(b))
		c.sent.ControlFrames++
	}
	if _, err := c.conn.Write(b); err != nil {
		c.t.Fatal(err)
	}
}

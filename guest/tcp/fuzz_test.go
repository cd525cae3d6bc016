package tcp

import (
	"testing"

	"msb/guest/bulk/bulktest"
	"msb/guest/port"
	"msb/protocol/agent"
	"msb/protocol/frame"
)

// FuzzStreams runs sequences of frames, good and bad, over a few ids of two clients. Nothing may panic or hang; every
// frame gives its transport credit back; and after the clients are gone nothing is left.
func FuzzStreams(f *testing.F) {
	f.Add([]byte{0, 0, 4, 0, 4, 0, 6, 0, 1, 1, 3, 1, 8, 1})
	f.Add([]byte{1, 2, 3, 2, 8, 2, 3, 2, 5, 2})
	f.Add([]byte{0, 4, 9, 4, 0, 4, 10, 4})
	server := listen(f, echo)
	f.Fuzz(func(t *testing.T, ops []byte) {
		if len(ops) > 100 {
			return
		}
		out := bulktest.New()
		var opts []Option
		if len(ops)%2 == 1 {
			opts = append(opts, SplitPorts())
		}
		s := New(out, opts...)
		taken, given := 0, make(chan struct{}, 2*len(ops)+4)
		take := func() func() {
			taken++
			return func() { given <- struct{}{} }
		}
		sent := map[uint32]uint64{}
		for i := 0; i+1 < len(ops); i += 2 {
			x := ops[i+1]
			c := &client{t: t, s: s, out: out, slot: uint32(x % 2)}
			id := c.slot*frame.RangeStep + 10 + uint32(x>>1)%4
			n := uint64(x) * 40
			connect := func(p uint16, offer *agent.BulkOffer) {
				b, err := agent.EncodePayload(agent.TCPConnectPayload{Host: "127.0.0.1", Port: p, Bulk: offer})
				if err != nil {
					t.Fatal(err)
				}
				sent[id] = 0
				s.Connect(c.slot, id, 7+x%3, b, take())
			}
			record := func(flow uint8, offset uint64) {
				s.Bulk(frame.Bulk{ID: id, Kind: frame.BulkTCP, Flow: flow, Offset: offset, Payload: make([]byte, n+1)}, take())
			}
			switch ops[i] % 12 {
			case 0:
				connect(server, offer())
			case 1:
				connect(server, nil)
			case 2:
				connect(1, nil)
			case 3:
				s.Data(port.Input{ID: id, Data: make([]byte, n), Release: take()})
			case 4:
				record(frame.FlowHostToGuest, sent[id])
				sent[id] += n + 1
			case 5:
				record(x%4, n)
			case 6:
				c.finish(id, sent[id])
			case 7:
				c.finish(id, n)
			case 8:
				s.EOF(id, take())
			case 9:
				c.credit(id, n, n*3)
			case 10:
				s.Cancel(id, agent.BulkCancelPayload{Kind: x, Reason: x, Message: string(ops[i:])})
			case 11:
				if x%16 == 0 {
					s.CloseOwner(c.slot)
				} else {
					s.Abort(id)
				}
			}
		}
		<-s.CloseOwner(0)
		<-s.CloseOwner(1)
		s.Close()
		if s.Len() != 0 || len(s.io) != 0 {
			t.Fatalf("%d streams, %d permits are left", s.Len(), len(s.io))
		}
		if len(given) != taken {
			t.Fatalf("%d frames, %d releases", taken, len(given))
		}
	})
}

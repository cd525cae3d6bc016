package files

import (
	"os"
	"path/filepath"
	"testing"

	"msb/guest/bulk/bulktest"
	"msb/guest/port"
	"msb/protocol/agent"
	"msb/protocol/frame"
)

// FuzzRequest feeds payloads to the service. Whatever they are, each gets exactly one terminal answer or a stream.
func FuzzRequest(f *testing.F) {
	for _, op := range []agent.FSOp{
		agent.OpStat{Path: "f"}, agent.OpList{Path: "."}, agent.OpRead{Handle: 1, Len: ptr(uint64(3))}, agent.OpWrite{Handle: 1},
		agent.OpReadDir{Handle: 2, Limit: ptr(uint32(1 << 31))}, agent.OpRealPath{Path: "../.."}, agent.OpFStat{Handle: 2},
		agent.OpSetStat{Path: "f", Attrs: agent.Attrs{Mode: ptr(uint32(1 << 31))}}, agent.OpCloseHandle{Handle: 1},
	} {
		p, err := agent.EncodePayload(agent.FSRequestPayload{Op: op})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(p, uint8(9))
		p, _ = agent.EncodePayload(agent.FSRequestPayload{Op: op, Bulk: readOffer()})
		f.Add(p, uint8(8))
	}
	f.Add([]byte{0xa1, 0x62, 'o', 'p', 0xa1}, uint8(3))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, p []byte, v uint8) {
		var req agent.FSRequestPayload
		if agent.DecodePayload(p, &req) == nil && !harmless(req.Op) {
			return
		}
		t.Chdir(dir)
		os.WriteFile("f", []byte("hello"), 0o644)
		c := newClient(t)
		c.openRW("f")
		c.must(agent.OpOpenDir{Path: "."})
		released := make(chan struct{}, 2)
		c.s.Request(0, 100, v, p, func() { released <- struct{}{} })
		<-released
		if c.s.Has(100) {
			c.s.Cancel(100, agent.BulkCancelPayload{Message: "enough"})
		}
		for {
			if f := c.out.Next(t, 100); f.Type == agent.FSResponse || f.Type == agent.Error {
				break
			}
		}
		if len(released) != 0 {
			t.Fatal("released twice")
		}
		for c.s.Has(100) {
		}
		c.quiet()
	})
}

// harmless tells whether the fuzzer may run op on the machine it runs on: nothing that changes a file outside.
func harmless(op agent.FSOp) bool {
	switch op := op.(type) {
	case agent.OpStat, agent.OpReadLink, agent.OpRealPath, agent.OpRead, agent.OpWrite, agent.OpReadDir, agent.OpFStat,
		agent.OpFSetStat, agent.OpCloseHandle:
		return true
	case agent.OpList:
		return op.Path == "."
	case agent.OpOpenFile:
		return op.Path == filepath.Base(op.Path) && op.Path != ".."
	}
	return false
}

// FuzzStreams runs sequences of stream frames, good and bad, over a few ids of two clients. Nothing may panic or hang;
// every frame gives its transport credit back; and after the clients are gone nothing is left.
func FuzzStreams(f *testing.F) {
	f.Add([]byte{0, 1, 3, 0, 4, 0, 5, 0, 1, 1, 6, 1, 7, 1})
	f.Add([]byte{2, 1, 3, 1, 3, 1, 5, 1, 5, 1, 3, 1})
	f.Add([]byte{0, 0, 0, 0, 6, 0, 8, 0, 9, 0, 9, 1})
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, ops []byte) {
		if len(ops) > 200 {
			return
		}
		out := bulktest.New()
		var opts []Option
		if len(ops)%2 == 1 {
			opts = append(opts, SplitPorts())
		}
		s := New(out, opts...)
		clients := []*client{{t: t, s: s, out: out, dir: dir}, {t: t, s: s, out: out, dir: dir, slot: 1}}
		for i, c := range clients {
			if h := c.openRW(c.path("f")); h != uint64(i+1) {
				t.Fatal("handle", h)
			}
		}
		taken, given := 0, make(chan struct{}, 2*len(ops)+4)
		take := func() func() {
			taken++
			return func() { given <- struct{}{} }
		}
		sent := map[uint32]uint64{}
		for i := 0; i+1 < len(ops); i += 2 {
			x := ops[i+1]
			c := clients[x%2]
			id := c.slot*frame.RangeStep + 10 + uint32(x>>1)%4
			handle := uint64(x%2) + 1
			n := uint64(x) * 40
			request := func(op agent.FSOp, offer *agent.BulkOffer) {
				p, err := agent.EncodePayload(agent.FSRequestPayload{Op: op, Bulk: offer})
				if err != nil {
					t.Fatal(err)
				}
				sent[id] = 0
				s.Request(c.slot, id, 7+x%3, p, take())
			}
			record := func(flow uint8, offset, n uint64) {
				s.Bulk(frame.Bulk{ID: id, Kind: frame.BulkFilesystem, Flow: flow, Offset: offset, Payload: make([]byte, n+1)}, take())
			}
			switch ops[i] % 12 {
			case 0:
				request(agent.OpRead{Handle: handle, Offset: n, Len: ptr(n)}, readOffer())
			case 1:
				request(agent.OpWrite{Handle: handle, Offset: n}, writeOffer())
			case 2:
				request(agent.OpWrite{Handle: handle, Len: ptr(n)}, nil)
			case 3:
				s.Data(port.Input{ID: id, Data: make([]byte, n), Release: take()})
			case 4:
				record(frame.FlowHostToGuest, sent[id], n)
				sent[id] += n + 1
			case 5:
				record(x%4, n, n)
			case 6:
				c.finish(id, sent[id])
			case 7:
				c.finish(id, n)
			case 8:
				c.credit(id, n, n*3)
			case 9:
				s.Cancel(id, agent.BulkCancelPayload{Kind: x, Reason: x, Message: string(ops[i:])})
			case 10:
				request(agent.OpRead{Handle: handle}, nil)
			case 11:
				if x%16 == 0 {
					s.CloseOwner(c.slot)
				}
			}
		}
		<-s.CloseOwner(0)
		<-s.CloseOwner(1)
		s.Close()
		if s.Len() != 0 || len(s.handles.open) != 0 || len(s.reads)+len(s.writes) != 0 {
			t.Fatalf("%d streams, %d handles, %d permits are left", s.Len(), len(s.handles.open), len(s.reads)+len(s.writes))
		}
		if len(given) != taken {
			t.Fatalf("%d frames, %d releases", taken, len(given))
		}
	})
}

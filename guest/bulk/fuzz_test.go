package bulk

import "testing"

// FuzzFlow runs one flow with hostile records, credits and finishes beside honest ones and checks what must hold
// whatever comes: nothing beyond the window is accepted, nothing after the finish, and the sender never exceeds its
// limit.
func FuzzFlow(f *testing.F) {
	f.Add([]byte{0, 1, 0, 5, 1, 3, 2, 9, 3, 0})
	f.Add([]byte{2, 255, 2, 0, 0, 0, 4, 1, 5, 1})
	f.Fuzz(func(t *testing.T, ops []byte) {
		r := NewReceiver(64, 256)
		s := NewSender(64, 256)
		var consumed uint64
		for i := 0; i+1 < len(ops); i += 2 {
			x := uint64(ops[i+1])
			switch ops[i] % 6 {
			case 0: // a record where it belongs
				before := r.Received()
				finished := r.Finished()
				if r.Record(before, int(x)) == nil {
					if finished || x == 0 || x > 64 || r.Received()-consumed > 256 {
						t.Fatalf("accepted %d bytes at %d, consumed %d, finished %v", x, before, consumed, finished)
					}
				}
			case 1: // a record somewhere
				before := r.Received()
				if off := x * x * x * x; r.Record(off, 3) == nil && off != before {
					t.Fatalf("accepted a record at %d, not %d", off, before)
				}
			case 2:
				n := min(x, r.Received()-consumed)
				consumed += n
				if g, owed := r.Consume(int(n)); owed && (g.Consumed != consumed || g.Limit != consumed+256) {
					t.Fatalf("grant %+v at %d", g, consumed)
				}
			case 3:
				_ = r.Finish(r.Received()+x/32, x%2 == 0)
			case 4:
				if n := min(s.Room(), int(x)); n > 0 {
					if _, err := s.Take(n); err != nil {
						t.Fatal(err)
					}
				}
			case 5:
				sent := s.Sent()
				_, _ = s.Apply(sent-min(sent, x), sent+x*3)
			}
			if s.sent > s.limit || s.consumed > s.sent {
				t.Fatalf("sender %+v", s)
			}
		}
	})
}

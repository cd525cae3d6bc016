package bulk

import (
	"errors"
	"math"
	"testing"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

const mib = 1 << 20

func TestReceiverRecords(t *testing.T) {
	type rec struct {
		offset uint64
		n      int
	}
	for _, tc := range []struct {
		name   string
		before []rec
		last   rec
		want   string
	}{
		{"first", nil, rec{0, 5}, ""},
		{"next", []rec{{0, 5}}, rec{5, 1}, ""},
		{"largest", nil, rec{0, mib}, ""},
		{"gap", nil, rec{5, 3}, "bulk record offset 5 does not match expected 0"},
		{"overlap", []rec{{0, 5}}, rec{4, 3}, "bulk record offset 4 does not match expected 5"},
		{"again", []rec{{0, 5}}, rec{0, 5}, "bulk record offset 0 does not match expected 5"},
		{"empty", nil, rec{0, 0}, "invalid bulk record payload length 0 (max 1048576)"},
		{"too large", nil, rec{0, mib + 1}, "invalid bulk record payload length 1048577 (max 1048576)"},
		{"over credit", []rec{{0, mib}, {mib, mib}}, rec{2 * mib, 1}, "bulk record end 2097153 exceeds credit limit 2097152"},
		{"far offset", nil, rec{math.MaxUint64 - 1, 3}, "bulk record offset 18446744073709551614 does not match expected 0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := NewReceiver(mib, 2*mib)
			for _, b := range tc.before {
				if err := r.Record(b.offset, b.n); err != nil {
					t.Fatal(err)
				}
			}
			received := r.Received()
			err := r.Record(tc.last.offset, tc.last.n)
			if got := message(err); got != tc.want {
				t.Fatalf("got %q, want %q", got, tc.want)
			}
			if err != nil && r.Received() != received {
				t.Errorf("a refused record was counted")
			}
		})
	}
}

func TestReceiverOffsetPlusLengthOverflows(t *testing.T) {
	r := Receiver{received: math.MaxUint64 - 1, limit: math.MaxUint64, max: mib}
	if err := r.Record(math.MaxUint64-1, 3); err == nil {
		t.Fatal("accepted")
	}
}

// A published guest was seen to credit a 12 MiB write in 1 MiB records at 4, 8 and 12 MiB.
func TestReceiverReplenishesAtHalfWindow(t *testing.T) {
	r := NewReceiver(mib, Window)
	var grants []Grant
	for i := range 12 {
		if err := r.Record(uint64(i)*mib, mib); err != nil {
			t.Fatal(err)
		}
		if g, owed := r.Consume(mib); owed {
			grants = append(grants, g)
		}
	}
	want := []Grant{{4 * mib, 12 * mib}, {8 * mib, 16 * mib}, {12 * mib, 20 * mib}}
	if len(grants) != len(want) {
		t.Fatalf("grants %v, want %v", grants, want)
	}
	for i := range want {
		if grants[i] != want[i] {
			t.Errorf("grant %d is %v, want %v", i, grants[i], want[i])
		}
	}
}

func TestReceiverFinish(t *testing.T) {
	for _, tc := range []struct {
		name     string
		received int
		final    uint64
		hold     bool
		want     string
		finished bool
	}{
		{"exact", 3, 3, false, "", true},
		{"nothing", 0, 0, false, "", true},
		{"below", 3, 2, false, "bulk finish offset 2 does not match expected 3", false},
		{"above", 3, 4, false, "bulk finish offset 4 does not match expected 3", false},
		{"below, held", 3, 2, true, "bulk finish offset 2 does not match expected 3", false},
		{"above, held", 3, 4, true, "", false},
		{"above the credit, held", 3, Window + 1, true, "bulk finish offset 8388609 does not match expected 3", false},
		{"largest", 3, math.MaxUint64, true, "bulk finish offset 18446744073709551615 does not match expected 3", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := NewReceiver(mib, Window)
			if tc.received > 0 {
				if err := r.Record(0, tc.received); err != nil {
					t.Fatal(err)
				}
			}
			if got := message(r.Finish(tc.final, tc.hold)); got != tc.want {
				t.Fatalf("got %q, want %q", got, tc.want)
			}
			if r.Finished() != tc.finished {
				t.Errorf("finished is %v", r.Finished())
			}
		})
	}
}

func TestReceiverHeldFinish(t *testing.T) {
	r := NewReceiver(mib, Window)
	if err := r.Finish(5, true); err != nil {
		t.Fatal(err)
	}
	if err := r.Finish(5, true); !errors.Is(err, ErrFinished) {
		t.Errorf("second finish: %v", err)
	}
	if err := r.Record(0, 3); err != nil || r.Finished() {
		t.Fatalf("%v, finished %v", err, r.Finished())
	}
	if err := r.Record(3, 3); err == nil {
		t.Error("record past the finish was accepted")
	}
	if err := r.Record(3, 2); err != nil || !r.Finished() {
		t.Fatalf("%v, finished %v", err, r.Finished())
	}
	if err := r.Record(5, 1); !errors.Is(err, ErrFinished) {
		t.Errorf("record after the finish: %v", err)
	}
}

func TestSenderCredit(t *testing.T) {
	const sent = 4 * mib
	for _, tc := range []struct {
		name            string
		consumed, limit uint64
		advanced        bool
		ok              bool
	}{
		{"both advance", 2 * mib, 10 * mib, true, true},
		{"only consumed", 2 * mib, 8 * mib, true, true},
		{"only limit", 0, 9 * mib, true, true},
		{"all consumed", sent, 12 * mib, true, true},
		{"repeated", 0, 8 * mib, false, true},
		{"both behind", 0, 7 * mib, false, true},
		{"consumed more than sent", sent + 1, 12 * mib, false, false},
		{"limit below consumed", 3 * mib, 2 * mib, false, false},
		{"window too large", 0, frame.MaxBulkWindow + 1, false, false},
		{"window largest", 0, frame.MaxBulkWindow, true, true},
		{"limit goes back", 2 * mib, 7 * mib, false, false},
		{"limit below sent", 2 * mib, 3 * mib, false, false},
		{"largest values", math.MaxUint64, math.MaxUint64, false, false},
		{"largest limit", 0, math.MaxUint64, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := NewSender(mib, 8*mib)
			for range 4 {
				if _, err := s.Take(mib); err != nil {
					t.Fatal(err)
				}
			}
			before := s
			advanced, err := s.Apply(tc.consumed, tc.limit)
			if advanced != tc.advanced || (err == nil) != tc.ok {
				t.Fatalf("advanced %v, error %v", advanced, err)
			}
			if !advanced && s != before {
				t.Error("the state changed")
			}
		})
	}
	t.Run("consumed goes back", func(t *testing.T) {
		s := NewSender(mib, 8*mib)
		for range 4 {
			s.Take(mib)
		}
		s.Apply(3*mib, 11*mib)
		if _, err := s.Apply(2*mib, 12*mib); err == nil {
			t.Error("accepted")
		}
	})
}

func TestSenderRoomAndFinish(t *testing.T) {
	s := NewSender(16<<10, 24<<10)
	if got := s.Room(); got != 16<<10 {
		t.Fatalf("room %d", got)
	}
	if _, err := s.Take(16<<10 + 1); err == nil {
		t.Error("a record above the limit was taken")
	}
	if off, err := s.Take(16 << 10); off != 0 || err != nil {
		t.Fatal(off, err)
	}
	if got := s.Room(); got != 8<<10 {
		t.Fatalf("room %d", got)
	}
	if _, err := s.Take(9 << 10); err == nil {
		t.Error("a record above the credit was taken")
	}
	if off, err := s.Take(8 << 10); off != 16<<10 || err != nil {
		t.Fatal(off, err)
	}
	if s.Room() != 0 {
		t.Fatal("room without credit")
	}
	if final, err := s.Finish(); final != 24<<10 || err != nil {
		t.Fatal(final, err)
	}
	if _, err := s.Finish(); !errors.Is(err, ErrFinished) {
		t.Errorf("second finish: %v", err)
	}
	if _, err := s.Take(1); !errors.Is(err, ErrFinished) {
		t.Errorf("record after finish: %v", err)
	}
}

func TestOffers(t *testing.T) {
	good := agent.BulkOffer{Format: 1, MaxRecordPayload: 3 * mib, GuestToHostCreditLimit: 8 * mib}
	for _, tc := range []struct {
		name   string
		accept func(agent.BulkOffer) (agent.BulkAcceptedPayload, error)
		change func(*agent.BulkOffer)
		want   agent.BulkAcceptedPayload // zero: refused
	}{
		{"read", AcceptRead, nil, agent.BulkAcceptedPayload{Kind: 1, Flows: 2, Format: 1, MaxRecordPayload: 3 * mib, GuestToHostCreditLimit: 8 * mib}},
		{"read small records", AcceptRead, func(o *agent.BulkOffer) { o.MaxRecordPayload = 16384; o.GuestToHostCreditLimit = 1 },
			agent.BulkAcceptedPayload{Kind: 1, Flows: 2, Format: 1, MaxRecordPayload: 16384, GuestToHostCreditLimit: 1}},
		{"read without credit", AcceptRead, func(o *agent.BulkOffer) { o.GuestToHostCreditLimit = 0 }, agent.BulkAcceptedPayload{}},
		{"read huge credit", AcceptRead, func(o *agent.BulkOffer) { o.GuestToHostCreditLimit = 32*mib + 1 }, agent.BulkAcceptedPayload{}},
		{"write", AcceptWrite, func(o *agent.BulkOffer) { o.GuestToHostCreditLimit = 0 },
			agent.BulkAcceptedPayload{Kind: 1, Flows: 1, Format: 1, MaxRecordPayload: 3 * mib, HostToGuestCreditLimit: 8 * mib}},
		{"write with credit", AcceptWrite, nil, agent.BulkAcceptedPayload{}},
		{"tcp", AcceptTCP, nil, agent.BulkAcceptedPayload{Kind: 2, Flows: 3, Format: 1, MaxRecordPayload: 256 << 10, HostToGuestCreditLimit: 8 * mib, GuestToHostCreditLimit: 8 * mib}},
		{"tcp without credit", AcceptTCP, func(o *agent.BulkOffer) { o.GuestToHostCreditLimit = 0 }, agent.BulkAcceptedPayload{}},
		{"format 0", AcceptRead, func(o *agent.BulkOffer) { o.Format = 0 }, agent.BulkAcceptedPayload{}},
		{"format 2", AcceptTCP, func(o *agent.BulkOffer) { o.Format = 2 }, agent.BulkAcceptedPayload{}},
		{"records too small", AcceptRead, func(o *agent.BulkOffer) { o.MaxRecordPayload = 16383 }, agent.BulkAcceptedPayload{}},
		{"records too large", AcceptRead, func(o *agent.BulkOffer) { o.MaxRecordPayload = 3*mib + 1 }, agent.BulkAcceptedPayload{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := good
			if tc.change != nil {
				tc.change(&o)
			}
			got, err := tc.accept(o)
			if refused := tc.want == (agent.BulkAcceptedPayload{}); refused != (err != nil) || got != tc.want {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
	if CheckGeneration(7) == nil || CheckGeneration(8) != nil {
		t.Error("generation check")
	}
}

func TestRetiredIsBounded(t *testing.T) {
	var r Retired
	for id := range uint32(5000) {
		r.Add(id)
		r.Add(id)
	}
	if len(r.ids) != retiredMax || r.Has(0) || !r.Has(4999) || !r.Has(5000-retiredMax) {
		t.Fatalf("%d ids", len(r.ids))
	}
	r.Forget(func(id uint32) bool { return id%2 == 0 })
	if r.Has(4998) || !r.Has(4999) || len(r.ids) != retiredMax/2 {
		t.Fatal("forget")
	}
	for id := range uint32(3000) {
		r.Add(10000 + id)
	}
	if len(r.ids) != retiredMax || r.Has(4999) {
		t.Fatal("after forget")
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

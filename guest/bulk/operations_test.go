package bulk_test

import (
	"testing"

	"msb/guest/bulk"
	"msb/guest/bulk/bulktest"
	"msb/guest/port"
	"msb/protocol/agent"
	"msb/protocol/frame"
)

// heard is an operation that counts what it hears.
type heard struct {
	data, records, credits, finishes int
	end                              *bulk.Ending
}

func (h *heard) Data(in port.Input)                  { h.data++; in.Release() }
func (h *heard) Record(_ frame.Bulk, release func()) { h.records++; release() }
func (h *heard) Credit(agent.BulkCreditPayload)      { h.credits++ }
func (h *heard) Finish(agent.BulkFinishPayload)      { h.finishes++ }
func (h *heard) End(e bulk.Ending)                   { h.end = &e }

func TestOperations(t *testing.T) {
	out := bulktest.New()
	fail := func(id uint32, text string) { _ = out.Send(id, agent.TCPFailed, agent.TCPFailedPayload{Error: text}) }
	unknown := func(uint32) string { return "nobody" }
	ops := bulk.NewOperations(out, frame.BulkTCP, fail, bulk.Unknown{Data: unknown, Record: unknown, Finish: unknown})
	released := 0
	everything := func(id uint32) {
		ops.Data(port.Input{ID: id, Release: func() { released++ }})
		ops.Bulk(frame.Bulk{ID: id}, func() { released++ })
		ops.Credit(id, agent.BulkCreditPayload{})
		ops.Finish(id, agent.BulkFinishPayload{})
	}
	answers := func(id uint32, want ...agent.Type) {
		t.Helper()
		for _, typ := range want {
			if f := out.Next(t, id); f.Type != typ {
				t.Errorf("got %v, want %s", f, typ)
			}
		}
		if left := out.Pending(); len(left) > 0 {
			t.Errorf("also %v", left)
		}
	}
	everything(5) // of nobody: credit means nothing here, the rest is answered
	answers(5, agent.TCPFailed, agent.BulkCancel, agent.TCPFailed, agent.BulkCancel, agent.TCPFailed)

	one, other := &heard{}, &heard{}
	ops.Add(5, one)
	ops.Add(frame.RangeStep+5, other)
	everything(5)
	ops.Cancel(5, agent.BulkCancelPayload{})
	if *one.end != bulk.Cancelled(agent.BulkCancelPayload{}) || one.data != 1 || one.records != 1 || one.credits != 1 || one.finishes != 1 {
		t.Errorf("heard %+v", one)
	}
	ops.Remove(5, true)
	everything(5) // late
	ops.Cancel(5, agent.BulkCancelPayload{})
	answers(5)
	ops.CloseOwner(1)
	if other.end == nil || !other.end.Silent || ops.Len() != 1 {
		t.Errorf("ended with %+v", other.end)
	}
	ops.CloseOwner(0)
	everything(5) // of nobody again
	answers(5, agent.TCPFailed, agent.BulkCancel, agent.TCPFailed, agent.BulkCancel, agent.TCPFailed)
	if released != 8 {
		t.Errorf("%d pieces of data were released, want 8", released)
	}
}

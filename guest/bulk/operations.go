package bulk

import (
	"sync"

	"msb/guest/port"
	"msb/protocol/agent"
	"msb/protocol/frame"
)

// Operation is one that is open and takes or sends data. Its methods do not wait.
type Operation interface {
	// Data takes data of a message, and gives it back.
	Data(in port.Input)
	// Record takes a raw record; release gives it back.
	Record(rec frame.Bulk, release func())
	Credit(m agent.BulkCreditPayload)
	Finish(m agent.BulkFinishPayload)
	// End makes the operation end, unless it has ended already.
	End(e Ending)
}

// Unknown are the texts for what comes for an id that has no operation; nil where that means nothing.
type Unknown struct{ Data, Record, Credit, Finish func(id uint32) string }

// Operations are the open operations of a service, by id: it passes on what comes for them and answers what comes for
// none. Its methods may be called by any goroutine; what comes for one id comes from one.
type Operations struct {
	out     port.Out
	kind    uint8
	fail    func(id uint32, text string)
	unknown Unknown

	mu      sync.Mutex
	open    map[uint32]Operation
	retired Retired
}

// NewOperations returns an empty table of a service for a kind of raw records. fail sends a terminal failure.
func NewOperations(out port.Out, kind uint8, fail func(id uint32, text string), unknown Unknown) *Operations {
	return &Operations{out: out, kind: kind, fail: fail, unknown: unknown, open: make(map[uint32]Operation)}
}

// Add opens an operation.
func (t *Operations) Add(id uint32, op Operation) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.retired.Has(id) {
		t.retired.Forget(func(x uint32) bool { return x == id })
	}
	t.open[id] = op
}

// Remove takes an operation out. With late, data for it may still be under way and is dropped without an answer.
func (t *Operations) Remove(id uint32, late bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, id)
	if late {
		t.retired.Add(id)
	}
}

// Len is how many operations are open.
func (t *Operations) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.open)
}

// Has tells whether an operation with this id is open.
func (t *Operations) Has(id uint32) bool { return t.Get(id) != nil }

// Get returns the open operation with this id, nil when there is none.
func (t *Operations) Get(id uint32) Operation {
	op, _ := t.find(id)
	return op
}

// find is Get; known is false for an id that deserves an answer: neither an open operation nor one that failed while its
// data was still coming.
func (t *Operations) find(id uint32) (op Operation, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	op = t.open[id]
	return op, op != nil || t.retired.Has(id)
}

// Data passes the data of a message on.
func (t *Operations) Data(in port.Input) {
	op, known := t.find(in.ID)
	if op != nil {
		op.Data(in)
		return
	}
	if !known {
		t.fail(in.ID, t.unknown.Data(in.ID))
	}
	in.Release()
}

// Bulk passes a raw record on.
func (t *Operations) Bulk(rec frame.Bulk, release func()) {
	op, known := t.find(rec.ID)
	if op != nil {
		op.Record(rec, release)
		return
	}
	if !known {
		t.violate(rec.ID, t.unknown.Record)
	}
	release()
}

// Credit passes the host's credit for data of ours on.
func (t *Operations) Credit(id uint32, m agent.BulkCreditPayload) {
	if op, known := t.find(id); op != nil {
		op.Credit(m)
	} else if !known {
		t.violate(id, t.unknown.Credit)
	}
}

// Finish passes the end of the host's data on.
func (t *Operations) Finish(id uint32, m agent.BulkFinishPayload) {
	if op, known := t.find(id); op != nil {
		op.Finish(m)
	} else if !known {
		t.violate(id, t.unknown.Finish)
	}
}

// Cancel ends an operation. One that crossed the terminal answer is nothing to complain about.
func (t *Operations) Cancel(id uint32, m agent.BulkCancelPayload) {
	if op := t.Get(id); op != nil {
		op.End(Cancelled(m))
	}
}

// CloseOwner ends all operations of a client without an answer.
func (t *Operations) CloseOwner(owner uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.retired.Forget(func(id uint32) bool { return port.Owner(id) == owner })
	for id, op := range t.open {
		if port.Owner(id) == owner {
			op.End(Ending{Silent: true})
		}
	}
}

// Tell sends what an ending owes to the host.
func (t *Operations) Tell(id uint32, e Ending) {
	if e.Silent {
		return
	}
	t.TellCancel(id, e)
	t.fail(id, e.Text)
}

// TellCancel is the part of Tell that goes before the terminal failure.
func (t *Operations) TellCancel(id uint32, e Ending) {
	if !e.Silent && e.Reason != 0 {
		_ = t.out.Send(id, agent.BulkCancel, agent.BulkCancelPayload{Kind: t.kind, Reason: e.Reason, Message: e.Text})
	}
}

// Grant gives the host more credit for an operation's data.
func (t *Operations) Grant(id uint32, g Grant) {
	_ = t.out.Send(id, agent.BulkCredit, agent.BulkCreditPayload{
		Kind: t.kind, Flow: frame.FlowHostToGuest, ConsumedOffset: g.Consumed, CreditLimit: g.Limit,
	})
}

// violate answers a bulk frame for which there is no operation.
func (t *Operations) violate(id uint32, text func(uint32) string) {
	if text != nil {
		t.Tell(id, Violation(text(id)))
	}
}

// Reject answers a request that cannot be decoded. Peers below generation 5 do not know core.error.
func (t *Operations) Reject(id uint32, v uint8, typ agent.Type, err error) {
	name := typ.String()
	text := port.Clip("decode payload for " + name + ": " + err.Error())
	if v < agent.ErrorGeneration {
		t.fail(id, text)
		return
	}
	_ = t.out.Send(id, agent.Error, agent.ErrorPayload{Kind: agent.KindInvalidPayload, Message: text, OffendingType: &name})
}

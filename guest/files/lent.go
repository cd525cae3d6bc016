package files

import (
	"errors"
	"math"

	"msb/guest/bulk"
	"msb/protocol/agent"
)

// Flow is a raw bulk stream on a file of another service, as a part of an operation that the other service answers.
type Flow struct {
	Owner, ID uint32
	Version   uint8 // generation of the request
	FD        int   // stays the caller's and open until Run returns
	Append    bool  // FD appends whatever Offset says
	Offset    uint64
	Len       *uint64 // nil: to the end of the file, or of what the host sends
	Offer     agent.BulkOffer
	Write     bool // from the host to the file
}

// ErrSilent is what Run returns when its client is gone: nobody waits for an answer.
var ErrSilent = errors.New("the stream's client is gone")

// FlowError is why a stream ended before its work was done. The host has been sent core.bulk.cancel where that is due.
type FlowError struct {
	Text string
	Err  error // what the system said; nil when the host broke the protocol or the stream could not begin
}

func (e *FlowError) Error() string { return e.Text }

// Unwrap returns Err.
func (e *FlowError) Unwrap() error { return e.Err }

// Run sends core.bulk.accepted and streams until the end, core.bulk.finish included. It returns the bytes that were
// read or written. Bulk frames for the stream come to this service meanwhile, as for its own.
func (s *Service) Run(f Flow) (n uint64, err error) {
	if err := bulk.CheckGeneration(f.Version); err != nil {
		return 0, &FlowError{Text: err.Error()}
	}
	accept := bulk.AcceptRead
	if f.Write {
		accept = bulk.AcceptWrite
	}
	accepted, err := accept(f.Offer)
	if err != nil {
		return 0, &FlowError{Text: err.Error()}
	}
	o := s.owner(f.Owner)
	if o == nil {
		return 0, ErrSilent
	}
	var st stream
	var run func() *bulk.Ending
	var moved func() uint64
	if f.Write {
		w := &write{session: s.newLent(o, f), offset: f.Offset, expected: length(f.Len)}
		w.flow = bulk.NewReceiver(accepted.MaxRecordPayload, accepted.HostToGuestCreditLimit)
		st, run, moved = w, w.run, func() uint64 { return w.offset - f.Offset }
	} else {
		r := &read{session: s.newLent(o, f), offset: f.Offset, left: length(f.Len), max: min(bufferSize, int(accepted.MaxRecordPayload))}
		r.flow = bulk.NewSender(uint32(r.max), accepted.GuestToHostCreditLimit)
		st, run, moved = r, r.run, func() uint64 { return r.offset - f.Offset }
	}
	s.mu.Lock()
	text, ok := s.enroll(st)
	if ok {
		s.wg.Add(1)
	}
	s.mu.Unlock()
	switch {
	case !ok && text == "":
		return 0, ErrSilent
	case !ok:
		return 0, &FlowError{Text: text}
	}
	defer s.wg.Done()
	defer o.wg.Done()
	_ = s.out.Send(f.ID, agent.BulkAccepted, accepted)
	e := run()
	switch {
	case e == nil:
		return moved(), nil
	case e.Silent:
		return moved(), ErrSilent
	}
	return moved(), &FlowError{Text: e.Text, Err: e.Err}
}

func (s *Service) newLent(o *owner, f Flow) session {
	lent := &file{fd: f.FD, read: !f.Write, write: f.Write, append: f.Append}
	return session{svc: s, own: o, id: f.ID, file: lent, bulk: true, lent: true, stop: make(chan struct{}), wake: make(chan struct{}, 1)}
}

// length is a stream's length, MaxUint64 for one without.
func length(n *uint64) uint64 {
	if n == nil {
		return math.MaxUint64
	}
	return *n
}

package files

import (
	"sync"

	"golang.org/x/sys/unix"

	"msb/guest/port"
	"msb/protocol/agent"
	"msb/protocol/frame"
)

// stream is a read or a write that is open.
type stream interface {
	base() *session
	data(in port.Input)
	record(rec frame.Bulk, release func())
	credit(m agent.BulkCreditPayload)
	finish(m agent.BulkFinishPayload)
}

// ending is why a stream ends before its work is done.
type ending struct {
	silent bool   // nobody is left to hear about it
	reason uint8  // of the core.bulk.cancel that goes first; 0: none goes
	text   string // of the terminal failure
	err    error  // what the system said, nil when it is not that which failed
}

// failure is the ending of a stream whose file could not be read or written.
func failure(err error) *ending { return &ending{text: err.Error(), err: err} }

// violation is the ending of a stream whose host broke the protocol.
func violation(text string) ending { return ending{reason: agent.CancelProtocol, text: text} }

// session is what reads and writes have in common. Its goroutine alone sends frames for its id, so that nothing
// follows the terminal one.
type session struct {
	svc  *Service
	own  *owner
	id   uint32
	file *file
	bulk bool
	lent bool // another service's: it answers, and it owns the file

	mu   sync.Mutex
	over *ending
	stop chan struct{} // closed when over is set
	wake chan struct{} // 1 slot: something that the goroutine waits for has changed
}

func (s *Service) newSession(o *owner, id uint32, f *file, bulk bool) session {
	return session{svc: s, own: o, id: id, file: f, bulk: bulk, stop: make(chan struct{}), wake: make(chan struct{}, 1)}
}

func (s *session) base() *session { return s }

// end makes the stream end with e, unless it has ended already.
func (s *session) end(e ending) {
	s.mu.Lock()
	s.endLocked(e)
	s.mu.Unlock()
}

func (s *session) endLocked(e ending) {
	if s.over == nil {
		s.over = &e
		close(s.stop)
	}
}

func (s *session) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// ended returns the ending, nil while there is none.
func (s *session) ended() *ending {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

// close says how the stream ended, nil for success, and takes it out of the table. It returns the ending.
func (s *session) close(e *ending, final *uint64) *ending {
	if o := s.ended(); e != nil && o != nil && o.silent {
		e = o
	}
	switch {
	case e == nil:
		if final != nil {
			_ = s.svc.out.Send(s.id, agent.BulkFinish, agent.BulkFinishPayload{
				Kind: frame.BulkFilesystem, Flow: frame.FlowGuestToHost, FinalOffset: *final,
			})
		}
		if !s.lent {
			_ = s.svc.out.Send(s.id, agent.FSResponse, agent.FSResponsePayload{OK: true})
		}
	case !e.silent:
		if e.reason != 0 {
			_ = s.svc.out.Send(s.id, agent.BulkCancel, agent.BulkCancelPayload{
				Kind: frame.BulkFilesystem, Reason: e.reason, Message: e.text,
			})
		}
		if !s.lent {
			s.svc.refuse(s.id, e.text)
		}
	}
	if !s.lent {
		_ = s.file.unref()
	}
	s.svc.mu.Lock()
	delete(s.svc.streams, s.id)
	s.own.streams--
	if s.lent || e != nil && !e.silent {
		s.svc.retired.Add(s.id)
	}
	s.svc.mu.Unlock()
	return e
}

// open checks what reads and writes check alike and returns the file with a reference.
func (s *Service) useStream(o *owner, num uint64, write bool) (*file, error) {
	f, err := s.handles.useFile(o, num)
	if err != nil {
		return nil, err
	}
	if write && !f.write {
		_ = f.unref()
		return nil, notOpenFor(num, "writing")
	}
	if !write && !f.read {
		_ = f.unref()
		return nil, notOpenFor(num, "reading")
	}
	return f, nil
}

// register puts a stream into the table and runs it. It returns false, and why, when there are too many.
func (s *Service) register(st stream, run func()) (text string, ok bool) {
	b := st.base()
	s.mu.Lock()
	defer s.mu.Unlock()
	if text, ok := s.enroll(st); !ok {
		return text, false
	}
	s.wg.Go(func() {
		defer b.own.wg.Done()
		run()
	})
	return "", true
}

// enroll puts a stream into the table. s.mu is held.
func (s *Service) enroll(st stream) (text string, ok bool) {
	b := st.base()
	switch {
	case b.own.ctx.Err() != nil || s.closed:
		return "", false
	case b.own.streams >= maxStreamsPerOwner, len(s.streams) >= maxStreams:
		return "too many filesystem streams are open", false
	}
	s.streams[b.id] = st
	b.own.streams++
	b.own.wg.Add(1)
	return "", true
}

// find returns the open stream with this id. known is false for an id that deserves an answer: neither an open stream
// nor one that failed while its data was still coming.
func (s *Service) find(id uint32) (st stream, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st = s.streams[id]
	return st, st != nil || s.retired.Has(id)
}

// Data takes one core.fs.data.
func (s *Service) Data(in port.Input) {
	st, known := s.find(in.ID)
	if st != nil {
		st.data(in)
		return
	}
	if !known {
		s.refuse(in.ID, unknownWrite(in.ID, false))
	}
	in.Release()
}

// Bulk takes one raw record of kind filesystem.
func (s *Service) Bulk(rec frame.Bulk, release func()) {
	st, known := s.find(rec.ID)
	if st != nil {
		st.record(rec, release)
		return
	}
	if !known {
		s.violate(rec.ID, unknownWrite(rec.ID, true))
	}
	release()
}

// Credit takes the host's credit for a read.
func (s *Service) Credit(id uint32, m agent.BulkCreditPayload) {
	st, known := s.find(id)
	switch {
	case st != nil:
		st.credit(m)
	case !known:
		s.violate(id, unknownRead(id))
	}
}

// Finish takes the host's finish of a write.
func (s *Service) Finish(id uint32, m agent.BulkFinishPayload) {
	st, known := s.find(id)
	switch {
	case st != nil:
		st.finish(m)
	case !known:
		s.violate(id, unknownWrite(id, true))
	}
}

// Cancel drops an operation. Its terminal failure repeats the host's message. A cancel that crossed the terminal is
// nothing to complain about.
func (s *Service) Cancel(id uint32, m agent.BulkCancelPayload) {
	st, _ := s.find(id)
	if st == nil {
		return
	}
	text := port.Clip(m.Message)
	if text == "" {
		text = "the host cancelled the operation"
	}
	st.base().end(ending{text: text, err: unix.ECANCELED})
}

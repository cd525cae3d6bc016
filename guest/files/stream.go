package files

import (
	"sync"

	"msb/guest/bulk"
	"msb/protocol/agent"
	"msb/protocol/frame"
)

// stream is a read or a write that is open.
type stream interface {
	bulk.Operation
	base() *session
}

// failure is the ending of a stream whose file could not be read or written.
func failure(err error) *bulk.Ending { return &bulk.Ending{Text: err.Error(), Err: err} }

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
	over *bulk.Ending
	stop chan struct{} // closed when over is set
	wake chan struct{} // 1 slot: something that the goroutine waits for has changed
}

func (s *Service) newSession(o *owner, id uint32, f *file, bulk bool) session {
	return session{svc: s, own: o, id: id, file: f, bulk: bulk, stop: make(chan struct{}), wake: make(chan struct{}, 1)}
}

func (s *session) base() *session { return s }

// End makes the stream end with e, unless it has ended already.
func (s *session) End(e bulk.Ending) {
	s.mu.Lock()
	s.endLocked(e)
	s.mu.Unlock()
}

func (s *session) endLocked(e bulk.Ending) {
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
func (s *session) ended() *bulk.Ending {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

// close says how the stream ended, nil for success, and takes it out of the table. It returns the ending.
func (s *session) close(e *bulk.Ending, final *uint64) *bulk.Ending {
	if o := s.ended(); e != nil && o != nil && o.Silent {
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
	case s.lent:
		s.svc.TellCancel(s.id, *e)
	default:
		s.svc.Tell(s.id, *e)
	}
	if !s.lent {
		_ = s.file.unref()
	}
	s.svc.mu.Lock()
	s.svc.Remove(s.id, s.lent || e != nil && !e.Silent)
	s.own.streams--
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
	case b.own.streams >= maxStreamsPerOwner, s.Len() >= maxStreams:
		return "too many filesystem streams are open", false
	}
	s.Add(b.id, st)
	b.own.streams++
	b.own.wg.Add(1)
	return "", true
}

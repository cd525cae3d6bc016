// Package files is the guest agent's file service: every operation of core.fs.request on the guest's own file system,
// handles, and streams with CBOR data or with raw bulk records.
//
// Calls come from one reader goroutine and never wait for I/O. Single operations run in bounded goroutines, a few per
// client at a time; each stream has a goroutine of its own. Requests of one client may therefore overtake each other:
// one that depends on another is sent after the other's answer.
//
// Paths and names travel as text. A name that is not UTF-8 is listed with U+FFFD in place of each bad byte, as
// published agents do; such an entry can be seen and can be removed together with its directory, but no path can name
// it.
package files

import (
	"context"
	"sync"
	"time"

	"msb/guest/bulk"
	"msb/guest/port"
	"msb/guest/watch"
	"msb/protocol/agent"
	"msb/protocol/frame"
)

const (
	// closeGrace is how long Close waits for system calls that do not return.
	closeGrace = time.Second

	maxStreamsPerOwner = 256
	maxStreams         = 16384
)

// Service serves the file operations of all clients. Its methods are called by one goroutine, Has, CloseOwner and
// Close excepted, which any may call.
type Service struct {
	*bulk.Operations // open streams

	out    port.Out
	split  bool
	actors *watch.Actors // may be nil

	mu       sync.Mutex
	owners   map[uint32]*owner
	handles  handleTable
	schedule schedule
	closed   bool

	reads  chan struct{} // gates of stream I/O, all clients
	writes chan struct{}
	large  chan struct{} // permits for answers that are large
	wg     sync.WaitGroup
}

// Option changes how a Service works.
type Option func(*Service)

// SplitPorts tells the service that raw records travel on a port of their own, so that a finish may arrive before the
// records it counts.
func SplitPorts() Option { return func(s *Service) { s.split = true } }

// Report makes the service tell actors when it changes files. The actor is the Service.
func Report(actors *watch.Actors) Option { return func(s *Service) { s.actors = actors } }

// New returns a Service that answers on out.
func New(out port.Out, opts ...Option) *Service {
	s := &Service{
		out:    out,
		owners: make(map[uint32]*owner),
		reads:  make(chan struct{}, maxIO),
		writes: make(chan struct{}, maxIO),
		large:  make(chan struct{}, maxLarge),
	}
	s.Operations = bulk.NewOperations(out, frame.BulkFilesystem, s.refuse, bulk.Unknown{
		Data:   func(id uint32) string { return unknownWrite(id, false) },
		Record: func(id uint32) string { return unknownWrite(id, true) },
		Credit: unknownRead,
		Finish: func(id uint32) string { return unknownWrite(id, true) },
	})
	s.handles.init()
	for _, o := range opts {
		o(s)
	}
	return s
}

// Request serves one core.fs.request of generation v. p is only used until Request returns. release is called once,
// when the request no longer counts against the transport's credit.
func (s *Service) Request(ownerID, id uint32, v uint8, p []byte, release func()) {
	var req agent.FSRequestPayload
	if err := agent.DecodePayload(p, &req); err != nil {
		s.Reject(id, v, agent.FSRequest, err)
		release()
		return
	}
	o := s.owner(ownerID)
	if o == nil {
		release()
		return
	}
	if s.reused(id) {
		release()
		return
	}
	switch op := req.Op.(type) {
	case agent.OpRead:
		s.startRead(o, id, v, op, req.Bulk)
		release()
	case agent.OpWrite:
		s.startWrite(o, id, v, op, req.Bulk)
		release()
	default:
		if req.Bulk != nil {
			s.refuse(id, offerError(v))
			release()
			return
		}
		s.submit(o, id, req.Op, release)
	}
}

// offerError is the answer to an offer on an operation that does not stream.
func offerError(v uint8) string {
	if err := bulk.CheckGeneration(v); err != nil {
		return err.Error()
	}
	return "raw bulk is only valid for streaming reads and writes"
}

// refuse sends a terminal failure.
func (s *Service) refuse(id uint32, text string) {
	_ = s.out.Send(id, agent.FSResponse, agent.FSResponsePayload{Error: &text})
}

// reused ends an open stream whose id a second request carries. The one terminal answer is the stream's.
func (s *Service) reused(id uint32) bool {
	st := s.Get(id)
	if st == nil {
		return false
	}
	st.End(bulk.Ending{Text: "correlation id was used again while its filesystem stream was open"})
	return true
}

// CloseOwner ends everything of one client without an answer: its streams, its queued operations, its handles. The
// returned channel is closed when nothing of that client runs or sends any more.
func (s *Service) CloseOwner(ownerID uint32) <-chan struct{} {
	done := make(chan struct{})
	s.mu.Lock()
	o := s.owners[ownerID]
	delete(s.owners, ownerID)
	s.Operations.CloseOwner(ownerID)
	var dropped []task
	if o != nil {
		dropped = s.schedule.drop(o)
		o.cancel()
	}
	s.mu.Unlock()
	for _, t := range dropped {
		t.free()
	}
	if o == nil {
		close(done)
		return done
	}
	s.wg.Go(func() {
		s.handles.closeOwner(o)
		o.wg.Wait()
		close(done)
	})
	return done
}

// Close ends everything and waits for it, but no longer than a second for system calls that do not return.
func (s *Service) Close() {
	s.mu.Lock()
	s.closed = true
	ids := make([]uint32, 0, len(s.owners))
	for id := range s.owners {
		ids = append(ids, id)
	}
	s.mu.Unlock()
	for _, id := range ids {
		s.CloseOwner(id)
	}
	port.WaitAtMost(&s.wg, closeGrace)
}

// owner returns the state of a client, nil after Close.
func (s *Service) owner(ownerID uint32) *owner {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	o := s.owners[ownerID]
	if o == nil {
		o = &owner{reads: newGate(s.reads), writes: newGate(s.writes)}
		o.ctx, o.cancel = context.WithCancel(context.Background())
		s.owners[ownerID] = o
	}
	return o
}

// Package tcp is the guest agent's TCP service: it opens connections from inside the guest and carries their bytes in
// core.tcp messages or in raw bulk records.
//
// Calls come from one reader goroutine and never wait for I/O. A connection has two goroutines, one a direction, and
// a queue that transport credit and, for bulk, the window bound: a destination that does not read stalls its own
// stream and no other.
package tcp

import (
	"context"
	"fmt"
	"sync"
	"time"

	"msb/guest/bulk"
	"msb/guest/port"
	"msb/protocol/agent"
	"msb/protocol/frame"
)

const (
	// connectTimeout bounds name resolution and connecting together.
	connectTimeout = 30 * time.Second
	// closeGrace is how long Close waits for a resolver that does not return.
	closeGrace = time.Second

	maxConnsPerOwner = 1024
	maxConns         = 16384
)

// Service serves the TCP connections of all clients. Its methods are called by one goroutine, Has, CloseOwner and
// Close excepted, which any may call.
type Service struct {
	*bulk.Operations // open streams

	out   port.Out
	split bool
	dial  dialFunc

	mu     sync.Mutex
	owners map[uint32]*owner
	closed bool

	io chan struct{} // permits for buffers, all clients
	wg sync.WaitGroup
}

// owner is what one client has in the service.
type owner struct {
	ctx    context.Context // ends with the client
	cancel context.CancelFunc
	wg     sync.WaitGroup
	io     chan struct{} // permits for buffers
	conns  int           // guarded by Service.mu
}

// Option changes how a Service works.
type Option func(*Service)

// SplitPorts tells the service that raw records travel on a port of their own, so that a finish may arrive before the
// records it counts.
func SplitPorts() Option { return func(s *Service) { s.split = true } }

// New returns a Service that answers on out.
func New(out port.Out, opts ...Option) *Service {
	s := &Service{
		out:    out,
		dial:   dial,
		owners: make(map[uint32]*owner),
		io:     make(chan struct{}, maxBuffers),
	}
	s.Operations = bulk.NewOperations(out, frame.BulkTCP, s.fail, bulk.Unknown{Data: unknown, Record: unknown, Finish: unknown})
	for _, o := range opts {
		o(s)
	}
	return s
}

// Connect serves one core.tcp.connect of generation v. p is only used until Connect returns, which calls release.
func (s *Service) Connect(ownerID, id uint32, v uint8, p []byte, release func()) {
	defer release()
	var req agent.TCPConnectPayload
	if err := agent.DecodePayload(p, &req); err != nil {
		s.Reject(id, v, agent.TCPConnect, err)
		return
	}
	if req.Bulk != nil {
		if err := bulk.CheckGeneration(v); err != nil {
			s.fail(id, err.Error())
			return
		}
	}
	if err := checkHost(req.Host); err != nil {
		s.fail(id, connectError(req.Host, req.Port, err))
		return
	}
	if text := s.open(ownerID, id, req); text != "" {
		s.fail(id, text)
	}
}

// open registers the connection and starts it. The text says why it cannot.
func (s *Service) open(ownerID, id uint32, req agent.TCPConnectPayload) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ""
	}
	if old := s.Get(id); old != nil {
		old.End(bulk.Ending{Text: "correlation id was used again while its TCP stream was open"})
		return "" // the one terminal answer is the old stream's
	}
	o := s.owners[ownerID]
	if o == nil {
		o = &owner{io: make(chan struct{}, maxBuffersPerOwner)}
		o.ctx, o.cancel = context.WithCancel(context.Background())
		s.owners[ownerID] = o
	}
	if o.conns >= maxConnsPerOwner || s.Len() >= maxConns {
		return fmt.Sprintf("connect %s:%d: too many TCP streams are open", req.Host, req.Port)
	}
	c := newConn(s, o, id, req)
	s.Add(id, c)
	o.conns++
	o.wg.Add(1)
	s.wg.Go(func() {
		defer o.wg.Done()
		c.run()
	})
	return ""
}

// fail sends a terminal failure.
func (s *Service) fail(id uint32, text string) {
	_ = s.out.Send(id, agent.TCPFailed, agent.TCPFailedPayload{Error: text})
}

func unknown(id uint32) string { return fmt.Sprintf("unknown TCP session: %d", id) }

// EOF takes one core.tcp.eof: the host sends no more.
func (s *Service) EOF(id uint32, release func()) {
	defer release()
	if c, ok := s.Get(id).(*conn); ok {
		c.eof()
		return
	}
	s.Data(port.Input{ID: id, Release: func() {}}) // as data of none
}

// Abort takes one core.tcp.close: the stream ends without an answer.
func (s *Service) Abort(id uint32) {
	if c := s.Get(id); c != nil {
		c.End(bulk.Ending{Silent: true})
	}
}

// CloseOwner ends every stream of one client without an answer. The returned channel is closed when nothing of that
// client runs or sends any more.
func (s *Service) CloseOwner(ownerID uint32) <-chan struct{} {
	done := make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.owners[ownerID]
	delete(s.owners, ownerID)
	s.Operations.CloseOwner(ownerID)
	if o == nil {
		close(done)
		return done
	}
	o.cancel()
	s.wg.Go(func() {
		o.wg.Wait()
		close(done)
	})
	return done
}

// Close ends every stream and waits for it, but no longer than a second.
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

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
	out   port.Out
	split bool
	dial  dialFunc

	mu      sync.Mutex
	owners  map[uint32]*owner
	conns   map[uint32]*conn
	retired bulk.Retired
	closed  bool

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
		conns:  make(map[uint32]*conn),
		io:     make(chan struct{}, maxBuffers),
	}
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
		s.reject(id, v, err)
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
	if old := s.conns[id]; old != nil {
		old.end(ending{text: "correlation id was used again while its TCP stream was open"})
		return "" // the one terminal answer is the old stream's
	}
	if s.retired.Has(id) {
		s.retired.Forget(func(x uint32) bool { return x == id })
	}
	o := s.owners[ownerID]
	if o == nil {
		o = &owner{io: make(chan struct{}, maxBuffersPerOwner)}
		o.ctx, o.cancel = context.WithCancel(context.Background())
		s.owners[ownerID] = o
	}
	if o.conns >= maxConnsPerOwner || len(s.conns) >= maxConns {
		return fmt.Sprintf("connect %s:%d: too many TCP streams are open", req.Host, req.Port)
	}
	c := newConn(s, o, id, req)
	s.conns[id] = c
	o.conns++
	o.wg.Add(1)
	s.wg.Go(func() {
		defer o.wg.Done()
		c.run()
	})
	return ""
}

// reject answers a request that cannot be decoded. Peers below generation 5 do not know core.error.
func (s *Service) reject(id uint32, v uint8, err error) {
	text := port.Clip("decode payload for core.tcp.connect: " + err.Error())
	if v < agent.ErrorGeneration {
		s.fail(id, text)
		return
	}
	name := agent.TCPConnect.String()
	_ = s.out.Send(id, agent.Error, agent.ErrorPayload{Kind: agent.KindInvalidPayload, Message: text, OffendingType: &name})
}

// fail sends a terminal failure.
func (s *Service) fail(id uint32, text string) {
	_ = s.out.Send(id, agent.TCPFailed, agent.TCPFailedPayload{Error: text})
}

// violate answers a bulk frame for which there is no stream.
func (s *Service) violate(id uint32) {
	text := unknown(id)
	_ = s.out.Send(id, agent.BulkCancel, agent.BulkCancelPayload{
		Kind: frame.BulkTCP, Reason: agent.CancelProtocol, Message: text,
	})
	s.fail(id, text)
}

func unknown(id uint32) string { return fmt.Sprintf("unknown TCP session: %d", id) }

// find returns the open stream with this id. known is false for an id that deserves an answer: neither an open stream
// nor one that failed or was aborted while its data was still coming.
func (s *Service) find(id uint32) (c *conn, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c = s.conns[id]
	return c, c != nil || s.retired.Has(id)
}

// Data takes one core.tcp.data.
func (s *Service) Data(in port.Input) {
	c, known := s.find(in.ID)
	if c != nil {
		c.data(in.Data, in.Release)
		return
	}
	if !known {
		s.fail(in.ID, unknown(in.ID))
	}
	in.Release()
}

// EOF takes one core.tcp.eof: the host sends no more.
func (s *Service) EOF(id uint32, release func()) {
	defer release()
	c, known := s.find(id)
	switch {
	case c != nil:
		c.eof()
	case !known:
		s.fail(id, unknown(id))
	}
}

// Abort takes one core.tcp.close: the stream ends without an answer.
func (s *Service) Abort(id uint32) {
	if c, _ := s.find(id); c != nil {
		c.end(ending{silent: true})
	}
}

// Bulk takes one raw record of kind TCP.
func (s *Service) Bulk(rec frame.Bulk, release func()) {
	c, known := s.find(rec.ID)
	if c != nil {
		c.record(rec, release)
		return
	}
	if !known {
		s.violate(rec.ID)
	}
	release()
}

// Credit takes the host's credit for the guest's data. One for a stream that has ended is late, and ignored.
func (s *Service) Credit(id uint32, m agent.BulkCreditPayload) {
	if c, _ := s.find(id); c != nil {
		c.credit(m)
	}
}

// Finish takes the host's finish: it sends no more.
func (s *Service) Finish(id uint32, m agent.BulkFinishPayload) {
	c, known := s.find(id)
	switch {
	case c != nil:
		c.finish(m)
	case !known:
		s.violate(id)
	}
}

// Cancel drops a stream. Its terminal failure repeats the host's message.
func (s *Service) Cancel(id uint32, m agent.BulkCancelPayload) {
	c, _ := s.find(id)
	if c == nil {
		return
	}
	text := port.Clip(m.Message)
	if text == "" {
		text = "the host cancelled the operation"
	}
	c.end(ending{text: text})
}

// Has tells whether a stream with this id is open.
func (s *Service) Has(id uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conns[id] != nil
}

// CloseOwner ends every stream of one client without an answer. The returned channel is closed when nothing of that
// client runs or sends any more.
func (s *Service) CloseOwner(ownerID uint32) <-chan struct{} {
	done := make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.owners[ownerID]
	delete(s.owners, ownerID)
	s.retired.Forget(func(id uint32) bool { return port.Owner(id) == ownerID })
	if o == nil {
		close(done)
		return done
	}
	for _, c := range s.conns {
		if c.own == o {
			c.end(ending{silent: true})
		}
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
	done := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(done)
	}()
	grace := time.NewTimer(closeGrace)
	defer grace.Stop()
	select {
	case <-done:
	case <-grace.C:
	}
}

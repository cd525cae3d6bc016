// Package nodes is the guest agent's service of msb.fs: the file system by node handle, for a mount. A node is a file,
// not a path: it stays the same file under renames, and a name is only ever one component in a directory that is a
// node itself, so that no path is resolved and no symlink followed.
//
// Requests come from one reader goroutine and never wait for I/O. They run in bounded goroutines, a few per client at
// a time, and may overtake each other; the operations of one request run in order.
//
// The service works as root. Operations that a request wants done as someone else change the identity of their thread
// for the length of the system call.
package nodes

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"msb/guest/files"
	"msb/guest/port"
	"msb/guest/watch"
	"msb/protocol/agent"
)

const (
	// closeGrace is how long Close waits for system calls that do not return.
	closeGrace = time.Second
	// maxText bounds error texts that repeat what the host sent, in bytes.
	maxText = 1024
)

// Flows runs the raw bulk streams of requests. It is *files.Service.
type Flows interface {
	Run(f files.Flow) (n uint64, err error)
}

// Service serves msb.fs to all clients. Request is called by one goroutine, the rest by any.
type Service struct {
	out    port.Out
	flows  Flows
	actors *watch.Actors // may be nil
	cache  cache
	root   threadRoot
	maker  maker
	gate   chan struct{} // requests that run
	large  chan struct{} // requests with answers above largeAnswer
	held   atomic.Int64  // bytes of requests that wait, all clients

	direct gatekeeper

	mu       sync.Mutex
	owners   map[uint32]*owner
	sessions map[sessionKey]*table
	closed   bool
	wg       sync.WaitGroup
}

// New returns a Service that answers on out.
func New(out port.Out, flows Flows) *Service {
	s := &Service{
		out:      out,
		flows:    flows,
		gate:     make(chan struct{}, maxRunning),
		large:    make(chan struct{}, maxLarge),
		owners:   make(map[uint32]*owner),
		sessions: make(map[sessionKey]*table),
	}
	s.cache.init()
	s.root.init()
	s.maker.init()
	s.direct.init()
	return s
}

// Request serves one msb.fs.request of generation v. p is only used until Request returns. release is called once,
// when the request no longer counts against the transport's credit.
func (s *Service) Request(ownerID, id uint32, v uint8, p []byte, release func()) {
	defer release()
	r := &request{svc: s, id: id, version: v, cancel: make(chan struct{})}
	r.size = len(p)
	if err := agent.DecodePayload(append([]byte(nil), p...), &r.payload); err != nil {
		s.reject(id, err)
		return
	}
	if err := r.check(); err != nil {
		s.refuse(id, err)
		return
	}
	if err := s.submit(ownerID, r); err != nil {
		s.refuse(id, err)
	}
}

// reject answers a request that cannot be decoded.
func (s *Service) reject(id uint32, err error) {
	text := "decode payload for " + agent.NodeRequest.String() + ": " + err.Error()
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + "…"
	}
	name := agent.NodeRequest.String()
	_ = s.out.Send(id, agent.Error, agent.ErrorPayload{Kind: agent.KindInvalidPayload, Message: text, OffendingType: &name})
}

// refuse answers a request of which nothing is done.
func (s *Service) refuse(id uint32, err error) {
	_ = s.out.Send(id, agent.NodeResponse, response(nil, err))
}

// Cancel ends a request early, see agent.NodeCancelPayload.
func (s *Service) Cancel(id uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.owners[port.Owner(id)]; o != nil {
		if r := o.requests[id]; r != nil {
			r.stop()
		}
	}
}

// Has tells whether a request with this id has not been answered.
func (s *Service) Has(id uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.owners[port.Owner(id)]
	return o != nil && o.requests[id] != nil
}

// CloseOwner ends everything of one client without an answer; its table is dropped unless another client has joined
// it. The returned channel is closed when nothing of that client runs or sends any more.
func (s *Service) CloseOwner(ownerID uint32) <-chan struct{} {
	done := make(chan struct{})
	s.mu.Lock()
	o := s.owners[ownerID]
	delete(s.owners, ownerID)
	if o == nil {
		s.mu.Unlock()
		close(done)
		return done
	}
	o.cancel()
	for _, r := range o.queue {
		s.held.Add(-int64(r.size))
	}
	o.queue = nil
	for _, r := range o.requests {
		r.stop()
	}
	s.wg.Add(1)
	s.mu.Unlock()
	go func() {
		defer s.wg.Done()
		o.wg.Wait()
		s.drop(o)
		close(done)
	}()
	return done
}

// drop takes a client that has gone off its table.
func (s *Service) drop(o *owner) {
	s.mu.Lock()
	t := o.table
	o.table = nil
	last := t != nil && s.leave(t)
	s.mu.Unlock()
	if last {
		t.close()
	}
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
	s.direct.close()
	done := make(chan struct{})
	go func() {
		s.wg.Wait()
		s.maker.close()
		close(done)
	}()
	grace := time.NewTimer(closeGrace)
	defer grace.Stop()
	select {
	case <-done:
	case <-grace.C:
	}
}

// response puts results and the error that ended them into an answer.
func response(results []agent.NodeResult, err error) agent.NodeResponsePayload {
	p := agent.NodeResponsePayload{Results: results}
	if err != nil {
		p.Errno, p.Message = describe(err)
	}
	return p
}

// failure is an errno with words that it lacks.
type failure struct {
	errno unix.Errno
	text  string
}

func (f *failure) Error() string { return f.text }
func (f *failure) Unwrap() error { return f.errno }

func fail(errno unix.Errno, format string, args ...any) error {
	return &failure{errno, fmt.Sprintf(format, args...)}
}

// owner is what one client has in the service. Service.mu guards it.
type owner struct {
	ctx      context.Context // ends with the client
	cancel   context.CancelFunc
	wg       sync.WaitGroup // workers
	table    *table         // nil until the first request
	queue    []*request
	bytes    int // of the queue
	running  int
	parked   int
	requests map[uint32]*request // those not answered
}

func newOwner() *owner {
	o := &owner{requests: make(map[uint32]*request)}
	o.ctx, o.cancel = context.WithCancel(context.Background())
	return o
}

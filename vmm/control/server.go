// Package control is the host's end of control.sock: it changes the size of a
// running sandbox, its secrets, and pauses it. A connection speaks JSON lines
// or the framed protocol; its first byte decides.
package control

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"msb/protocol/control"
)

// Backend carries out requests. The server calls it from one goroutine, one
// request at a time. Errors that are a *control.Error reach the client as they
// are; of others only the text does.
type Backend interface {
	Capabilities(ctx context.Context) control.Capabilities
	MemoryState(ctx context.Context) (control.MemoryState, error)
	SetMemoryTarget(ctx context.Context, totalMiB uint64) (control.MemoryState, error)
	CPUState(ctx context.Context) (control.CPUState, error)
	SetCPUTarget(ctx context.Context, online uint32) (control.CPUState, error)
	UpdateSecrets(ctx context.Context, changes []control.Change) control.SecretsResult
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
	Paused() bool
	Metrics(ctx context.Context) (control.Metrics, error)
}

// Bounds of the server, in connections, requests and bytes.
const (
	maxConns       = 128
	maxJobs        = 256
	maxConnBytes   = 8 << 20  // of requests that a framed connection has under way
	maxServerBytes = 64 << 20 // of all framed connections
	maxLine        = 64 << 20 // of one JSON request
	maxLines       = 64 << 20 // of all JSON requests beyond freeLine each
	freeLine       = 64 << 10
	maxReply       = 4100 // of a framed reply
	maxMessage     = 1024 // of an error's text
)

// Options say how a server serves; zero values are the defaults.
type Options struct {
	Log *slog.Logger // nil = nowhere
	// Setup bounds the time to a whole opening message (10 s), Frame that from
	// the first byte of a frame to its last (10 s), Stall that in which a client
	// must read a reply or go on with a JSON line (10 s), Job that of one request
	// (60 s).
	Setup, Frame, Stall, Job time.Duration
	// Done learns of every request that was carried out; it does not wait.
	Done func(method string, took time.Duration, err error)
}

// Server serves control.sock.
type Server struct {
	backend Backend
	opts    Options
	log     *slog.Logger
	queue   *queue
	frames  budget
	lines   budget

	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

// New returns a server of b.
func New(b Backend, o Options) *Server {
	for _, d := range []*time.Duration{&o.Setup, &o.Frame, &o.Stall} {
		if *d <= 0 {
			*d = 10 * time.Second
		}
	}
	if o.Job <= 0 {
		o.Job = time.Minute
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Done == nil {
		o.Done = func(string, time.Duration, error) {}
	}
	return &Server{
		backend: b, opts: o, log: o.Log, queue: newQueue(maxJobs), conns: map[net.Conn]struct{}{},
		frames: budget{limit: maxServerBytes}, lines: budget{limit: maxLines},
	}
}

// Serve accepts connections until ctx ends or l fails. It closes l and returns
// when nothing of the server runs any more. It is called once.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	work.Go(func() { s.execute(ctx) })
	stop := context.AfterFunc(ctx, func() {
		l.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		for c := range s.conns {
			c.Close()
		}
	})
	defer func() {
		cancel()
		l.Close()
		work.Wait()
		stop()
	}()
	for {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if passes(err) {
				s.log.Warn("accept", "error", err)
				select {
				case <-time.After(50 * time.Millisecond):
				case <-ctx.Done():
				}
				continue
			}
			return fmt.Errorf("control socket: %w", err)
		}
		if !s.admit(ctx, c) {
			c.Close()
			continue
		}
		work.Go(func() {
			defer s.leave(c)
			s.serveConn(ctx, c)
		})
	}
}

// admit takes a connection in unless there are too many or its user is another.
func (s *Server) admit(ctx context.Context, c net.Conn) bool {
	if err := checkPeer(c); err != nil {
		s.log.Warn("client refused", "error", err)
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.conns) >= maxConns || ctx.Err() != nil {
		s.log.Warn("client refused: too many connections", "limit", maxConns)
		return false
	}
	s.conns[c] = struct{}{}
	return true
}

func (s *Server) leave(c net.Conn) {
	c.Close()
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
}

// serveConn looks at the first byte and leaves the rest to the parser that it
// names. A connection that ends before it is a probe.
func (s *Server) serveConn(ctx context.Context, c net.Conn) {
	c.SetReadDeadline(time.Now().Add(s.opts.Setup))
	r := bufio.NewReaderSize(c, 4<<10)
	first, err := r.Peek(1)
	if err != nil {
		return
	}
	if first[0] == 0 {
		err = s.serveFramed(ctx, c, r)
	} else {
		err = s.serveLine(ctx, c, r)
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, errGone) {
		s.log.Warn("client disconnected", "error", err)
	}
}

// errGone ends a connection that nobody has to hear of.
var errGone = errors.New("the client has gone")

// execute carries out the jobs of all connections, one at a time.
func (s *Server) execute(ctx context.Context) {
	for {
		j, ok := s.queue.next(ctx)
		if !ok {
			return
		}
		job, cancel := context.WithTimeout(ctx, s.opts.Job)
		j(job)
		cancel()
	}
}

// guarded calls do and turns a panic in it into an error: a request may fail,
// the machine goes on.
func (s *Server) guarded(what string, do func() error) (err error) {
	begun := time.Now()
	defer func() { s.opts.Done(what, time.Since(begun), err) }()
	defer func() {
		if p := recover(); p != nil {
			// Not the value of the panic: it may quote the request.
			s.log.Error("request ended by a panic", "request", what, "type", fmt.Sprintf("%T", p))
			err = &control.Error{Code: control.CodeInternal, Message: "the runtime failed while it carried out the request", Effect: control.EffectUnknown}
		}
	}()
	return do()
}

// problem is err as the framed protocol reports it. effect is for an error that
// does not say.
func problem(err error, effect string) *control.Error {
	var e *control.Error
	if !errors.As(err, &e) {
		e = &control.Error{Code: control.CodeInternal, Message: err.Error(), Effect: effect}
	}
	short := *e
	if short.Effect == "" {
		short.Effect = effect
	}
	short.Code, short.Message = cut(e.Code, 64), cut(e.Message, maxMessage)
	return &short
}

// cut shortens text that a client gets.
func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && s[most]&0xc0 == 0x80 {
		most--
	}
	return s[:most]
}

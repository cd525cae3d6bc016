package socket

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"msb/turn"
)

// maxClients bounds the connections at once; more wait to be accepted.
const maxClients = 64

// Server serves an engine. It lives in the process that runs the sandbox.
type Server struct {
	engine *turn.Engine
	log    *slog.Logger
	ctx    context.Context
	end    context.CancelFunc
	work   sync.WaitGroup

	mu       sync.Mutex
	listener *net.UnixListener
}

// NewServer returns a server of an engine.
func NewServer(e *turn.Engine, log *slog.Logger) *Server {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Server{engine: e, log: log}
	s.ctx, s.end = context.WithCancel(context.Background())
	return s
}

// Listen makes the socket (0600). Its directory must be nobody else's. A socket
// that an earlier process left is replaced.
func Listen(path string) (*net.UnixListener, error) {
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		c.Close()
		return nil, fmt.Errorf("turn socket %s: another process serves it", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("turn socket: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("turn socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("turn socket: %w", err)
	}
	return l, nil
}

// Serve accepts clients until Close, which it then waits out; it returns nil
// after Close.
func (s *Server) Serve(l *net.UnixListener) error {
	s.mu.Lock()
	s.listener = l
	s.mu.Unlock()
	stop := context.AfterFunc(s.ctx, func() { l.Close() })
	defer stop()
	defer s.work.Wait()
	slots := make(chan struct{}, maxClients)
	for {
		select {
		case slots <- struct{}{}:
		case <-s.ctx.Done():
			return nil
		}
		c, err := l.AcceptUnix()
		if err != nil {
			<-slots
			if s.ctx.Err() != nil {
				return nil
			}
			if errors.Is(err, net.ErrClosed) {
				return fmt.Errorf("turn socket: %w", err)
			}
			// Out of descriptors, most likely: this passes.
			s.log.Warn("turn socket: accept", "err", err)
			select {
			case <-time.After(100 * time.Millisecond):
			case <-s.ctx.Done():
			}
			continue
		}
		s.work.Go(func() {
			defer func() { <-slots }()
			s.serve(c)
		})
	}
}

func (s *Server) serve(c *net.UnixConn) {
	defer c.Close()
	who, err := turn.Peer(c)
	if err != nil {
		s.log.Warn("turn socket: client refused", "err", err)
		return
	}
	newPeer(s, c, who).run()
}

// Close ends the server and its connections. Sessions and turns go on, but for
// turns with a lease.
func (s *Server) Close() {
	s.end()
	s.mu.Lock()
	if s.listener != nil {
		s.listener.Close()
	}
	s.mu.Unlock()
	s.work.Wait()
}

// Package forward carries TCP connections to ports of this host into a sandbox.
package forward

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"sync"
	"syscall"
	"time"
)

// maxConnections bounds what one port has open at a time. More wait in the kernel's queue until one of them ends.
const maxConnections = 1024

// dialTimeout bounds the connection inside the sandbox, which may have to wait for the sandbox.
const dialTimeout = 40 * time.Second

// Server forwards some ports.
type Server struct {
	// Dial connects to a port inside the sandbox.
	Dial func(ctx context.Context, port uint16) (Stream, error)
	// Report is told of every connection that was not made, or broke on the sandbox's side, and with a nil error of
	// every one that was made. Several goroutines call it.
	Report func(s Spec, err error)
}

// Listener is a port that this host listens on.
type Listener struct {
	Spec // with the port that was taken, when any was asked for
	l    *net.TCPListener
}

// Listen takes the ports of all specs, or none.
func Listen(specs []Spec) ([]*Listener, error) {
	var all []*Listener
	for _, s := range specs {
		l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(s.Host))
		if err != nil {
			Close(all)
			return nil, listenError(s, err)
		}
		s.Host = l.Addr().(*net.TCPAddr).AddrPort()
		all = append(all, &Listener{s, l})
	}
	return all, nil
}

// Close gives the ports back.
func Close(all []*Listener) {
	for _, l := range all {
		_ = l.l.Close()
	}
}

func listenError(s Spec, err error) error {
	var why string
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		why = "another program has that port; choose another one, or 0 for any that is free"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		why = "this host has no such address; `ip address` shows those it has"
	case errors.Is(err, fs.ErrPermission):
		why = "ports below 1024 are for root; choose a higher one"
	default:
		return err // which names the address
	}
	return fmt.Errorf("listen on %s: %w: %s", s.Host, syscallError(err), why)
}

// syscallError is the reason inside a net.OpError.
func syscallError(err error) error {
	var e syscall.Errno
	if errors.As(err, &e) {
		return e
	}
	return err
}

// Serve forwards until ctx ends; then it closes the ports, resets every connection and returns when nothing runs any
// more.
func (s *Server) Serve(ctx context.Context, all []*Listener) {
	defer context.AfterFunc(ctx, func() { Close(all) })()
	var work sync.WaitGroup
	for _, l := range all {
		work.Go(func() { s.accept(ctx, l) })
	}
	work.Wait()
}

func (s *Server) accept(ctx context.Context, l *Listener) {
	var work sync.WaitGroup
	defer work.Wait()
	room := make(chan struct{}, maxConnections)
	for {
		select {
		case room <- struct{}{}:
		case <-ctx.Done():
			return
		}
		c, err := l.l.AcceptTCP()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			<-room // out of descriptors, or a client that left at once: others can be served
			s.Report(l.Spec, err)
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
				return
			}
			continue
		}
		work.Go(func() {
			defer func() { <-room }()
			s.serve(ctx, l.Spec, c)
		})
	}
}

// serve carries one connection. One that the sandbox does not take is reset.
func (s *Server) serve(ctx context.Context, spec Spec, host *net.TCPConn) {
	dialling, cancel := context.WithTimeout(ctx, dialTimeout)
	guest, err := s.Dial(dialling, spec.Guest)
	cancel()
	if err != nil {
		_ = host.SetLinger(0)
		_ = host.Close()
		if ctx.Err() == nil {
			s.Report(spec, err)
		}
		return
	}
	s.Report(spec, nil)
	if err := join(ctx, host, guest); err != nil {
		s.Report(spec, err)
	}
}

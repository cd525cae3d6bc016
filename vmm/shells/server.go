package shells

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	requestTime = 10 * time.Second // for the first frame
	listTime    = 5 * time.Second  // for a list to be taken
	startTime   = 30 * time.Second // for a program to start
	quietTime   = 50 * time.Millisecond
)

// Listen makes the socket, for its owner only, in a directory that is 0700. The
// caller has removed what was at path.
func Listen(path string) (net.Listener, error) {
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("shells socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("shells socket: %w", err)
	}
	return l, nil
}

// checkPeer lets the user of the runtime and root in. The socket's mode says the
// same; a descriptor that was handed on does not.
func checkPeer(c net.Conn) error {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil // in memory
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if credErr != nil {
		return fmt.Errorf("peer credentials: %w", credErr)
	}
	if cred.Uid != 0 && int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("user %d may not use these shells", cred.Uid)
	}
	return nil
}

// Serve serves front ends until the keeper is closed, and closes l.
func (k *Keeper) Serve(l net.Listener) error {
	defer context.AfterFunc(k.ctx, func() { l.Close() })()
	var work sync.WaitGroup
	defer work.Wait()
	defer l.Close()
	for {
		c, err := l.Accept()
		switch {
		case err == nil:
		case k.ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ECONNABORTED):
			select {
			case <-time.After(quietTime):
			case <-k.ctx.Done():
			}
			continue
		default:
			return fmt.Errorf("shells socket: %w", err)
		}
		work.Go(func() { k.ServeConn(c) })
	}
}

// ServeConn serves one front end and closes c.
func (k *Keeper) ServeConn(c net.Conn) {
	defer c.Close()
	defer context.AfterFunc(k.ctx, func() { c.SetReadDeadline(time.Unix(1, 0)) })()
	err := checkPeer(c)
	if err == nil {
		err = k.serve(c)
	}
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) && k.ctx.Err() == nil {
		k.log.Warn("front end", "error", err)
	}
}

func (k *Keeper) serve(c net.Conn) error {
	k.mu.Lock()
	k.fronts++
	full := k.fronts > maxFronts
	k.mu.Unlock()
	defer func() {
		k.mu.Lock()
		k.fronts--
		k.mu.Unlock()
	}()
	_ = c.SetDeadline(time.Now().Add(requestTime))
	if full {
		return writeJSON(c, kindAnswer, failure(fmt.Errorf("%d front ends are connected; close one first", maxFronts)))
	}
	var r Request
	if err := readJSON(c, kindRequest, &r); err != nil {
		return err
	}
	switch r.Op {
	case opList:
		return writeJSON(c, kindAnswer, Answer{Shells: k.List()})
	case opWatch:
		return k.serveWatch(c)
	case opEnd:
		s, err := k.find(r.ID)
		if err != nil || r.ID == 0 {
			return writeJSON(c, kindAnswer, failure(fmt.Errorf("%w: %d", ErrNotFound, r.ID)))
		}
		s.hangUp()
		k.forget(s)
		return writeJSON(c, kindAnswer, Answer{})
	case opOpen, opAttach:
		s, err := k.shellFor(r)
		if err != nil {
			_ = c.SetDeadline(time.Now().Add(requestTime))
			return writeJSON(c, kindAnswer, failure(err))
		}
		_ = c.SetDeadline(time.Time{})
		if k.ctx.Err() != nil {
			return nil
		}
		return k.serveShell(c, s, r)
	}
	return writeJSON(c, kindAnswer, failure(fmt.Errorf("unknown request %q", r.Op)))
}

func (k *Keeper) shellFor(r Request) (*kept, error) {
	if r.Op == opAttach {
		return k.find(r.ID)
	}
	ctx, cancel := context.WithTimeout(k.ctx, startTime)
	defer cancel()
	return k.open(ctx, Spec{Argv: r.Argv, Env: r.Env, User: r.User, Cwd: r.Cwd, Rows: r.Rows, Cols: r.Cols})
}

// serveShell carries a front end of a shell.
func (k *Keeper) serveShell(c net.Conn, s *kept, r Request) error {
	e := s.attach(r.Rows, r.Cols, r.Op == opOpen)
	seen := false
	defer func() {
		s.leave(e)
		if seen {
			k.forget(s)
		}
	}()
	if err := writeJSON(c, kindAnswer, Answer{Shells: []Info{s.info()}}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(k.ctx)
	defer cancel()
	var shower sync.WaitGroup
	defer shower.Wait() // before seen is looked at
	shower.Go(func() {
		seen = s.show(e, c) // the reader below learns of a lost connection too
		cancel()
		_ = c.SetReadDeadline(time.Unix(1, 0))
	})
	err := k.readFront(ctx, c, s, e)
	s.drop(e)
	if ctx.Err() != nil {
		return nil // it was shown the end
	}
	c.Close() // the shower may be writing to somebody who does not read
	return err
}

func (k *Keeper) readFront(ctx context.Context, c net.Conn, s *kept, e *end) error {
	var buf []byte
	for {
		kind, p, err := readFrame(c, &buf)
		if err != nil {
			return err
		}
		switch kind {
		case kindInput:
			if err := s.typed(ctx, e, p); err != nil {
				return err
			}
		case kindSize:
			rows, cols, err := parseSize(p)
			if err != nil {
				return err
			}
			s.size(e, rows, cols)
		default:
			return fmt.Errorf("frame %q of a front end", kind)
		}
	}
}

// serveWatch hands on the list whenever it changes.
func (k *Keeper) serveWatch(c net.Conn) error {
	changes, stop := k.watch()
	defer stop()
	if err := writeJSON(c, kindAnswer, Answer{Shells: k.List()}); err != nil {
		return err
	}
	_ = c.SetReadDeadline(time.Time{})
	if k.ctx.Err() != nil {
		return nil
	}
	gone := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		defer close(gone)
		_, _ = c.Read(make([]byte, 1)) // it says nothing; it leaves
	})
	defer reader.Wait()
	defer c.Close()
	for {
		select {
		case <-changes:
		case <-gone:
			return nil
		case <-k.ctx.Done():
			return nil
		}
		select { // programs that change their title all the time
		case <-time.After(quietTime):
		case <-k.ctx.Done():
		}
		_ = c.SetWriteDeadline(time.Now().Add(listTime))
		if err := writeJSON(c, kindList, k.List()); err != nil {
			return err
		}
	}
}

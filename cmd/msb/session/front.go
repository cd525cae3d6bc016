package session

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"msb/agentclient"
	"msb/cmd/msb/terminal"
	"msb/vmm/shells"
)

// Term is the value of TERM for programs on this terminal in a guest.
func Term(ctx context.Context, c *agentclient.Client, s *terminal.Streams) string {
	return guestTerm(ctx, c.FS(), s.Env("TERM"))
}

// Front shows a shell that the sandbox's runtime keeps on this terminal, until the program ends or the user leaves with
// the detach keys; the shell then lives on. When it returns, the terminal is as it was and no goroutine is left.
func Front(ctx context.Context, f *shells.Front, s *terminal.Streams, keys terminal.DetachKeys) (Result, error) {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGWINCH, syscall.SIGTSTP, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT)
	defer signal.Stop(signals)
	defer f.Close()
	raw, err := s.Raw()
	if err != nil {
		return Result{Code: -1}, err
	}
	defer raw.Restore()
	input, err := s.Input()
	if err != nil {
		return Result{Code: -1}, err
	}
	defer input.Close()

	a := &front{front: f, streams: s, raw: raw, leave: make(chan struct{})}
	var in sync.WaitGroup
	in.Go(func() { a.copyIn(input, keys) })
	shown := make(chan error, 1)
	var out sync.WaitGroup
	out.Go(func() { shown <- a.copyOut() })
	res, err := a.supervise(ctx, signals, shown)
	f.Close()
	input.Stop()
	in.Wait()
	back := make(chan struct{})
	go func() { out.Wait(); close(back) }()
	select {
	case <-back:
		_, _ = io.WriteString(s.Out, f.Leave())
	case <-time.After(time.Second): // nobody reads our output: the process is about to end
	}
	return res, err
}

type front struct {
	front   *shells.Front
	streams *terminal.Streams
	raw     *terminal.Raw
	leave   chan struct{} // closed when the detach keys were typed
}

func (a *front) supervise(ctx context.Context, signals <-chan os.Signal, shown <-chan error) (Result, error) {
	for {
		select {
		case err := <-shown:
			if err != nil {
				return Result{Code: -1}, err
			}
			end, err := a.front.Result()
			if err == nil && end.Error != "" {
				err = errors.New(end.Error)
			}
			return Result{Code: end.Code, Signal: syscall.Signal(end.Signal)}, err
		case <-a.leave:
			return Result{Detached: true}, nil
		case <-ctx.Done():
			return Result{Code: -1}, ctx.Err()
		case sig := <-signals:
			switch sig {
			case syscall.SIGWINCH:
				a.resize()
			case syscall.SIGTSTP:
				_ = a.raw.Pause()
				_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
				_ = a.raw.Enter()
				a.resize()
			default: // the terminal goes away; the shell does not
				return Result{Code: -1}, &Signalled{sig.(syscall.Signal)}
			}
		}
	}
}

func (a *front) resize() {
	if rows, cols := a.streams.Size(); rows > 0 {
		_ = a.front.Resize(rows, cols) // a lost connection shows by itself
	}
}

func (a *front) copyIn(in io.Reader, keys terminal.DetachKeys) {
	scan := terminal.NewScanner(keys)
	buf := make([]byte, 64<<10)
	for {
		n, err := in.Read(buf)
		if n > 0 {
			p, detach := scan.Scan(buf[:n])
			if len(p) > 0 {
				if _, err := a.front.Write(p); err != nil {
					return
				}
			}
			if detach {
				close(a.leave)
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// copyOut draws until the program has ended. An error is one of our own output; that of a lost connection is the
// front end's result.
func (a *front) copyOut() error {
	buf := make([]byte, 64<<10)
	for {
		n, err := a.front.Read(buf)
		if n > 0 {
			if _, werr := a.streams.Out.Write(buf[:n]); werr != nil {
				return errors.Join(ErrOutput, werr)
			}
		}
		if err != nil {
			return nil
		}
	}
}

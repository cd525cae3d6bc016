// Package session puts the streams, the terminal and the signals of this process on a command that runs in a sandbox.
package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"msb/agentclient"
	"msb/cmd/msb/terminal"
)

// Options say how a command is attached.
type Options struct {
	Spec    agentclient.ExecSpec // TTY decides how; Rows, Cols and TERM are filled in
	Keys    terminal.DetachKeys  // leave a TTY session
	Timeout time.Duration        // kill the command after this long; 0 = never
	NoStdin bool                 // the command sees an empty standard input
}

// Result says how a session ended.
type Result struct {
	Code     int            // exit code of the command, -1 when a signal killed it
	Signal   syscall.Signal // the signal that killed it, as far as it is known
	Detached bool           // the user left with the detach keys
	TimedOut bool           // the command was killed by Options.Timeout
}

// ErrOutput is wrapped by the error of Run when nobody reads our output any more.
var ErrOutput = errors.New("write output")

const (
	hangupGrace = 500 * time.Millisecond // from SIGHUP (or SIGPIPE) to SIGKILL
	killGrace   = 5 * time.Second        // from SIGKILL to giving up on an answer

	// outputWindow is how much of each output is on its way here at most, in bytes.
	outputWindow = 1 << 20
	signalGrace  = time.Second // for a signal to leave
)

// forwarded are the signals that a command without a terminal gets when we get them.
var forwarded = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2}

// Run runs one command to its end on the streams io. Signals of this process reach it, its output reaches us byte by
// byte. When Run returns, the terminal is as it was and no goroutine is left.
func Run(ctx context.Context, c *agentclient.Client, s *terminal.Streams, o Options) (Result, error) {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, append([]os.Signal{syscall.SIGWINCH, syscall.SIGTSTP}, forwarded...)...)
	defer signal.Stop(signals)

	if o.Spec.TTY {
		o.Spec.Rows, o.Spec.Cols = s.Size()
		o.Spec.Env = append([]string{"TERM=" + guestTerm(ctx, c.FS(), s.Env("TERM"))}, o.Spec.Env...)
	}
	if o.Spec.Window == 0 {
		o.Spec.Window = outputWindow // what we cannot get rid of holds the command up, as a pipe would
	}
	e, err := c.Exec(ctx, o.Spec)
	if err != nil {
		return Result{Code: -1}, err
	}
	defer e.Close()

	a := &attached{streams: s, opt: o, exec: e, leave: make(chan struct{}), broken: make(chan error, 2)}
	if o.Spec.TTY && s.InTTY() {
		if a.raw, err = s.Raw(); err != nil {
			return Result{Code: -1}, err
		}
		defer a.raw.Restore()
	}
	return a.run(ctx, signals)
}

// attached is one running session.
type attached struct {
	streams *terminal.Streams
	opt     Options
	exec    *agentclient.Exec
	raw     *terminal.Raw
	leave   chan struct{} // closed when the detach keys were typed
	broken  chan error    // our output cannot be written
}

type ending struct {
	code   int
	signal syscall.Signal
	err    error
}

func (a *attached) run(ctx context.Context, signals <-chan os.Signal) (Result, error) {
	input, err := a.streams.Input()
	if err != nil {
		return Result{Code: -1}, err
	}
	var in, out sync.WaitGroup
	if a.opt.NoStdin {
		a.exec.Stdin().Close()
	} else {
		in.Go(func() { a.copyIn(input) })
	}
	out.Go(func() { a.copyOut(a.streams.Out, a.exec.Stdout()) })
	out.Go(func() { a.copyOut(a.streams.Err, a.exec.Stderr()) })
	ended := make(chan ending, 1)
	in.Go(func() {
		out.Wait()
		code, err := a.exec.Wait()
		sig, _ := a.exec.Signaled()
		ended <- ending{code, sig, err}
	})
	res, err := a.supervise(ctx, signals, ended)
	// Closing the exec ends its streams, so every goroutine comes back, but for one that waits for the reader of our
	// own output: a session that had to be given up does not wait for that one, the process is about to end.
	a.exec.Close()
	input.Stop()
	back := make(chan struct{})
	go func() { in.Wait(); close(back) }()
	select {
	case <-back:
		input.Close()
	case <-time.After(time.Second):
	}
	return res, err
}

// supervise waits for the command's end and for whatever ends the session before that.
func (a *attached) supervise(ctx context.Context, signals <-chan os.Signal, ended <-chan ending) (Result, error) {
	var res Result
	var timeout, giveUp <-chan time.Time
	if a.opt.Timeout > 0 {
		t := time.NewTimer(a.opt.Timeout)
		defer t.Stop()
		timeout = t.C
	}
	var cause error
	interrupts := 0
	end := func(sig syscall.Signal, grace time.Duration) {
		a.signal(ctx, sig)
		giveUp = time.After(grace)
	}
	done := ctx.Done()
	for {
		select {
		case e := <-ended:
			res.Code = e.code
			if e.signal != 0 { // the guest says it; else the last one sent is what is known
				res.Signal = e.signal
			}
			switch {
			case cause != nil, res.Detached, res.TimedOut:
				return res, cause
			}
			return res, e.err
		case <-a.leave:
			a.leave = nil
			res.Detached = true
			end(syscall.SIGHUP, hangupGrace)
		case err := <-a.broken:
			if cause == nil {
				cause = err
				end(syscall.SIGPIPE, hangupGrace)
			}
		case <-timeout:
			res.TimedOut = true
			end(syscall.SIGKILL, killGrace)
		case <-done:
			done = nil
			cause = ctx.Err()
			giveUp = time.After(0)
		case <-giveUp:
			res.Code = -1
			return res, cause
		case sig := <-signals:
			switch sig {
			case syscall.SIGWINCH:
				a.resize(ctx)
			case syscall.SIGTSTP:
				a.suspend(ctx)
			default:
				n := sig.(syscall.Signal)
				res.Signal = n
				if a.raw != nil && (n == syscall.SIGTERM || n == syscall.SIGHUP) {
					// The terminal goes away, so the session does.
					cause = &Signalled{n}
					end(syscall.SIGHUP, hangupGrace)
					continue
				}
				if n == syscall.SIGINT || n == syscall.SIGTERM {
					interrupts++
				}
				if interrupts >= 3 { // it does not listen, and the user insists
					cause = &Signalled{n}
					end(syscall.SIGKILL, hangupGrace)
					continue
				}
				if !a.signal(ctx, n) && n != syscall.SIGUSR1 && n != syscall.SIGUSR2 {
					cause = &Signalled{n}
					giveUp = time.After(0)
				}
			}
		}
	}
}

// signal tells whether the signal left. It does not where the command reads no
// input and the connection is full of it; the end of the connection then kills
// the command. A lost connection ends the session by itself.
func (a *attached) signal(ctx context.Context, sig syscall.Signal) bool {
	ctx, cancel := context.WithTimeout(ctx, signalGrace)
	defer cancel()
	return !errors.Is(a.exec.Signal(ctx, int(sig)), context.DeadlineExceeded)
}

// Signalled says that a signal to this process ended the session before the command did.
type Signalled struct{ Signal syscall.Signal }

func (e *Signalled) Error() string { return "session ended by " + e.Signal.String() }

func (a *attached) resize(ctx context.Context) {
	if !a.opt.Spec.TTY {
		return
	}
	if rows, cols := a.streams.Size(); rows > 0 {
		_ = a.exec.Resize(ctx, rows, cols)
	}
}

// suspend stops this process as a terminal's own Ctrl-Z would, with the terminal put right meanwhile.
func (a *attached) suspend(ctx context.Context) {
	if a.raw != nil {
		_ = a.raw.Pause()
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	if a.raw != nil {
		_ = a.raw.Enter()
	}
	a.resize(ctx)
}

func (a *attached) copyIn(in io.Reader) {
	stdin := a.exec.Stdin()
	scan := terminal.NewScanner(a.opt.Keys)
	interactive := a.raw != nil
	buf := make([]byte, 64<<10)
	for {
		n, err := in.Read(buf)
		if n > 0 {
			p, detach := buf[:n], false
			if interactive {
				p, detach = scan.Scan(p)
			}
			if len(p) > 0 {
				if _, werr := stdin.Write(p); werr != nil {
					return // the command closed its input or is gone: its exit code says the rest
				}
			}
			if detach {
				close(a.leave)
				return
			}
		}
		if err != nil {
			if a.opt.Spec.TTY && !interactive {
				_, _ = stdin.Write([]byte{4}) // a terminal's end of file is a character
			}
			stdin.Close()
			return
		}
	}
}

func (a *attached) copyOut(w io.Writer, r io.Reader) {
	dst := &output{w: w}
	if _, err := io.CopyBuffer(dst, onlyReader{r}, make([]byte, 128<<10)); err != nil && dst.err != nil {
		a.broken <- fmt.Errorf("%w: %w", ErrOutput, dst.err)
		// Whoever read it is gone; the command may still end in its own way.
		_, _ = io.Copy(io.Discard, r)
	}
}

// onlyReader hides WriteTo, so that the copy goes through our writer and its error is known.
type onlyReader struct{ io.Reader }

// output remembers why it could not write, so that it is told from a broken connection.
type output struct {
	w   io.Writer
	err error
}

func (o *output) Write(p []byte) (int, error) {
	n, err := o.w.Write(p)
	if err != nil {
		o.err = err
	}
	return n, err
}

package agentclient

import (
	"context"
	"errors"
	"io"
	"sync"
	"syscall"

	"msb/protocol/agent"
	"msb/protocol/client"
)

// ExecSpec is a command to run. Env entries are K=V and are added to the
// agent's own environment. An empty Cwd or User means the sandbox's default;
// User is NAME|UID[:GROUP|GID]. Rows and Cols are the terminal's size and
// matter with TTY only.
type ExecSpec struct {
	Cmd        string
	Args, Env  []string
	Cwd, User  string
	TTY        bool
	Rows, Cols uint16
	Rlimits    []agent.Rlimit
	// Window is how many bytes of each output may wait unread; the command
	// waits then, as it would for a full pipe, and Wait waits with it. With 0,
	// or a guest without msb.exec, unread output is spooled, see WithSpool.
	Window int
}

// Exec is a started command. Its output is taken from the connection whether
// it is read or not; see WithSpool. Safe for concurrent use; each output has
// one reader at a time.
type Exec struct {
	c              *Client
	s              *client.Stream
	stdout, stderr *inbox
	stdin          *stdin
	data           agent.Data // of the connection's reader
	window         *window    // nil: output is not held back

	started chan struct{} // closed when the command runs or never will
	done    chan struct{} // closed when the command has ended

	mu      sync.Mutex
	running bool // started was closed
	left    bool // nobody waits: kill the command as soon as it runs
	over    bool
	pid     uint32
	code    int
	err     error
	signal  syscall.Signal // that ended the command, 0 when it is not known
	core    bool
}

// SIGKILL ends a command that nobody wants any more.
const sigkill = int32(syscall.SIGKILL)

var errExecClosed = errors.New("command was given up by Close")

// Exec starts a command and returns when it runs, or an *ExecError when it
// could not be started. ctx bounds the start only: when it ends first, the
// command is killed. Close must be called when the Exec is done with, unless
// Wait has returned.
func (c *Client) Exec(ctx context.Context, spec ExecSpec) (*Exec, error) {
	e := &Exec{
		c:       c,
		stdout:  newInbox(c.cfg, c.cfg.memory),
		stderr:  newInbox(c.cfg, c.cfg.memory),
		started: make(chan struct{}),
		done:    make(chan struct{}),
		code:    -1,
	}
	e.stdin = &stdin{e: e}
	s, err := c.engine.Subscribe(e)
	if err != nil {
		return nil, err
	}
	e.s = s
	req := agent.ExecRequestPayload{
		Cmd: spec.Cmd, Args: spec.Args, Env: spec.Env, Cwd: optional(spec.Cwd), User: optional(spec.User),
		TTY: spec.TTY, Rows: spec.Rows, Cols: spec.Cols, Rlimits: spec.Rlimits,
	}
	if err := e.request(ctx, req, spec.Window); err != nil {
		s.Close()
		return nil, err
	}
	select {
	case <-e.started:
	case <-ctx.Done():
		if e.abort() {
			return nil, context.Cause(ctx)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over && e.pid == 0 && e.err != nil {
		return nil, e.err
	}
	return e, nil
}

// request asks for the command, by msb.exec when the guest has it.
func (e *Exec) request(ctx context.Context, req agent.ExecRequestPayload, size int) error {
	if !e.c.ready.Supports(agent.ExecOpen) {
		return e.c.send(ctx, e.s, client.Control, agent.ExecRequest, req)
	}
	open := agent.ExecOpenPayload{Request: req}
	if size > 0 {
		e.window = newWindow(uint64(size))
		e.stdout.memory = max(e.stdout.memory, size)
		e.stderr.memory = max(e.stderr.memory, size)
		open.Credit = &e.window.size
	}
	return e.c.send(ctx, e.s, client.Control, agent.ExecOpen, open)
}

// abort gives up a command that has not started yet, and kills it when it
// does. It returns false when it has started.
func (e *Exec) abort() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.running {
		return false
	}
	e.left = true
	e.kill()
	e.stdout.abandon(errExecClosed)
	e.stderr.abandon(errExecClosed)
	return true
}

func (e *Exec) kill() {
	e.c.post(e.s.ID(), client.Control, agent.ExecSignal, agent.ExecSignalPayload{Signal: sigkill})
}

// PID returns the guest's process id of the command.
func (e *Exec) PID() uint32 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pid
}

// Stdin returns the command's input. Its Close ends the input; on a terminal
// write the end-of-file character instead. A write after the command has
// closed its input fails with EPIPE.
func (e *Exec) Stdin() io.WriteCloser { return e.stdin }

// Stdout returns the command's output; with TTY all output is here. It reads
// until io.EOF, also after Wait.
func (e *Exec) Stdout() io.Reader { return output{e, e.stdout} }

// Stderr returns the command's error output.
func (e *Exec) Stderr() io.Reader { return output{e, e.stderr} }

// Signal sends a signal to the command's process group and returns when the
// connection has taken it. It does not say whether it arrived. A relay that
// reads no more of this connection, because the command does not read its
// input, holds the signal up too: closing the client kills the command.
func (e *Exec) Signal(ctx context.Context, sig int) error {
	select {
	case <-e.done:
		return nil
	default:
	}
	if syscall.Signal(sig) == syscall.SIGKILL {
		if err := e.window.lift(ctx, e); err != nil {
			return err
		}
	}
	p, err := e.c.packet(e.s.ID(), agent.ExecSignal, agent.ExecSignalPayload{Signal: int32(sig)})
	if err != nil {
		return err
	}
	return e.c.engine.Deliver(ctx, client.Control, p)
}

// Resize tells the command's terminal its new size.
func (e *Exec) Resize(ctx context.Context, rows, cols uint16) error {
	return e.c.send(ctx, e.s, client.Control, agent.ExecResize, agent.ExecResizePayload{Rows: rows, Cols: cols})
}

// Wait returns when the command has ended and its outputs are complete; what
// has not been read of them still can be. The code is the command's own, or -1
// when a signal killed it. An error means that the end is not known, or that
// output is missing.
func (e *Exec) Wait() (int, error) {
	<-e.done
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.code, e.err
}

// Signaled returns the signal that ended the command and whether it left a
// core, after Wait; 0 when none did or the guest does not say.
func (e *Exec) Signaled() (sig syscall.Signal, core bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.signal, e.core
}

// Done is closed when the command has ended.
func (e *Exec) Done() <-chan struct{} { return e.done }

// Close kills the command if it still runs and drops unread output.
func (e *Exec) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.giveUp(errExecClosed)
	e.stdout.abandon(errExecClosed)
	e.stderr.abandon(errExecClosed)
	return nil
}

// Frame takes what the guest sends for the command.
func (e *Exec) Frame(h client.Header, body *client.Body) {
	m, err := e.c.open(h, body)
	if err == nil && (m.t == agent.ExecStdout || m.t == agent.ExecStderr) {
		e.output(h.ID, m)
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over {
		return
	}
	if err == nil {
		err = e.message(h, m)
	}
	switch {
	case err == nil:
	case h.Terminal():
		e.finish(-1, broken(h.ID, "exec", err))
	default:
		e.giveUp(broken(h.ID, "exec", err))
	}
}

func (e *Exec) message(h client.Header, m received) error {
	switch m.t {
	case agent.ExecStarted:
		var p agent.ExecStartedPayload
		if err := agent.DecodePayload(m.p, &p); err != nil {
			return err
		}
		if e.running {
			return unexpected(h.ID, m)
		}
		e.pid = p.PID
		e.run()
		if e.left {
			e.kill()
		}
	case agent.ExecStdinError:
		var p agent.ExecStdinErrorPayload
		if err := agent.DecodePayload(m.p, &p); err != nil {
			return err
		}
		e.stdin.fail(p)
	case agent.ExecSignaled:
		var p agent.ExecSignaledPayload
		if err := agent.DecodePayload(m.p, &p); err != nil {
			return err
		}
		if p.Signal > 0 && p.Signal <= 64 {
			e.signal, e.core = syscall.Signal(p.Signal), p.Core
		}
	case agent.ExecExited:
		var p agent.ExecExitedPayload
		if err := agent.DecodePayload(m.p, &p); err != nil {
			return err
		}
		e.finish(int(p.Code), nil)
	case agent.ExecFailed:
		var p agent.ExecFailedPayload
		if err := agent.DecodePayload(m.p, &p); err != nil {
			return err
		}
		failed := &ExecError{Kind: p.Kind, Message: p.Message}
		if p.Errno != nil && *p.Errno > 0 {
			failed.Errno = syscall.Errno(*p.Errno)
		}
		if p.Stage != nil {
			failed.Stage = *p.Stage
		}
		e.finish(-1, failed)
	case agent.Error:
		e.finish(-1, agentError(h.ID, m.p))
	case 0: // a later generation's
	default:
		return unexpected(h.ID, m)
	}
	return nil
}

// output takes a piece of stdout or stderr.
func (e *Exec) output(id uint32, m received) {
	err := agent.DecodePayload(m.p, &e.data)
	if err == nil {
		err = e.window.arrived(m.t, len(e.data.Data))
	}
	if err == nil {
		in := e.stdout
		if m.t == agent.ExecStderr {
			in = e.stderr
		}
		if full := in.put(e.data.Data); full != nil {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.giveUp(full)
			return
		}
		e.data.Data = nil
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.giveUp(broken(id, "exec", err))
}

// giveUp kills a command whose guest broke the rules, or whose output is lost.
func (e *Exec) giveUp(err error) {
	if e.over {
		return
	}
	e.kill()
	e.s.Close()
	e.finish(-1, err)
}

// Lost ends the command with the connection; the relay kills it.
func (e *Exec) Lost(err *client.LostError) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.over {
		e.finish(-1, err)
	}
}

// run notes that the wait for the start is over.
func (e *Exec) run() {
	if !e.running {
		e.running = true
		close(e.started)
	}
}

// finish notes the end of the command.
func (e *Exec) finish(code int, err error) {
	e.over, e.code, e.err = true, code, err
	end := io.EOF
	if err != nil {
		end = err
	}
	e.stdout.close(end)
	e.stderr.close(end)
	e.run()
	close(e.done)
}

// output is what Stdout and Stderr return.
type output struct {
	e  *Exec
	in *inbox
}

func (o output) Read(p []byte) (int, error) {
	n, err := o.in.read(p, nil)
	if o.e.window != nil && n > 0 {
		o.e.window.consumed(o.e, o.in == o.e.stderr, n)
	}
	return n, err
}

// stdin is what Stdin returns.
type stdin struct {
	e *Exec

	writing sync.Mutex // one Write at a time keeps its pieces together
	mu      sync.Mutex
	closed  bool
	err     error // the guest's word that nobody reads
}

func (s *stdin) Write(p []byte) (n int, err error) {
	const piece = 64 << 10
	s.writing.Lock()
	defer s.writing.Unlock()
	for len(p) > 0 {
		if err := s.broken(); err != nil {
			return n, err
		}
		m := min(len(p), piece)
		err := s.e.c.sendData(until{s.e.done}, s.e.s, agent.ExecStdin, p[:m])
		if err != nil {
			if ended := s.broken(); ended != nil {
				err = ended
			}
			return n, err
		}
		n += m
		p = p[m:]
	}
	return n, nil
}

// Close sends the end of the input, after what was written.
func (s *stdin) Close() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	if closed || s.ended() {
		return nil
	}
	err := s.e.c.sendData(until{s.e.done}, s.e.s, agent.ExecStdin, nil)
	if s.ended() {
		return nil
	}
	return err
}

// broken returns why nothing can be written any more.
func (s *stdin) broken() error {
	s.mu.Lock()
	closed, err := s.closed, s.err
	s.mu.Unlock()
	switch {
	case closed:
		return io.ErrClosedPipe
	case err != nil:
		return err
	case s.ended():
		return syscall.EPIPE
	}
	return nil
}

func (s *stdin) ended() bool {
	select {
	case <-s.e.done:
		return true
	default:
		return false
	}
}

func (s *stdin) fail(p agent.ExecStdinErrorPayload) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = &StdinError{Message: p.Message, Errno: syscall.EPIPE}
	if p.Errno != nil && *p.Errno > 0 {
		s.err = &StdinError{Message: p.Message, Errno: syscall.Errno(*p.Errno)}
	}
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

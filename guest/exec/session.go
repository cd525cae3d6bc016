package exec

import (
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"msb/protocol/agent"
)

// chunk is how much output is read and sent at a time; it is also what a pipe holds.
const chunk = 64 << 10

var chunks = sync.Pool{New: func() any { return new([chunk]byte) }}

// session is one command.
type session struct {
	svc   *Service
	id    uint32
	stdin inputQueue
	ended chan struct{} // closed when nothing of the command is left here

	extended       bool       // the client speaks msb.exec
	stdout, stderr *allowance // nil: not held back

	mu      sync.Mutex
	pid     int // 0 until it runs
	over    bool
	aborted bool
	pending []unix.Signal // came before it ran
	size    *unix.Winsize // came before it ran
	pty     *os.File
	files   []io.Closer // what an abort closes under the pumps
}

func newSession(svc *Service, id uint32) *session {
	s := &session{svc: svc, id: id, ended: make(chan struct{})}
	s.stdin.init()
	return s
}

// run is the life of a command, from the request to its terminal message.
func (s *session) run(r *agent.ExecRequestPayload) {
	exit := make(chan syscall.WaitStatus, 1)
	child, err := s.start(r, exit)
	if err != nil {
		var f *failure
		if !errors.As(err, &f) {
			f = spawnFailure(r.Cmd, r.TTY, err)
		}
		s.send(agent.ExecFailed, f.message())
		return
	}
	s.send(agent.ExecStarted, agent.ExecStartedPayload{PID: uint32(child.pid)})

	var pumps sync.WaitGroup
	for _, o := range child.outputs {
		held := s.stdout
		if o.kind == agent.ExecStderr {
			held = s.stderr
		}
		pumps.Go(func() { s.pump(o.file, o.kind, held) })
	}
	var feeder sync.WaitGroup
	feeder.Go(func() { s.feed(child.stdin, r.TTY) })

	// The end is the end of both outputs and of the command itself. A background process that keeps an output open
	// keeps the session open: what it prints belongs to the client. A terminal, as after a login, ends with the command
	// that it was made for: what was printed until then is sent, and whoever still has it open is hung up.
	var status syscall.WaitStatus
	if r.TTY {
		status = <-exit
		_ = child.stdin.SetReadDeadline(time.Now())
		pumps.Wait()
	} else {
		pumps.Wait()
		status = <-exit
	}

	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	s.stdin.close()
	closeAll(child.stdin)
	feeder.Wait()
	for _, o := range child.outputs {
		closeAll(o.file)
	}
	code := int32(-1) // killed by a signal
	if status.Exited() {
		code = int32(status.ExitStatus())
	}
	if s.extended && status.Signaled() {
		s.send(agent.ExecSignaled, agent.ExecSignaledPayload{Signal: int32(status.Signal()), Core: status.CoreDump()})
	}
	s.send(agent.ExecExited, agent.ExecExitedPayload{Code: code})
}

// start spawns the command and applies what arrived before it ran.
func (s *session) start(r *agent.ExecRequestPayload, exit chan<- syscall.WaitStatus) (*child, error) {
	if s.svc.latched.Load() {
		return nil, &failure{kind: agent.ExecOther, stage: stageLatch, what: "spawn " + quote(r.Cmd), err: errLatched}
	}
	cmd, err := s.svc.resolve(r)
	if err != nil {
		return nil, err
	}
	c, err := s.svc.spawn(cmd, func(st syscall.WaitStatus) { exit <- st })
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pid = c.pid
	s.files = append(s.files, c.stdin)
	for _, o := range c.outputs {
		s.files = append(s.files, o.file)
	}
	if r.TTY {
		s.pty = c.stdin
		if s.size != nil {
			setSize(s.pty, s.size)
		}
	}
	for _, sig := range s.pending {
		_ = unix.Kill(-c.pid, sig)
	}
	if s.aborted {
		s.killLocked()
	}
	return c, nil
}

// pump sends one output until its end: end of file, EIO from a terminal that nobody has open any more, the end of the
// command that a terminal was made for, or an abort.
func (s *session) pump(f *os.File, kind agent.Type, held *allowance) {
	conn, err := f.SyscallConn()
	if err != nil {
		return
	}
	for {
		room := held.room(chunk)
		if room == 0 {
			return
		}
		buf, n, err := readChunk(conn, room, true)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			s.rest(f, conn, kind, held)
			return
		}
		if n <= 0 || !s.forward(kind, buf, n, held) {
			return
		}
	}
}

// maxRest is more than the kernel keeps of what was written to a terminal: what comes after it was written later.
const maxRest = 256 << 10

// rest sends what a terminal still holds when its command has ended.
func (s *session) rest(f *os.File, conn syscall.RawConn, kind agent.Type, held *allowance) {
	_ = f.SetReadDeadline(time.Time{})
	for left := maxRest; left > 0; {
		room := held.room(min(chunk, left))
		if room == 0 {
			return
		}
		buf, n, _ := readChunk(conn, room, false)
		if n <= 0 || !s.forward(kind, buf, n, held) {
			return
		}
		left -= n
	}
}

// forward sends n bytes of buf, which it takes.
func (s *session) forward(kind agent.Type, buf *[chunk]byte, n int, held *allowance) bool {
	held.take(n)
	s.svc.output.Add(uint64(n))
	sent := s.send(kind, agent.Data{Data: buf[:n]})
	chunks.Put(buf)
	return sent
}

// readChunk reads at most most bytes of output, and waits for some if it may. A command that prints nothing holds no
// buffer.
func readChunk(conn syscall.RawConn, most int, wait bool) (buf *[chunk]byte, n int, err error) {
	err = conn.Read(func(fd uintptr) bool {
		buf = chunks.Get().(*[chunk]byte)
		for {
			var err error
			n, err = unix.Read(int(fd), buf[:most])
			switch err {
			case unix.EINTR:
				continue
			case unix.EAGAIN:
				if wait {
					chunks.Put(buf)
					return false
				}
			case nil:
				return true
			}
			n = -1
			return true
		}
	})
	if err != nil {
		return nil, -1, err
	}
	if n <= 0 {
		chunks.Put(buf)
	}
	return buf, n, nil
}

// send queues a message unless the client is gone.
func (s *session) send(t agent.Type, payload any) bool {
	if s.gone() {
		return false
	}
	return s.svc.cfg.Out.Send(s.id, t, payload) == nil
}

func (s *session) gone() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.aborted
}

func (s *session) signal(sig unix.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.over:
	case s.pid == 0:
		if len(s.pending) < 64 {
			s.pending = append(s.pending, sig)
		}
	default:
		_ = unix.Kill(-s.pid, sig)
	}
}

func (s *session) resize(rows, cols uint16) {
	size := &unix.Winsize{Row: rows, Col: cols}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pty != nil && !s.over {
		setSize(s.pty, size)
		return
	}
	s.size = size
}

// abort kills the command and makes the rest of the session silent.
func (s *session) abort() {
	s.mu.Lock()
	s.aborted = true
	s.stdout.end()
	s.stderr.end()
	if s.pid != 0 && !s.over {
		s.killLocked()
	}
	s.mu.Unlock()
	s.stdin.close()
}

// killLocked kills the process group and closes our ends, so that a background process that left the group and keeps
// an output open keeps nothing here.
func (s *session) killLocked() {
	_ = unix.Kill(-s.pid, unix.SIGKILL)
	closeAll(s.files...)
}

package exec

import (
	"errors"
	"io"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"msb/guest/port"
	"msb/protocol/agent"
)

// inputQueue holds a command's input in order. Its bound is the transport credit that the inputs hold.
type inputQueue struct {
	mu     sync.Mutex
	ready  sync.Cond
	inputs []port.Input
	closed bool
}

func (q *inputQueue) init() { q.ready.L = &q.mu }

func (q *inputQueue) push(in port.Input) {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		in.Release()
		return
	}
	q.inputs = append(q.inputs, in)
	q.ready.Signal()
	q.mu.Unlock()
}

// pop waits for the next input; ok is false when the queue is closed.
func (q *inputQueue) pop() (in port.Input, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.inputs) == 0 && !q.closed {
		q.ready.Wait()
	}
	if q.closed {
		return port.Input{}, false
	}
	in = q.inputs[0]
	q.inputs[0] = port.Input{}
	q.inputs = q.inputs[1:]
	return in, true
}

// close drops what is queued, now and from now on.
func (q *inputQueue) close() {
	q.mu.Lock()
	dropped := q.inputs
	q.inputs, q.closed = nil, true
	q.ready.Broadcast()
	q.mu.Unlock()
	for _, in := range dropped {
		in.Release()
	}
}

// feed writes input to w until the queue is closed. In pipe mode an empty input closes w; on a terminal it is nothing.
// A write that fails is reported to the client, which goes on.
func (s *session) feed(w *os.File, tty bool) {
	for {
		in, ok := s.stdin.pop()
		if !ok {
			return
		}
		var err error
		switch {
		case len(in.Data) > 0:
			_, err = w.Write(in.Data)
		case !tty:
			_ = w.Close() // a second close is harmless: clients send it twice
		}
		in.Release()
		if err != nil && !s.gone() {
			if errors.Is(err, os.ErrClosed) {
				err = unix.EPIPE // written after the client closed it
			}
			s.send(agent.ExecStdinError, stdinError(err))
		}
	}
}

func stdinError(err error) agent.ExecStdinErrorPayload {
	p := agent.ExecStdinErrorPayload{Message: "io error: " + port.OSError(err)}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		n := int32(errno)
		p.Errno, p.ErrnoName = &n, errnoName(errno)
	}
	return p
}

// closeAll closes every file that is there.
func closeAll(files ...io.Closer) {
	for _, f := range files {
		_ = f.Close()
	}
}

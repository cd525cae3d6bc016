package agentclient

import (
	"io"
	"os"
	"sync"

	"msb/protocol/client"
)

// inbox is a stream of received bytes between the connection's reader, which
// never waits, and a user who may. What does not fit into memory is spooled.
type inbox struct {
	wake chan struct{} // cap 1: there is something to see

	mu      sync.Mutex
	mem     fifo
	memory  int // bytes before the spool is used
	file    spool
	end     error // after the last byte; nil while open
	discard bool  // the reader has gone

	reading sync.Mutex // one consumer at a time
}

func newInbox(cfg config, memory int) *inbox {
	return &inbox{
		wake:   make(chan struct{}, 1),
		memory: memory,
		file:   spool{dir: cfg.spoolDir, limit: cfg.spoolMax},
	}
}

// put takes a copy of p. An error is final and is what the reader gets after
// everything before it.
func (b *inbox) put(p []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.discard || b.end != nil || len(p) == 0 {
		return nil
	}
	if b.file.unread() == 0 && b.mem.n+len(p) <= b.memory {
		b.mem.put(p)
	} else if err := b.file.put(p); err != nil {
		b.end = err
		b.signal()
		return err
	}
	b.signal()
	return nil
}

// fill takes the rest of body into memory, whatever its size: for senders
// that are held by credit. An error of body is the connection's, of which
// every stream hears through Lost.
func (b *inbox) fill(body *client.Body) {
	for body.Len() > 0 {
		b.mu.Lock()
		if b.discard || b.end != nil {
			b.mu.Unlock()
			return
		}
		space := b.mem.space()
		b.mu.Unlock()

		n, err := body.Read(space)

		b.mu.Lock()
		if !b.discard {
			b.mem.commit(n)
		}
		b.signal()
		b.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// close ends the stream after what is in it. The first end counts.
func (b *inbox) close(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.end == nil {
		b.end = err
	}
	b.signal()
}

// abandon is for a reader that goes away: err is what later reads get.
func (b *inbox) abandon(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.discard, b.end = true, err
	b.mem.clear()
	if b.reading.TryLock() {
		b.file.close()
		b.reading.Unlock()
	}
	b.signal()
}

// unread returns how many bytes wait.
func (b *inbox) unread() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return int64(b.mem.n) + b.file.unread()
}

func (b *inbox) signal() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// read fills p with what is there, waiting for at least one byte, the end, or
// stop.
func (b *inbox) read(p []byte, stop <-chan struct{}) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		n, err := b.take(p)
		if n > 0 || err != nil {
			return n, err
		}
		select {
		case <-b.wake:
		case <-stop:
			return 0, os.ErrDeadlineExceeded
		}
	}
}

// take is read without waiting; it returns 0 and no error when nothing is there.
func (b *inbox) take(p []byte) (int, error) {
	b.reading.Lock()
	defer b.reading.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.discard {
		b.file.close()
		b.signal()
		return 0, b.end
	}
	n := 0
	for n < len(p) && b.mem.n > 0 {
		m := copy(p[n:], b.mem.peek())
		b.mem.discard(m)
		n += m
	}
	if want := min(int64(len(p)-n), b.file.unread()); n == 0 && want > 0 {
		m, err := b.takeFile(p[:want])
		if err != nil {
			return 0, err
		}
		n = m
	}
	if b.mem.n > 0 || b.file.unread() > 0 || b.end != nil {
		b.signal() // for another reader
	}
	if n == 0 && b.end != nil {
		b.file.close()
		return 0, b.end
	}
	return n, nil
}

// takeFile reads from the spool without holding up the producer.
func (b *inbox) takeFile(p []byte) (int, error) {
	f, at := b.file.f, b.file.r
	b.mu.Unlock()
	n, err := f.ReadAt(p, at)
	b.mu.Lock()
	if b.discard {
		b.file.close()
		return 0, b.end
	}
	if err != nil && (err != io.EOF || n == 0) {
		b.end = err
		return 0, err
	}
	b.file.took(n)
	return n, nil
}

// view calls use with what lies together in memory, without copying, and then
// takes it away. It returns 0 when nothing is there.
func (b *inbox) view(use func([]byte) error) (int, error) {
	b.reading.Lock()
	defer b.reading.Unlock()
	b.mu.Lock()
	p := b.mem.peek()
	if len(p) == 0 {
		defer b.mu.Unlock()
		return 0, b.end
	}
	b.mu.Unlock()
	err := use(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.discard {
		return len(p), b.end
	}
	b.mem.discard(len(p))
	return len(p), err
}

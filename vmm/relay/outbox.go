package relay

import (
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// outboxBytes is what may wait for one client: more than the window of a bulk operation, so that one
	// that is read slowly never stops the guest's port.
	outboxBytes = 16 << 20
	// outboxFrames bounds the same in frames.
	outboxFrames = 16384
	// outboxTotal is what may wait for all clients before each is held to outboxFloor.
	outboxTotal = 256 << 20
	outboxFloor = 5 << 20
	// batchBytes is how much small frames are joined into for one write.
	batchBytes = 64 << 10
	smallFrame = 16 << 10
)

// outbox is what waits to be written to one client.
type outbox struct {
	mu     sync.Mutex
	change sync.Cond // pushed, popped or closed
	q      fifo
	closed bool
	total  *atomic.Int64 // bytes in all outboxes
	taken  int           // bytes the writer holds
}

func newOutbox(total *atomic.Int64) *outbox {
	o := &outbox{total: total}
	o.change.L = &o.mu
	return o
}

// waitRoom waits until size more bytes may be pushed, or the outbox is closed.
func (o *outbox) waitRoom(size int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for !o.closed && o.full(size) {
		o.change.Wait()
	}
}

func (o *outbox) full(size int) bool {
	waiting := o.q.bytes + o.taken
	if waiting == 0 {
		return false // a frame always fits into an empty outbox
	}
	limit := outboxBytes
	if o.total.Load() > outboxTotal {
		limit = outboxFloor
	}
	return waiting+size > limit || o.q.len() >= outboxFrames
}

// push queues a packet whatever the limit (waitRoom is the limit); the outbox owns it from here.
func (o *outbox) push(p *packet) {
	o.mu.Lock()
	if o.closed {
		o.mu.Unlock()
		p.free()
		return
	}
	o.q.push(p)
	o.total.Add(int64(p.size))
	o.change.Broadcast()
	o.mu.Unlock()
}

// take waits for packets and moves a batch of them to dst; none means the end.
func (o *outbox) take(dst []*packet) []*packet {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.q.len() == 0 && !o.closed {
		o.change.Wait()
	}
	if o.closed {
		return dst
	}
	for o.q.len() > 0 && len(dst) < cap(dst) && (o.taken == 0 || o.taken+o.q.peek().size <= batchBytes) {
		p := o.q.pop()
		o.taken += p.size
		dst = append(dst, p)
	}
	return dst
}

// wrote gives back the room of the packets taken last.
func (o *outbox) wrote() {
	o.mu.Lock()
	o.total.Add(int64(-o.taken))
	o.taken = 0
	o.change.Broadcast()
	o.mu.Unlock()
}

// close drops what waits and ends the writer.
func (o *outbox) close() {
	o.mu.Lock()
	o.closed = true
	o.total.Add(int64(-o.q.bytes))
	o.q.clear()
	o.change.Broadcast()
	o.mu.Unlock()
}

// errStalled is why a client that does not read is disconnected.
var errStalled = errors.New("no read progress")

// run writes to the client until the outbox ends. A client that takes no byte for stall is an error.
func (o *outbox) run(conn net.Conn, stall time.Duration) error {
	packets := make([]*packet, 0, 64)
	batch := make([]byte, 0, batchBytes+smallFrame)
	for {
		packets = o.take(packets[:0])
		if len(packets) == 0 {
			return nil
		}
		var err error
		for _, p := range packets {
			if err == nil {
				if p.size <= smallFrame && len(packets) > 1 {
					batch = append(batch, p.wire()...)
				} else {
					if err = writeAll(conn, batch, stall); err == nil {
						err = writeAll(conn, p.wire(), stall)
					}
					batch = batch[:0]
				}
			}
			p.free()
		}
		if err == nil {
			err = writeAll(conn, batch, stall)
		}
		batch = batch[:0]
		o.wrote()
		if err != nil {
			return err
		}
	}
}

// writeAll writes p as long as the reader makes progress.
func writeAll(conn net.Conn, p []byte, stall time.Duration) error {
	for len(p) > 0 {
		if err := conn.SetWriteDeadline(time.Now().Add(stall)); err != nil {
			return err
		}
		n, err := conn.Write(p)
		p = p[n:]
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && n > 0:
		case errors.Is(err, os.ErrDeadlineExceeded):
			return errStalled
		case err != nil:
			return err
		}
	}
	return nil
}

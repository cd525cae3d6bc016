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
	// outboxBytes is what may wait for one client: more than the usual window of a bulk operation, so that one
	// that is read slowly does not stop the guest's port. Beyond, the port waits for the client.
	outboxBytes = 16 << 20
	// outboxFrames bounds the same in frames.
	outboxFrames = 16384
	// outboxTotal is what may wait for all clients before each is held to outboxFloor.
	outboxTotal = 256 << 20
	outboxFloor = 5 << 20
	// batchBytes is how much small frames are joined into for one write.
	batchBytes = 64 << 10
	smallFrame = 16 << 10
	// passingFrame is the size up to which a frame may pass those of other operations.
	passingFrame = 4 << 10
)

// outbox is what waits to be written to one client. Small frames of operations that have nothing in front of them pass
// the others: an answer to a ping does not wait behind megabytes of a file.
type outbox struct {
	mu     sync.Mutex
	change sync.Cond // pushed, popped or closed
	first  fifo
	q      fifo
	behind map[uint32]int // by id, what waits in q
	closed bool
	total  *atomic.Int64 // bytes in all outboxes
	taken  int           // bytes the writer holds
}

func newOutbox(total *atomic.Int64) *outbox {
	o := &outbox{total: total, behind: map[uint32]int{}}
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
	waiting := o.first.bytes + o.q.bytes + o.taken
	if waiting == 0 {
		return false // a frame always fits into an empty outbox
	}
	limit := outboxBytes
	if o.total.Load() > outboxTotal {
		limit = outboxFloor
	}
	return waiting+size > limit || o.first.len()+o.q.len() >= outboxFrames
}

// push queues a frame whatever the limit (waitRoom is the limit); the outbox owns it from here.
func (o *outbox) push(p *packet) {
	o.mu.Lock()
	defer o.mu.Unlock()
	q := &o.q
	if id := p.id(); p.size <= passingFrame && !p.isBulk() && o.behind[id] == 0 {
		q = &o.first
	} else if !o.closed {
		o.behind[id]++
	}
	o.pushTo(q, p)
}

// pushRaw queues bytes that are no frame, before everything that has not been sent.
func (o *outbox) pushRaw(b []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pushTo(&o.first, newPacket(b))
}

func (o *outbox) pushTo(q *fifo, p *packet) {
	if o.closed {
		p.free()
		return
	}
	q.push(p)
	o.total.Add(int64(p.size))
	o.change.Broadcast()
}

// take waits for packets and moves a batch of them to dst; none means the end.
func (o *outbox) take(dst []*packet) []*packet {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.first.len()+o.q.len() == 0 && !o.closed {
		o.change.Wait()
	}
	if o.closed {
		return dst
	}
	add := func(p *packet) {
		o.taken += p.size
		dst = append(dst, p)
	}
	for o.first.len() > 0 && len(dst) < cap(dst)-1 && o.taken < batchBytes/2 {
		add(o.first.pop())
	}
	// One of the others each time, so that they are never passed for ever.
	for n := 0; o.q.len() > 0 && len(dst) < cap(dst) && (n == 0 || o.taken+o.q.peek().size <= batchBytes); n++ {
		left(o.behind, o.q.peek().id())
		add(o.q.pop())
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
	o.total.Add(int64(-o.first.bytes - o.q.bytes))
	o.first.clear()
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

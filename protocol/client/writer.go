package client

import (
	"context"
	"io"
	"net"
	"sync"
)

// Lane orders what waits for the one writer. Control passes data, so that a
// ping or a signal does not wait behind queued bulk. Frames of one stream keep
// their order within a lane only.
type Lane uint8

const (
	Control Lane = iota
	Data
	lanes
)

// Bounds of what may wait in a lane, in bytes. One packet is always admitted
// into an empty lane, so the real bound is this or one packet.
const (
	controlQueue = 1 << 20
	dataQueue    = 1 << 20
	batchBytes   = 256 << 10 // of data in one write call
	batchPackets = 64
)

// writer is the one writer of a connection.
type writer struct {
	dst  io.Writer
	wake chan struct{} // cap 1: something was queued, or err was set

	mu   sync.Mutex
	err  error // why nothing is accepted any more
	lane [lanes]lane

	// used by the writing goroutine alone
	batch []*Packet
	iov   [batchPackets][]byte
	bufs  net.Buffers
}

type lane struct {
	limit, queued      int // bytes, those being written included
	writing            int // bytes of the batch that is being written
	head, tail         *Packet
	waitHead, waitTail *waiter
}

// waiter is a sender under back-pressure.
type waiter struct {
	p          *Packet
	admitted   chan error // cap 1
	prev, next *waiter
	waiting    bool
}

var waiters = sync.Pool{New: func() any { return &waiter{admitted: make(chan error, 1)} }}

func newWriter(dst io.Writer) *writer {
	w := &writer{dst: dst, wake: make(chan struct{}, 1)}
	w.lane[Control].limit = controlQueue
	w.lane[Data].limit = dataQueue
	return w
}

// enqueue takes p over. It waits while the lane is full; when ctx ends first,
// nothing of p is sent.
func (w *writer) enqueue(ctx context.Context, ln Lane, p *Packet) error {
	if err := ctx.Err(); err != nil {
		p.Free()
		return context.Cause(ctx)
	}
	w.mu.Lock()
	if w.err != nil {
		err := w.err
		w.mu.Unlock()
		p.Free()
		return err
	}
	l := &w.lane[ln]
	if l.waitHead == nil && l.admits(p) {
		l.push(p)
		w.mu.Unlock()
		w.signal()
		return nil
	}
	wt := waiters.Get().(*waiter)
	l.wait(wt, p)
	w.mu.Unlock()

	select {
	case err := <-wt.admitted:
		waiters.Put(wt)
		return err
	case <-ctx.Done():
	}
	w.mu.Lock()
	if wt.waiting {
		l.leave(wt)
		wt.p = nil
		w.mu.Unlock()
		waiters.Put(wt)
		p.Free()
		return context.Cause(ctx)
	}
	w.mu.Unlock()
	err := <-wt.admitted // admitted at the same moment: it is on its way
	waiters.Put(wt)
	return err
}

// post queues p without waiting, above the lane's bound up to twice as much.
// It reports whether p was taken.
func (w *writer) post(ln Lane, p *Packet) bool {
	w.mu.Lock()
	l := &w.lane[ln]
	if w.err != nil || l.queued+len(p.B) > 2*l.limit {
		w.mu.Unlock()
		p.Free()
		return false
	}
	l.push(p)
	w.mu.Unlock()
	w.signal()
	return true
}

// run writes until close was called or a write fails, whose error it returns.
func (w *writer) run() error {
	for {
		if !w.take() {
			w.mu.Lock()
			err := w.err
			w.mu.Unlock()
			if err != nil {
				return nil
			}
			<-w.wake
			continue
		}
		if err := w.flush(); err != nil {
			w.close(err)
			w.done(err)
			return err
		}
		w.done(nil)
	}
}

// take moves the next packets to the batch: all control first, then data up
// to batchBytes.
func (w *writer) take() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	size := 0
	for i := range w.lane {
		l := &w.lane[i]
		for l.head != nil && len(w.batch) < batchPackets && (size == 0 || size+len(l.head.B) <= batchBytes) {
			p := l.head
			l.head, p.next = p.next, nil
			if l.head == nil {
				l.tail = nil
			}
			size += len(p.B)
			l.inFlight(p)
			w.batch = append(w.batch, p)
		}
	}
	return len(w.batch) > 0
}

func (w *writer) flush() error {
	if len(w.batch) == 1 {
		_, err := w.dst.Write(w.batch[0].B)
		return err
	}
	for i, p := range w.batch {
		w.iov[i] = p.B
	}
	w.bufs = w.iov[:len(w.batch)]
	_, err := w.bufs.WriteTo(w.dst)
	clear(w.iov[:len(w.batch)])
	return err
}

// done gives the batch's room back and admits who waits for it.
func (w *writer) done(err error) {
	w.mu.Lock()
	for i := range w.lane {
		w.lane[i].settle()
	}
	w.mu.Unlock()
	for i, p := range w.batch {
		if p.written != nil {
			p.written <- err
		}
		p.Free()
		w.batch[i] = nil
	}
	w.batch = w.batch[:0]
}

// close refuses everything from now on and drops what is queued.
func (w *writer) close(err error) {
	w.mu.Lock()
	if w.err == nil {
		w.err = err
		for i := range w.lane {
			w.lane[i].drop(err)
		}
	}
	w.mu.Unlock()
	w.signal()
}

func (w *writer) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

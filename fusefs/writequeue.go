package fusefs

import (
	"context"
	"io"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

const (
	chunkSize      = 1 << 20  // largest piece of data handled at once
	nodeDirtyLimit = 16 << 20 // bytes of one file that wait for the guest
	dirtyLimit     = 64 << 20 // bytes of all files that do
	smallWrite     = 64 << 10 // sent in one request of its own
)

// sink is an open file of the guest that data is written to.
type sink interface {
	writeAt(ctx context.Context, p []byte, off int64) error
	upload(ctx context.Context, r io.Reader, off int64) error
	// whole tells whether writeAt is the better way for large pieces too.
	whole() bool
	// fail notes that data could not be stored, failure returns it.
	fail(error)
	failure() error
	// stored is called after data has arrived, dropped when it never will.
	stored()
	dropped()
}

// writeQueue holds the data written to one file until the guest has it. One
// goroutine sends it in the order it was written: the first bytes soon, and
// what came in the meantime as one stream, so that a fast writer makes long
// streams and a slow one no delay. A new reader of the file, a question for its
// attributes, fsync and close wait for it (drain).
type writeQueue struct {
	mu      sync.Mutex
	pieces  []*piece
	added   uint64        // number of the last piece
	done    uint64        // number of the last piece that the guest has or refused
	wanted  uint64        // somebody waits for pieces up to this one
	running bool          // a goroutine sends, or steal has taken what there was
	start   func()        // starts the sender; called with mu held
	cork    *time.Timer   // starts it a moment after a small write; nil: not set
	moved   chan struct{} // closed when done moves
	room    *semaphore.Weighted
}

// piece is a contiguous part of a file, written through one open file.
type piece struct {
	seq uint64
	to  sink
	off int64
	buf []byte
}

var chunkPool = sync.Pool{New: func() any { return new([chunkSize]byte) }}

// newPiece copies data; large ones into a pooled buffer.
func newPiece(to sink, off int64, data []byte) *piece {
	p := &piece{to: to, off: off}
	if len(data) > chunkSize/2 && len(data) <= chunkSize {
		p.buf = append(chunkPool.Get().(*[chunkSize]byte)[:0], data...)
	} else {
		p.buf = append([]byte(nil), data...)
	}
	return p
}

// grow appends data. A piece that outgrows its memory is likely to become a
// large one.
func (p *piece) grow(data []byte) {
	if len(p.buf)+len(data) > max(cap(p.buf), smallWrite) && cap(p.buf) < chunkSize {
		p.buf = append(chunkPool.Get().(*[chunkSize]byte)[:0], p.buf...)
	}
	p.buf = append(p.buf, data...)
}

func (p *piece) end() int64 { return p.off + int64(len(p.buf)) }

func (p *piece) release() {
	if cap(p.buf) == chunkSize {
		chunkPool.Put((*[chunkSize]byte)(p.buf[:chunkSize]))
	}
	p.buf = nil
}

// enqueue queues data for a file at off. It waits while too much is queued already.
func (s *base) enqueue(ctx context.Context, q *writeQueue, to sink, off int64, data []byte) error {
	q.mu.Lock()
	if q.start == nil {
		q.start = func() {
			if q.cork != nil {
				q.cork.Stop()
				q.cork = nil
			}
			if !q.running && len(q.pieces) > 0 {
				q.running = s.spawn(func() { s.send(q) })
			}
		}
	}
	if q.room == nil {
		q.room = semaphore.NewWeighted(nodeDirtyLimit)
	}
	q.mu.Unlock()
	size := int64(len(data))
	if err := q.room.Acquire(ctx, size); err != nil {
		return err
	}
	if err := s.dirty.Acquire(ctx, size); err != nil {
		q.room.Release(size)
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := len(q.pieces); n > 0 {
		if p := q.pieces[n-1]; p.to == to && p.end() == off && len(p.buf)+len(data) <= chunkSize {
			p.grow(data)
			q.added++
			p.seq = q.added
			if len(p.buf) > smallWrite {
				q.start()
			}
			return nil
		}
	}
	q.added++
	p := newPiece(to, off, data)
	p.seq = q.added
	q.pieces = append(q.pieces, p)
	switch {
	case len(q.pieces) > 1 || len(p.buf) > smallWrite:
		q.start()
	case q.cork == nil && !q.running:
		q.cork = time.AfterFunc(corkedFor, func() {
			q.mu.Lock()
			defer q.mu.Unlock()
			q.start()
		})
	}
	return nil
}

// corkedFor is how long a small write waits for what it can travel with: more of
// the file, a change of attributes or the close.
const corkedFor = 2 * time.Millisecond

// steal takes the data that waits, when it is one small piece and nothing is
// under way, for a request of the caller's, who calls finish after it.
func (q *writeQueue) steal() *piece {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.running || len(q.pieces) != 1 || len(q.pieces[0].buf) > smallWrite {
		return nil
	}
	if q.cork != nil {
		q.cork.Stop()
		q.cork = nil
	}
	p := q.pieces[0]
	q.pieces, q.running = nil, true
	return p
}

// finish says what became of a stolen piece.
func (s *base) finish(q *writeQueue, p *piece, err error) {
	size := int64(len(p.buf))
	p.release()
	s.dirty.Release(size)
	q.room.Release(size)
	s.settle(q, p.to, p.seq, err)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.running = false
	q.start()
}

// settle notes that everything up to a piece is in the guest or has failed.
func (s *base) settle(q *writeQueue, to sink, seq uint64, err error) {
	if err != nil {
		to.fail(err)
		s.log.Warn("written data could not be stored in the guest", "error", err)
		to.dropped()
	}
	to.stored()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.done = max(q.done, seq)
	if q.moved != nil {
		close(q.moved)
		q.moved = nil
	}
}

// drain waits until everything queued so far is in the guest or has failed.
func (q *writeQueue) drain(ctx context.Context) error {
	q.mu.Lock()
	target := q.added
	q.wanted = max(q.wanted, target)
	if q.done < target {
		q.start()
	}
	for q.done < target {
		if q.moved == nil {
			q.moved = make(chan struct{})
		}
		moved := q.moved
		q.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
		q.mu.Lock()
	}
	q.mu.Unlock()
	return nil
}

// idle tells whether nothing waits or is under way.
func (q *writeQueue) idle() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.done == q.added
}

// send works until the queue is empty.
func (s *base) send(q *writeQueue) {
	for {
		run := s.nextRun(q)
		if run == nil {
			return
		}
		err := run.send()
		if err != nil {
			run.discard()
		}
		s.settle(q, run.to, run.seq, err)
	}
}

// writeRun is one write operation: the pieces of one open file that follow each
// other without a gap, read by the operation as a stream while more arrive.
type writeRun struct {
	s     *base
	q     *writeQueue
	to    sink
	off   int64
	cur   *piece
	at    int    // bytes of cur already read
	next  int64  // file offset that the next piece must have
	seq   uint64 // last piece taken
	alive *time.Timer
}

// nextRun takes the first piece, or ends the sender.
func (s *base) nextRun(q *writeQueue) *writeRun {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.pieces) == 0 {
		q.running = false
		q.pieces = nil
		return nil
	}
	p := q.pieces[0]
	r := &writeRun{s: s, q: q, to: p.to, off: p.off, next: p.off}
	r.takeLocked()
	return r
}

// takeLocked makes the first piece the current one.
func (r *writeRun) takeLocked() {
	r.cur, r.at = r.q.pieces[0], 0
	r.q.pieces[0] = nil
	r.q.pieces = r.q.pieces[1:]
	r.seq, r.next = r.cur.seq, r.cur.end()
}

func (r *writeRun) send() error {
	ctx, end := r.s.bounded(nil, r.s.opts.DataTimeout)
	defer end()
	if err := r.to.failure(); err != nil {
		return err // later data of a stream that already broke
	}
	if err := r.s.bulk.Acquire(ctx, 1); err != nil {
		return err
	}
	defer r.s.bulk.Release(1)
	if len(r.cur.buf) <= smallWrite || r.to.whole() {
		err := r.to.writeAt(ctx, r.cur.buf, r.off)
		r.free()
		return err
	}
	// A stream has no end of its own: it is bounded by its progress.
	end()
	ctx, stop := context.WithCancel(r.s.ctx)
	defer stop()
	r.alive = time.AfterFunc(r.s.opts.DataTimeout, stop)
	defer r.alive.Stop()
	return r.to.upload(ctx, r, r.off)
}

// Read hands the data to the operation. It ends the stream when the queue runs
// dry, when the next piece belongs elsewhere, and when somebody waits.
func (r *writeRun) Read(p []byte) (int, error) {
	if r.cur == nil && !r.advance() {
		return 0, io.EOF
	}
	r.alive.Reset(r.s.opts.DataTimeout)
	n := copy(p, r.cur.buf[r.at:])
	r.at += n
	if r.at == len(r.cur.buf) {
		r.free()
	}
	return n, nil
}

func (r *writeRun) advance() bool {
	q := r.q
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.pieces) == 0 || q.done < q.wanted && q.wanted <= r.seq {
		return false
	}
	if p := q.pieces[0]; p.to != r.to || p.off != r.next {
		return false
	}
	r.takeLocked()
	return true
}

// free gives the current piece's memory back.
func (r *writeRun) free() {
	size := int64(len(r.cur.buf))
	r.cur.release()
	r.cur = nil
	r.s.dirty.Release(size)
	r.q.room.Release(size)
}

// discard drops what the failed file has queued.
func (r *writeRun) discard() {
	if r.cur != nil {
		r.free()
	}
	q := r.q
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.pieces) > 0 && q.pieces[0].to == r.to {
		r.takeLocked()
		r.free()
	}
}

// small tells whether steal would take something.
func (q *writeQueue) small() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return !q.running && len(q.pieces) == 1 && len(q.pieces[0].buf) <= smallWrite
}

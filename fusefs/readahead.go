package fusefs

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

const (
	firstWindow = 512 << 10 // read ahead of a reader that has just begun
	lastWindow  = 8 << 20   // and of one that goes on
	smallChunk  = 256 << 10
	aheadLimit  = 64 << 20  // bytes held for all files
	reorder     = 2 << 20   // how late a request of a sequential reader may come: the kernel sends several at once
	adjacent    = 256 << 10 // how near two requests are that make a reader sequential
)

// source is an open file of the guest that is read.
type source interface {
	// readAt reads into buf; fewer bytes are the end of the file.
	readAt(ctx context.Context, buf []byte, off int64) (int, error)
	// knownSize is how long the file was when the guest was asked last, and
	// whether that still holds as far as this side knows.
	knownSize() (int64, bool)
}

// readAhead fetches what a sequential reader will want. The kernel asks for
// 128 KiB at a time, and only root can raise that; one request after another of
// this size would leave the link idle most of the time. Data fetched ahead is
// used for AttrTimeout, 1 s at most.
type readAhead struct {
	s      *base
	src    source
	ctx    context.Context // ends with the handle
	cancel context.CancelFunc

	mu     sync.Mutex
	next   int64 // where the next request of a sequential reader begins
	window int64 // bytes to be ahead; 0: no sequential reader
	chunks []*chunk
}

// chunk is one fetched piece of a file. Its memory goes back to the pool when
// the window and all answers that point into it have let go of it.
type chunk struct {
	s      *base
	off    int64
	buf    []byte
	refs   atomic.Int32
	served int64         // bytes handed out; guarded by readAhead.mu
	done   chan struct{} // closed when n, err and at are set
	n      int
	err    error
	at     time.Time
}

func (c *chunk) end() int64 { return c.off + int64(len(c.buf)) }

func (c *chunk) unref() {
	if c.refs.Add(-1) == 0 {
		c.s.ahead.Add(-int64(len(c.buf)))
		if len(c.buf) == chunkSize {
			chunkPool.Put((*[chunkSize]byte)(c.buf))
		}
	}
}

func (r *readAhead) init(s *base, src source) {
	r.s, r.src = s, src
	r.ctx, r.cancel = context.WithCancel(s.ctx)
	s.readersMu.Lock()
	s.readers[r] = struct{}{}
	s.readersMu.Unlock()
}

// drop forgets what was fetched, also what is still on its way.
func (r *readAhead) drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.chunks {
		c.unref()
	}
	r.chunks = nil
}

func (r *readAhead) close() {
	r.s.readersMu.Lock()
	delete(r.s.readers, r)
	r.s.readersMu.Unlock()
	r.cancel()
	r.drop()
}

// read answers one request for len(buf) bytes at off, from the window where it
// can and into buf where not. Fewer bytes are the end of the file.
func (r *readAhead) read(ctx context.Context, off int64, buf []byte) (fuse.ReadResult, error) {
	res := &readResult{}
	at, end := off, off+int64(len(buf))
	failed := false
	for at < end {
		var c *chunk
		if !failed {
			c = r.lookup(off, at, end)
		}
		if c == nil {
			n, err := r.src.readAt(ctx, buf[at-off:], at)
			if err != nil {
				res.Done()
				return nil, err
			}
			res.add(buf[at-off:][:n], nil)
			break
		}
		select {
		case <-c.done:
		case <-ctx.Done():
			c.unref()
			res.Done()
			return nil, ctx.Err()
		}
		have := min(c.off+int64(c.n), end) - at
		if c.err != nil || have <= 0 {
			// What failed ahead may work now, and what was the end of the
			// file then may not be it now.
			c.unref()
			r.discard(c)
			failed = true
			continue
		}
		from := at - c.off
		res.add(c.buf[from:from+have], c)
		at += have
		if c.off+int64(c.n) < c.end() && at < end {
			break // the end of the file
		}
	}
	if res.size == 0 {
		res.Done()
		return fuse.ReadResultData(nil), nil
	}
	return res, nil
}

// lookup returns the chunk that holds offset at, with a reference, and keeps
// the window moving. start is where the request began.
func (r *readAhead) lookup(start, at, end int64) *chunk {
	r.mu.Lock()
	defer r.mu.Unlock()
	if at == start {
		r.observe(start, end)
	}
	keep := r.chunks[:0]
	var hit *chunk
	for _, c := range r.chunks {
		if c.stale(r.s.aheadTTL()) || c.end()+reorder < start && r.window > 0 {
			c.unref()
			continue
		}
		if at >= c.off && at < c.end() && hit == nil {
			hit = c
			c.refs.Add(1)
			c.served += min(end, c.end()) - at
			if c.served >= int64(len(c.buf)) {
				c.unref() // nobody will ask again
				continue
			}
		}
		keep = append(keep, c)
	}
	clear(r.chunks[len(keep):])
	r.chunks = keep
	if r.window > 0 {
		from := end
		if hit == nil {
			from = at
		}
		if fresh := r.fill(from, end); hit == nil && fresh != nil && at >= fresh.off && at < fresh.end() {
			fresh.refs.Add(1)
			fresh.served += min(end, fresh.end()) - at
			hit = fresh
		}
	}
	return hit
}

// observe decides whether the reader is sequential.
func (r *readAhead) observe(start, end int64) {
	reach := int64(adjacent)
	if r.window > 0 {
		reach = reorder
	}
	near := start >= r.next-reach && start <= r.next+reach
	switch {
	case start == 0 && r.next == 0 || near && r.window == 0 && r.next > 0:
		r.window = firstWindow
	case near:
		if start >= r.next {
			r.window = min(r.window*2, lastWindow)
		}
	default:
		r.window = 0
		for _, c := range r.chunks {
			c.unref()
		}
		r.chunks = nil
		r.next = end
	}
	r.next = max(r.next, end)
}

// fill starts fetching up to the window's end, from the first offset at or
// after from that is not covered. It returns the first chunk that it started.
func (r *readAhead) fill(from, end int64) (first *chunk) {
	size, ok := r.src.knownSize()
	if !ok || r.s.aheadTTL() == 0 {
		return nil
	}
	for _, c := range r.chunks {
		from = max(from, c.end())
	}
	if size <= end && from < end {
		return nil // one request reads it all
	}
	limit := min(end+r.window, size)
	for from < limit {
		length := int64(smallChunk)
		if r.window > 2*firstWindow {
			length = chunkSize
		}
		if end+r.window-from < length && first != nil {
			break // not worth a request yet
		}
		length = min(length, (size-from)/4096*4096+4096) // ends behind the file
		c := r.s.newChunk(from, length)
		if c == nil {
			break // too much is held already
		}
		r.chunks = append(r.chunks, c)
		if first == nil {
			first = c
		}
		c.refs.Add(1)
		if !r.s.spawn(func() { r.fetch(c) }) {
			c.err = context.Canceled
			close(c.done)
			c.unref()
			break
		}
		from = c.end()
	}
	return first
}

func (s *base) newChunk(off, length int64) *chunk {
	if s.ahead.Add(length) > aheadLimit {
		s.ahead.Add(-length)
		s.sweep()
		return nil
	}
	c := &chunk{s: s, off: off, done: make(chan struct{})}
	if length == chunkSize {
		c.buf = chunkPool.Get().(*[chunkSize]byte)[:]
	} else {
		c.buf = make([]byte, length)
	}
	c.refs.Store(1)
	return c
}

// aheadTTL is how old data fetched ahead may be when it is handed out.
func (s *base) aheadTTL() time.Duration { return min(s.opts.AttrTimeout, time.Second) }

// sweep frees what idle readers hold and may not use any more.
func (s *base) sweep() {
	s.readersMu.Lock()
	defer s.readersMu.Unlock()
	for r := range s.readers {
		if !r.mu.TryLock() { // busy, or the caller's own
			continue
		}
		r.chunks = slices.DeleteFunc(r.chunks, func(c *chunk) bool {
			old := c.stale(s.aheadTTL())
			if old {
				c.unref()
			}
			return old
		})
		r.mu.Unlock()
	}
}

func (c *chunk) stale(ttl time.Duration) bool {
	select {
	case <-c.done:
		return c.err != nil || time.Since(c.at) > ttl
	default:
		return false
	}
}

func (r *readAhead) fetch(c *chunk) {
	defer c.unref()
	ctx, stop := context.WithTimeout(r.ctx, r.s.opts.DataTimeout)
	defer stop()
	c.n, c.err = r.src.readAt(ctx, c.buf, c.off)
	c.at = time.Now()
	close(c.done)
}

// discard takes one chunk out of the window.
func (r *readAhead) discard(c *chunk) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, other := range r.chunks {
		if other == c {
			r.chunks = append(r.chunks[:i], r.chunks[i+1:]...)
			c.unref()
			break
		}
	}
	r.window = 0
}

// readResult is an answer that points into chunks.
type readResult struct {
	parts  [][]byte
	chunks []*chunk
	size   int
}

// add appends p, which lives in c (nil: in the request's own buffer).
func (r *readResult) add(p []byte, c *chunk) {
	r.parts = append(r.parts, p)
	r.size += len(p)
	if c != nil {
		r.chunks = append(r.chunks, c)
	}
}

func (r *readResult) Size() int { return r.size }

// Slices lets go-fuse send the parts as they are.
func (r *readResult) Slices() ([][]byte, fuse.Status) { return r.parts, fuse.OK }

func (r *readResult) Bytes(buf []byte) ([]byte, fuse.Status) {
	n := 0
	for _, p := range r.parts {
		n += copy(buf[n:], p)
	}
	return buf[:n], fuse.OK
}

func (r *readResult) Done() {
	for _, c := range r.chunks {
		c.unref()
	}
	r.chunks = nil
}

package agentclient

import "sync"

// chunkSize is the unit in which received bytes are kept in memory.
const chunkSize = 128 << 10

type chunk struct {
	b    [chunkSize]byte
	next *chunk
}

var chunks = sync.Pool{New: func() any { return new(chunk) }}

// fifo holds received bytes in pooled chunks. One producer and one consumer;
// every method needs the owner's lock, but the bytes that space and peek give
// may be used without it.
type fifo struct {
	head, tail *chunk
	r, w       int // next byte to read in head, to write in tail
	n          int // unread bytes
}

// space returns where the producer puts the next bytes.
func (f *fifo) space() []byte {
	if f.tail == nil || f.w == chunkSize {
		c := chunks.Get().(*chunk)
		c.next = nil
		if f.tail == nil {
			f.head, f.r = c, 0
		} else {
			f.tail.next = c
		}
		f.tail, f.w = c, 0
	}
	return f.tail.b[f.w:]
}

// commit publishes n bytes of space.
func (f *fifo) commit(n int) {
	f.w += n
	f.n += n
}

// put copies p in.
func (f *fifo) put(p []byte) {
	for len(p) > 0 {
		n := copy(f.space(), p)
		f.commit(n)
		p = p[n:]
	}
}

// peek returns the next unread bytes, as many as lie together.
func (f *fifo) peek() []byte {
	if f.n == 0 {
		return nil
	}
	if f.r == chunkSize {
		f.dropHead()
	}
	end := chunkSize
	if f.head == f.tail {
		end = f.w
	}
	return f.head.b[f.r:end]
}

// discard takes n of the bytes of peek away.
func (f *fifo) discard(n int) {
	f.r += n
	f.n -= n
	if f.r == chunkSize {
		f.dropHead()
	}
}

func (f *fifo) dropHead() {
	c := f.head
	f.head, f.r = c.next, 0
	if f.head == nil {
		f.tail, f.w = nil, 0
	}
	c.next = nil
	chunks.Put(c)
}

// clear forgets everything. Chunks may still be in use outside the lock and
// are left to the collector.
func (f *fifo) clear() { *f = fifo{} }

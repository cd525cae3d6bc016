package nodes

import (
	"io"
	"sync"
)

// buffer is memory for a request or for data that a request has read.
type buffer struct {
	b    []byte
	pool *sync.Pool
}

// bufferSizes are those that are kept for others: a request without data, one with a page or some, one with as much as
// fits inline.
var bufferSizes = [...]int{1 << 10, 16 << 10, 132 << 10, 1<<20 + 4<<10}

var bufferPools = func() (p [len(bufferSizes)]*sync.Pool) {
	for i, size := range bufferSizes {
		pool := new(sync.Pool)
		pool.New = func() any { return &buffer{make([]byte, size), pool} }
		p[i] = pool
	}
	return p
}()

// takeBuffer returns a buffer of at least n bytes.
func takeBuffer(n int) *buffer {
	for i, size := range bufferSizes {
		if n <= size {
			return bufferPools[i].Get().(*buffer)
		}
	}
	return &buffer{b: make([]byte, n)}
}

func (b *buffer) give() {
	if b != nil && b.pool != nil {
		b.pool.Put(b)
	}
}

// reader reads ahead a little, so that a small request takes one system call.
type reader struct {
	src        io.Reader
	buf        [4 << 10]byte
	start, end int
}

// full fills p.
func (r *reader) full(p []byte) error {
	for {
		n := copy(p, r.buf[r.start:r.end])
		r.start += n
		p = p[n:]
		switch {
		case len(p) == 0:
			return nil
		case len(p) >= len(r.buf)/2:
			_, err := io.ReadFull(r.src, p)
			return err
		}
		m, err := io.ReadAtLeast(r.src, r.buf[:], 1)
		r.start, r.end = 0, m
		if err != nil {
			return err
		}
	}
}

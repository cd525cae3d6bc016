package agent

import "sync"

// buffer is memory for one frame. It goes from the reader to whoever consumes the frame and back to its pool.
type buffer struct {
	b    []byte
	pool *sync.Pool
}

// classes are the sizes of frame buffers. A frame of a record of the usual sizes fits into the class of that size.
var classes = [...]int{4 << 10, 68 << 10, 260 << 10, 1<<20 + 4<<10, 4<<20 + 4<<10}

var pools = func() (p [len(classes)]*sync.Pool) {
	for i, size := range classes {
		pool := new(sync.Pool)
		pool.New = func() any { return &buffer{b: make([]byte, size), pool: pool} }
		p[i] = pool
	}
	return p
}()

// takeBuffer returns a buffer of at least n bytes; n is at most a whole frame.
func takeBuffer(n int) *buffer {
	for i, size := range classes {
		if n <= size {
			return pools[i].Get().(*buffer)
		}
	}
	return &buffer{b: make([]byte, n)}
}

func (b *buffer) give() {
	if b != nil && b.pool != nil {
		b.pool.Put(b)
	}
}

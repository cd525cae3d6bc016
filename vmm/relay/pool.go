package relay

import (
	"encoding/binary"
	"sync"

	"msb/protocol/frame"
)

// headroom in front of every frame is where the bulk port's record prefix goes.
const headroom = frame.IncarnationSize

// packet is one frame on its way, with its own memory.
type packet struct {
	mem   []byte // headroom and frame
	size  int    // of the frame, length word included
	class class
	// urgent frames do not wait for earlier data of the same id.
	urgent bool
	// after runs once the frame has been written to the port.
	after func()
	pool  *pool
	rank  int8 // size class, -1 for memory of its own
}

func (p *packet) wire() []byte   { return p.mem[headroom : headroom+p.size] }
func (p *packet) id() uint32     { return binary.BigEndian.Uint32(p.mem[headroom+4:]) }
func (p *packet) flags() uint8   { return p.mem[headroom+8] }
func (p *packet) body() []byte   { return p.mem[headroom+frame.Overhead : headroom+p.size] }
func (p *packet) isBulk() bool   { return p.flags() == frame.FlagBulk }
func (p *packet) terminal() bool { return !p.isBulk() && p.flags()&frame.FlagTerminal != 0 }

// frame is the packet as protocol/frame sees it.
func (p *packet) frame() frame.Frame {
	return frame.Frame{ID: p.id(), Flags: p.flags(), Body: p.body(), Raw: p.wire()}
}

// free gives the memory back. The packet must not be used afterwards.
func (p *packet) free() {
	if p.pool != nil {
		p.pool.put(p)
	}
}

// ranks are the sizes of pooled frames: a little more than the sizes that peers like, so that the headers
// of a record of 256 KiB do not double its memory.
var ranks = [...]int{512, 4<<10 + 64, 16<<10 + 64, 64<<10 + 64, 256<<10 + 64, 512<<10 + 64, 1<<20 + 64, 2<<20 + 64, 3<<20 + 64, 4<<20 + 64}

// maxRetained bounds the memory that a pool keeps for later.
const maxRetained = 48 << 20

// pool keeps the memory of packets for the next ones. sync.Pool forgets what it holds at every garbage
// collection, which for megabyte buffers costs more than it saves.
type pool struct {
	mu       sync.Mutex
	free     [len(ranks)][]*packet
	retained int
}

// get returns a packet with room for a frame of size bytes.
func (p *pool) get(size int) *packet {
	rank := 0
	for ranks[rank] < size {
		rank++
	}
	p.mu.Lock()
	if n := len(p.free[rank]); n > 0 {
		k := p.free[rank][n-1]
		p.free[rank] = p.free[rank][:n-1]
		p.retained -= ranks[rank]
		p.mu.Unlock()
		k.size = size
		return k
	}
	p.mu.Unlock()
	return &packet{mem: make([]byte, headroom+ranks[rank]), size: size, pool: p, rank: int8(rank)}
}

func (p *pool) put(k *packet) {
	k.class, k.urgent, k.after = control, false, nil
	p.mu.Lock()
	if p.retained+ranks[k.rank] <= maxRetained {
		p.retained += ranks[k.rank]
		p.free[k.rank] = append(p.free[k.rank], k)
	}
	p.mu.Unlock()
}

// newPacket wraps bytes that the relay made itself.
func newPacket(wire []byte) *packet {
	mem := make([]byte, headroom+len(wire))
	copy(mem[headroom:], wire)
	return &packet{mem: mem, size: len(wire), rank: -1}
}

// fifo is a queue of packets that keeps its memory.
type fifo struct {
	items []*packet
	head  int
	bytes int
}

func (q *fifo) len() int { return len(q.items) - q.head }

func (q *fifo) push(p *packet) {
	if q.head > 0 && len(q.items) == cap(q.items) {
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	q.items = append(q.items, p)
	q.bytes += p.size
}

func (q *fifo) peek() *packet { return q.items[q.head] }

func (q *fifo) pop() *packet {
	p := q.items[q.head]
	q.items[q.head] = nil
	q.head++
	if q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	}
	q.bytes -= p.size
	return p
}

// clear drops everything.
func (q *fifo) clear() {
	for q.len() > 0 {
		q.pop().free()
	}
}

package client

import "sync"

// Packet is a pooled buffer for one or more whole frames on their way out.
// Fill B by appending; do not keep it after the packet was handed over.
type Packet struct {
	B       []byte
	pool    int8
	next    *Packet
	written chan error // for an awaited write
}

// Capacities of the pools: a plain message, a page or two of data, one bulk
// record of each usual size, the largest frame.
var packetSizes = [...]int{1 << 10, 18 << 10, 132 << 10, 264 << 10, (1 << 20) + 1024, (4 << 20) + 1024}

var packetPools [len(packetSizes)]sync.Pool

// NewPacket returns an empty packet with room for capacity bytes.
func NewPacket(capacity int) *Packet {
	for i, size := range packetSizes {
		if capacity > size {
			continue
		}
		if p, ok := packetPools[i].Get().(*Packet); ok {
			return p
		}
		return &Packet{B: make([]byte, 0, size), pool: int8(i)}
	}
	return &Packet{B: make([]byte, 0, capacity), pool: -1}
}

// Free gives back a packet that was not handed over.
func (p *Packet) Free() {
	if p.pool < 0 || cap(p.B) < packetSizes[p.pool] || cap(p.B) > 4*packetSizes[p.pool] {
		return
	}
	p.B, p.next, p.written = p.B[:0], nil, nil
	packetPools[p.pool].Put(p)
}

package relay

import "msb/protocol/agent"

// class is what a frame to the guest is charged to.
type class uint8

const (
	control class = iota // everything that is not data
	data                 // raw records, stdin, file and TCP data
)

// amount counts wire bytes and frames.
type amount struct{ bytes, frames uint64 }

func (a *amount) add(b amount)        { a.bytes += b.bytes; a.frames += b.frames }
func (a amount) atMost(b amount) bool { return a.bytes <= b.bytes && a.frames <= b.frames }
func (a amount) zero() bool           { return a.bytes == 0 && a.frames == 0 }
func (a amount) plus(b amount) amount {
	return amount{a.bytes + b.bytes, a.frames + b.frames}
}

// minus is a - b, not below zero.
func (a amount) minus(b amount) amount {
	return amount{a.bytes - min(a.bytes, b.bytes), a.frames - min(a.frames, b.frames)}
}

// over is a part of it.
func (a amount) over(n uint64) amount { return amount{a.bytes / n, a.frames / n} }

// smaller is the smaller one of each part.
func (a amount) smaller(b amount) amount {
	return amount{min(a.bytes, b.bytes), min(a.frames, b.frames)}
}

// gate is the guest's transport credit: absolute limits on what the host has written since the start. A
// guest of generation 9 exits when they are passed; older ones have none.
type gate struct {
	on    bool
	sent  [2]amount
	limit [2]amount
}

func newGate(on bool) gate {
	g := agent.InitialGrants
	return gate{on: on, limit: [2]amount{{g.ControlBytes, g.ControlFrames}, {g.BulkBytes, g.BulkFrames}}}
}

func grant(c class) amount {
	g := agent.InitialGrants
	if c == data {
		return amount{g.BulkBytes, g.BulkFrames}
	}
	return amount{g.ControlBytes, g.ControlFrames}
}

// room says whether n more may be written.
func (g *gate) room(c class, n amount) bool {
	return !g.on || g.sent[c].plus(n).atMost(g.limit[c])
}

func (g *gate) charge(c class, n amount) { g.sent[c].add(n) }

// credit takes the guest's new limits and returns how much data it has consumed since the last ones.
// Limits never go back, whatever the guest says.
func (g *gate) credit(p agent.Position) (consumed amount) {
	g.on = true
	before := g.limit[data]
	for c, l := range [2]amount{{p.ControlBytes, p.ControlFrames}, {p.BulkBytes, p.BulkFrames}} {
		g.limit[c].bytes = max(g.limit[c].bytes, l.bytes)
		g.limit[c].frames = max(g.limit[c].frames, l.frames)
	}
	return g.limit[data].minus(before)
}

func (g *gate) position() agent.Position {
	return agent.Position{
		ControlBytes: g.sent[control].bytes, ControlFrames: g.sent[control].frames,
		BulkBytes: g.sent[data].bytes, BulkFrames: g.sent[data].frames,
	}
}

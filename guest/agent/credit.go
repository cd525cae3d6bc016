package agent

import (
	"sync"
	"time"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

const (
	// creditBytes and creditFrames are how much must have been consumed for the host to be told at once.
	creditBytes  = 64 << 10
	creditFrames = 16
	// creditDelay is when it is told of less.
	creditDelay = 10 * time.Millisecond
)

// class is one of the two that input is counted in.
type class uint8

const (
	controlClass class = iota
	dataClass
)

// amount counts input in bytes on the wire and in frames.
type amount struct{ bytes, frames uint64 }

func (a amount) plus(n int) amount { return amount{a.bytes + uint64(n), a.frames + 1} }

// credit accounts for the host's input: what it was granted, what came, and what has been consumed.
type credit struct {
	tell func() // asks the output to send a grant; must not block

	mu       sync.Mutex
	received [2]amount
	consumed [2]amount
	granted  [2]amount // the limits that the host was told
	// watched: the host asked whose data is consumed. by is what it has not been told, by operation.
	watched bool
	by      map[uint32]amount
	timer   *time.Timer
	stopped bool
}

// maxReported bounds the operations of one report. A host within its grants cannot have more frames under way.
const maxReported = 1024

var initialGrants = [2]amount{
	{agent.InitialGrants.ControlBytes, agent.InitialGrants.ControlFrames},
	{agent.InitialGrants.BulkBytes, agent.InitialGrants.BulkFrames},
}

func newCredit(tell func()) *credit {
	c := &credit{tell: tell, granted: initialGrants}
	c.timer = time.AfterFunc(time.Hour, tell)
	c.timer.Stop()
	return c
}

// admit counts a complete frame of n bytes. within is false when the host had no credit for it.
func (c *credit) admit(k class, n int) (within bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.received[k].plus(n)
	c.received[k] = r
	return r.bytes <= c.granted[k].bytes && r.frames <= c.granted[k].frames
}

// watch makes the reports say whose data was consumed.
func (c *credit) watch() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.watched {
		c.watched, c.by = true, map[uint32]amount{}
	}
}

// unwatch ends the reports: the host is another one, which has not asked.
func (c *credit) unwatch() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watched, c.by = false, nil
}

// release counts a frame of n bytes of an operation as consumed.
func (c *credit) release(k class, id uint32, n int) {
	c.mu.Lock()
	before := c.owed()
	c.consumed[k] = c.consumed[k].plus(n)
	if c.watched && k == dataClass {
		if _, known := c.by[id]; known || len(c.by) < maxReported {
			c.by[id] = c.by[id].plus(n)
		}
	}
	due := c.due()
	if !due && !before && !c.stopped {
		c.timer.Reset(creditDelay)
	}
	c.mu.Unlock()
	if due {
		c.tell()
	}
}

func (c *credit) limit(k class) amount {
	return amount{initialGrants[k].bytes + c.consumed[k].bytes, initialGrants[k].frames + c.consumed[k].frames}
}

func (c *credit) owed() bool {
	return len(c.by) > 0 || c.limit(controlClass) != c.granted[controlClass] || c.limit(dataClass) != c.granted[dataClass]
}

// due tells whether enough was consumed to tell the host at once.
func (c *credit) due() bool {
	for k := range c.granted {
		l, g := c.limit(class(k)), c.granted[k]
		if l.bytes-g.bytes >= creditBytes || l.frames-g.frames >= creditFrames {
			return true
		}
	}
	return false
}

// news appends what the host is to be told of its input: whose was consumed, then the new limits.
func (c *credit) news(dst []byte) []byte {
	if by := c.report(); len(by) > 0 {
		dst, _ = agent.AppendFrame(dst, frame.IDLifecycle, agent.InputConsumed, agent.Generation, agent.InputConsumedPayload{Operations: by})
	}
	if limits, ok := c.grant(); ok {
		dst, _ = agent.AppendFrame(dst, frame.IDLifecycle, agent.TransportCredit, agent.Generation, limits)
	}
	return dst
}

// report returns what was consumed since the last one, by operation, and takes it as told.
func (c *credit) report() (by []agent.ConsumedInput) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, n := range c.by {
		by = append(by, agent.ConsumedInput{ID: id, Bytes: n.bytes, Frames: n.frames})
	}
	clear(c.by)
	return by
}

// grant returns the limits to tell the host now, and takes them as told. ok is false when it knows them.
func (c *credit) grant() (p agent.Position, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ok = c.owed()
	for k := range c.granted {
		c.granted[k] = c.limit(class(k))
	}
	return agent.Position{
		ControlBytes:  c.granted[controlClass].bytes,
		ControlFrames: c.granted[controlClass].frames,
		BulkBytes:     c.granted[dataClass].bytes,
		BulkFrames:    c.granted[dataClass].frames,
	}, ok
}

// position is all input received so far.
func (c *credit) position() agent.Position {
	c.mu.Lock()
	defer c.mu.Unlock()
	return agent.Position{
		ControlBytes:  c.received[controlClass].bytes,
		ControlFrames: c.received[controlClass].frames,
		BulkBytes:     c.received[dataClass].bytes,
		BulkFrames:    c.received[dataClass].frames,
	}
}

func (c *credit) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = true
	c.timer.Stop()
}

package relay

import (
	"sync"
	"time"
)

const (
	// laneBytes and laneFrames bound what waits of one client, for commands and for data each.
	laneBytes  = 8 << 20
	laneFrames = 1024
)

// lane is what waits of one client for the guest. The scheduler's lock guards it.
type lane struct {
	commands fifo // control class, and not behind data of the same id
	stream   fifo // data on the control port, and the commands that must follow it
	raw      fifo // raw records of the bulk port
	// behind counts, by id, what waits in stream.
	behind map[uint32]int
	room   sync.Cond // something left a queue, or the lane is gone
	// open: the guest knows the client; before that nothing of it may be sent.
	open, gone  bool
	incarnation [headroom]byte

	// charge is how much of the guest's data credit is taken to be used by this client.
	charge amount
	// auditAt is when a client that used up its share is looked at again, and auditPause how long after that.
	auditAt    time.Time
	auditPause time.Duration
	probing    bool // over its share, one packet is on its way to see whether it is consumed
}

func (l *lane) hasData() bool { return l.stream.len() > 0 || l.raw.len() > 0 }

// queue is where a packet goes.
func (l *lane) queue(p *packet, dual bool) *fifo {
	switch {
	case dual && p.isBulk():
		return &l.raw
	case p.class == data, !p.urgent && l.behind[p.id()] > 0:
		return &l.stream
	}
	return &l.commands
}

func (l *lane) clear() {
	l.commands.clear()
	l.stream.clear()
	l.raw.clear()
	clear(l.behind)
}

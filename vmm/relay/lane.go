package relay

import "sync"

const (
	// laneBytes and laneFrames bound what waits of one client, for commands and for data each.
	laneBytes  = 8 << 20
	laneFrames = 1024
)

// lane is what waits of one client for the guest. The scheduler's lock guards it.
type lane struct {
	slot     int  // of its client
	commands fifo // control class, and not behind data of the same id
	stream   fifo // data on the control port, and the commands that must follow it
	raw      fifo // raw records of the bulk port
	// behind counts, by id, what waits in stream, and ahead what waits in commands: data does not overtake
	// the request that it belongs to.
	behind map[uint32]int
	ahead  map[uint32]int
	room   sync.Cond // something left a queue, or the lane is gone
	// open: the guest knows the client; before that nothing of it may be sent.
	open, gone bool
	abandoned  bool // its client has hung up: nobody waits for room

	turns record // see turn
}

// data returns the client's queue of data for a port.
func (l *lane) data(port portIndex) *fifo {
	if port == bulkPort {
		return &l.raw
	}
	return &l.stream
}

func (l *lane) hasData() bool { return l.stream.len() > 0 || l.raw.len() > 0 }

// ready says whether the client has data for a port that may be sent now.
func (l *lane) ready(port portIndex) bool {
	q := l.data(port)
	if !l.open || q.len() == 0 {
		return false
	}
	// Raw records follow an answer to the request, so it has been sent.
	return port == bulkPort || l.ahead[q.peek().id()] == 0
}

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
	clear(l.ahead)
}

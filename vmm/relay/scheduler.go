package relay

import (
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// portIndex names one of the two ports into the guest.
type portIndex int

const (
	controlPort portIndex = iota
	bulkPort
)

// Bounds of what is written to a port in one go. Small, so that a command never waits behind much.
const (
	writeBytes  = 128 << 10
	writeFrames = 64
)

// scheduler decides which frame is written to the guest next.
type scheduler struct {
	mu   sync.Mutex
	dual bool // raw records have a port of their own
	gate gate

	exact  bool     // the guest says whose data it has consumed
	unread accounts // then
	turn   turn     // otherwise
	next   int      // where the round over lanes for data begins

	lifecycle fifo // id 0xFFFFFFFF: neither counted nor held
	host      fifo // the runtime's own frames, leases and cleaning
	lanes     []*lane
	round     int // where the round over lanes for commands begins

	held   bool      // ordinary input stops at a frame boundary
	busy   [2]bool   // a writer is between taking packets and having written them
	quiet  sync.Cond // a writer stopped being busy
	wake   [2]chan struct{}
	closed bool
}

func newScheduler(g gate, exact, dual bool) *scheduler {
	s := &scheduler{gate: g, exact: exact, dual: dual, wake: [2]chan struct{}{make(chan struct{}, 1), make(chan struct{}, 1)}}
	s.quiet.L = &s.mu
	return s
}

// poke makes the writers look again.
func (s *scheduler) poke() {
	for _, w := range s.wake {
		select {
		case w <- struct{}{}:
		default:
		}
	}
}

// addLane makes the lane of a new client.
func (s *scheduler) addLane(slot int) *lane {
	l := &lane{slot: slot, behind: map[uint32]int{}, ahead: map[uint32]int{}}
	l.room.L = &s.mu
	s.mu.Lock()
	s.lanes = append(s.lanes, l)
	s.mu.Unlock()
	return l
}

// dropLane forgets what waits of a client, then queues its cleaning.
func (s *scheduler) dropLane(l *lane, cleaning []*packet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.gone {
		return
	}
	l.gone = true
	l.clear()
	for i, o := range s.lanes {
		if o == l {
			s.lanes = append(s.lanes[:i], s.lanes[i+1:]...)
			break
		}
	}
	l.room.Broadcast()
	for _, p := range cleaning {
		s.host.push(p)
	}
	s.poke()
}

// push queues a packet of a client and waits while its lane is full. It takes the packet over; false means
// that the client is gone.
// held is true while it waits.
func (s *scheduler) push(l *lane, p *packet, held *atomic.Bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer held.Store(false)
	for {
		if l.gone || l.abandoned || s.closed {
			p.free()
			return false
		}
		q := l.queue(p, s.dual)
		used, frames := q.bytes, q.len()
		if q != &l.commands {
			used, frames = l.stream.bytes+l.raw.bytes, l.stream.len()+l.raw.len()
		}
		if used == 0 || used+p.size <= laneBytes && frames < laneFrames {
			switch q {
			case &l.stream:
				l.behind[p.id()]++
			case &l.commands:
				l.ahead[p.id()]++
			}
			q.push(p)
			s.poke()
			return true
		}
		held.Store(true)
		l.room.Wait()
	}
}

// pushHost queues a frame of the runtime itself.
func (s *scheduler) pushHost(p *packet) {
	s.mu.Lock()
	s.host.push(p)
	s.mu.Unlock()
	s.poke()
}

// pushLifecycle queues a frame of the lifecycle channel.
func (s *scheduler) pushLifecycle(p *packet) {
	s.mu.Lock()
	s.lifecycle.push(p)
	s.mu.Unlock()
	s.poke()
}

// pick moves the next packets for a port to dst. With none, wake is when to look again.
func (s *scheduler) pick(port portIndex, dst []*packet, now time.Time) (_ []*packet, wake time.Time) {
	size := 0
	take := func(p *packet) {
		size += p.size
		dst = append(dst, p)
	}
	if port == controlPort {
		for s.lifecycle.len() > 0 {
			take(s.lifecycle.pop())
		}
	}
	if s.held {
		return dst, time.Time{}
	}
	if port == controlPort {
		s.pickCommands(take, func() bool { return size >= writeBytes/2 || len(dst) >= writeFrames/2 })
	}
	for size < writeBytes && len(dst) < writeFrames {
		p, at := s.dataFor(port, now)
		if p == nil {
			wake = at
			break
		}
		take(p)
		if size+writeBytes/2 > writeBytes {
			break
		}
	}
	return dst, wake
}

// pickCommands takes the runtime's frames, then one command of each client in turn.
func (s *scheduler) pickCommands(take func(*packet), enough func() bool) {
	pop := func(q *fifo) bool {
		cost := amount{uint64(q.peek().size), 1}
		if !s.gate.room(control, cost) {
			return false
		}
		s.gate.charge(control, cost)
		take(q.pop())
		return true
	}
	for s.host.len() > 0 {
		// The cleaning of a client stays in order with whatever follows: nothing overtakes it.
		if enough() || !pop(&s.host) {
			return
		}
	}
	for more := true; more; {
		more = false
		for i := range s.lanes {
			l := s.lanes[(s.round+i)%len(s.lanes)]
			if !l.open || l.commands.len() == 0 {
				continue
			}
			id := l.commands.peek().id()
			if enough() || !pop(&l.commands) {
				s.round = (s.round + i) % len(s.lanes)
				return
			}
			left(l.ahead, id)
			l.room.Broadcast()
			more = true
		}
	}
}

// write is one port's writer. It ends with the first error, or when the scheduler is closed.
func (s *scheduler) write(port portIndex, w io.Writer) error {
	packets := make([]*packet, 0, 2*writeFrames)
	batch := make([]byte, 0, writeBytes+smallFrame)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			return nil
		}
		var wake time.Time
		packets, wake = s.pick(port, packets[:0], time.Now())
		s.busy[port] = len(packets) > 0
		s.mu.Unlock()
		if len(packets) == 0 {
			var alarm <-chan time.Time
			if !wake.IsZero() {
				timer.Reset(time.Until(wake))
				alarm = timer.C
			}
			select {
			case <-s.wake[port]:
			case <-alarm:
			}
			continue
		}
		err := writePackets(w, packets, batch, port)
		for _, p := range packets {
			if p.after != nil && err == nil {
				p.after()
			}
			p.free()
		}
		s.mu.Lock()
		s.busy[port] = false
		s.quiet.Broadcast()
		s.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

func writePackets(w io.Writer, packets []*packet, batch []byte, port portIndex) error {
	batch = batch[:0]
	for _, p := range packets {
		wire := p.wire()
		if port == bulkPort {
			wire = p.mem[:headroom+p.size]
		}
		if len(wire) <= smallFrame && len(packets) > 1 && len(batch)+len(wire) <= cap(batch) {
			batch = append(batch, wire...)
			continue
		}
		if len(batch) > 0 {
			if _, err := w.Write(batch); err != nil {
				return err
			}
			batch = batch[:0]
		}
		if _, err := w.Write(wire); err != nil {
			return err
		}
	}
	if len(batch) > 0 {
		if _, err := w.Write(batch); err != nil {
			return err
		}
	}
	return nil
}

// close ends the writers and whoever waits for room.
func (s *scheduler) close() {
	s.mu.Lock()
	s.closed = true
	for _, l := range s.lanes {
		l.clear()
		l.room.Broadcast()
	}
	s.host.clear()
	s.lifecycle.clear()
	s.quiet.Broadcast()
	s.mu.Unlock()
	s.poke()
}

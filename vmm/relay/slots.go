package relay

import (
	"crypto/rand"
	"encoding/binary"
	"net"
	"time"

	"msb/protocol/frame"
)

// slotState is what a range of ids is used for.
type slotState uint8

const (
	slotFree slotState = iota
	slotTaken
	// slotUnclean: its client has gone, the guest has not confirmed that nothing of it is left.
	slotUnclean
)

// slot is one range of ids.
type slot struct {
	state  slotState
	client *client           // while taken
	inc    frame.Incarnation // of the last client
	// owed are ids of the last client that the guest has not ended, when it confirms nothing (no leases).
	owed  map[uint32]struct{}
	timer *time.Timer
}

// unleasedPause is how long a range rests after its client when the guest knows no leases and does not end
// what the client had open.
const unleasedPause = time.Second

// join gives a connection the lowest free slot; nil when there is none.
func (r *Relay) join(conn net.Conn, quiet bool) *client {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	for k := range r.slots {
		s := &r.slots[k]
		if s.state != slotFree {
			continue
		}
		c := &client{relay: r, conn: conn, quiet: quiet, slot: k, out: newOutbox(&r.waiting), open: newSessions()}
		c.start, c.end = frame.Range(k)
		if r.leased {
			rand.Read(c.inc[:])
		}
		// Before anything else that could be sent to it.
		c.out.pushRaw(r.prologue(c))
		s.state, s.client, s.inc = slotTaken, c, c.inc
		return c
	}
	return nil
}

// prologue is what a client gets first: its range and the guest's own ready frame.
func (r *Relay) prologue(c *client) []byte {
	b := binary.BigEndian.AppendUint32(nil, c.start)
	b = binary.BigEndian.AppendUint32(b, c.end)
	return append(b, r.guest.ReadyFrame...)
}

// leave takes a client out of its slot. The slot stays unclean until the guest is done with it.
func (r *Relay) leave(c *client) {
	r.mu.Lock()
	s := &r.slots[c.slot]
	s.state, s.client = slotUnclean, nil
	if !r.leased {
		s.owed = map[uint32]struct{}{}
		c.mu.Lock()
		for id := range c.open.open {
			s.owed[id] = struct{}{}
		}
		c.mu.Unlock()
	}
	r.mu.Unlock()
	r.sched.dropLane(c.lane, c.cleaning(func() { r.cleaned(c.slot) }))
}

// cleaned: the guest has been told that the slot's client is gone.
func (r *Relay) cleaned(k int) {
	if r.leased {
		return // it confirms
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.slots[k]
	if s.state != slotUnclean || r.closed {
		return
	}
	if len(s.owed) == 0 {
		s.state, s.owed = slotFree, nil
		return
	}
	s.timer = time.AfterFunc(unleasedPause, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if s.state == slotUnclean {
			s.state, s.owed = slotFree, nil
		}
	})
}

// orphan is a frame for a client that is not there.
func (r *Relay) orphan(p *packet) {
	k, ok := frame.Slot(p.id())
	if !ok {
		r.log.Warn("guest sent a frame for an id of nobody", "id", p.id())
		return
	}
	if !p.terminal() || r.leased {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.slots[k]
	if _, owed := s.owed[p.id()]; owed {
		delete(s.owed, p.id())
		// timer set: the guest has been told.
		if len(s.owed) == 0 && s.state == slotUnclean && s.timer != nil && s.timer.Stop() {
			s.state, s.owed, s.timer = slotFree, nil, nil
		}
	}
}

// confirmed handles a lease record of the guest: the range is clean.
func (r *Relay) confirmed(l frame.Lease) {
	k, ok := frame.Slot(l.Start)
	if !ok || l.Event != frame.LeaseDisconnected {
		r.log.Warn("guest sent a lease that makes no sense", "event", l.Event, "start", l.Start)
		return
	}
	start, end := frame.Range(k)
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.slots[k]
	if s.state != slotUnclean || l.Start != start || l.End != end || l.Incarnation != s.inc {
		r.log.Warn("guest confirmed a range that is not being cleaned", "slot", k)
		return
	}
	s.state = slotFree
}

// client is who an id belongs to, nil when nobody is there.
func (r *Relay) client(id uint32) *client {
	k, ok := frame.Slot(id)
	if !ok {
		return nil
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.slots[k].client
}

package relay

import (
	"time"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

// The guest's data credit is one pool for all clients. A client whose data nobody reads must not use it up.
//
// A guest with the extension msb.input says whose data it has consumed, so that what each client has unread is known:
// it may have half of what the others leave of half of the credit. The other half is for clients that have nothing
// unread, so a client that is read always gets on. Of other guests see turns.

// accounts is what the guest holds unread of each client's range. It goes by range, not by client: what is left of a
// client that has gone is charged to the next one until the guest has dropped it.
type accounts [frame.MaxClients]amount

// charge notes that n more has been sent for an id.
func (a *accounts) charge(id uint32, n amount) {
	if k, ok := frame.Slot(id); ok {
		a[k].add(n)
	}
}

// consumed takes the guest's report. A hostile guest may claim anything: an account ends with what was sent.
func (a *accounts) consumed(p agent.InputConsumedPayload) {
	for _, op := range p.Operations {
		if k, ok := frame.Slot(op.ID); ok {
			a[k] = a[k].minus(amount{op.Bytes, op.Frames})
		}
	}
}

// half of what the guest grants at first, which is what it ever holds.
func half() amount { return grant(data).over(2) }

// outstanding is what the guest holds unread.
func (s *scheduler) outstanding() amount {
	return s.gate.sent[data].minus(s.gate.limit[data].minus(grant(data)))
}

// free is what may still be sent.
func (s *scheduler) free() amount { return s.gate.limit[data].minus(s.gate.sent[data]) }

// fits says whether a client may have n more unread.
func (s *scheduler) fits(l *lane, n amount) bool {
	out := s.outstanding()
	switch unread := s.unread[l.slot]; {
	case !s.gate.on:
		return true
	case !s.gate.room(data, n):
		return false
	case !s.exact:
		return out.plus(n).atMost(half().over(2)) // whoever has it unread, most of the credit is left
	case unread.zero():
		return n.plus(n).atMost(s.free())
	default:
		return out.plus(n).atMost(half()) && unread.plus(n).atMost(half().minus(out.minus(unread)).over(2))
	}
}

// dataFor takes the next packet of data for a port. Without one, wake is when to look again (zero: when something
// changes).
func (s *scheduler) dataFor(port portIndex, now time.Time) (p *packet, wake time.Time) {
	if s.turn.of != nil && !s.turnOver(now) {
		return s.turnData(port, now)
	}
	for i := range s.lanes {
		l := s.lanes[(s.next+i)%len(s.lanes)]
		if !l.ready(port) {
			continue
		}
		p := l.data(port).peek()
		if n := packetCost(p, port); p.class == control && s.gate.room(control, n) || p.class == data && s.fits(l, n) {
			s.next = (s.next + i + 1) % len(s.lanes)
			return s.takeData(l, port), time.Time{}
		}
	}
	if s.exact {
		return nil, time.Time{}
	}
	return s.startTurn(port, now)
}

// packetCost is what a packet takes of the credit on a port.
func packetCost(p *packet, port portIndex) amount {
	if port == bulkPort {
		return amount{uint64(p.size) + headroom, 1}
	}
	return amount{uint64(p.size), 1}
}

// takeData moves the next packet of a client out and charges it.
func (s *scheduler) takeData(l *lane, port portIndex) *packet {
	p := l.data(port).pop()
	cost := packetCost(p, port)
	s.gate.charge(p.class, cost)
	if s.exact && p.class == data {
		s.unread.charge(p.id(), cost)
	}
	if port == controlPort {
		left(l.behind, p.id())
	}
	l.room.Broadcast()
	return p
}

// left counts a packet of an id less.
func left(waiting map[uint32]int, id uint32) {
	if n := waiting[id]; n > 1 {
		waiting[id] = n - 1
	} else {
		delete(waiting, id)
	}
}

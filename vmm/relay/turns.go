package relay

import "time"

// The guest's data credit says how much it consumed in all, not of whom. To know whose data stays
// unread, clients with data take turns: one client sends up to a quantum, and before the next one the
// guest gets a moment to consume it. What is left then is this client's, and it counts against its share:
// half of what the others leave. A client alone has no turns, only the share, so that whoever comes later
// finds credit.
const (
	turnBytes  = 4 << 20
	turnFrames = 64
	// drainPause is how long without any consumption proves that data is stuck.
	drainPause = 25 * time.Millisecond
	// residue is what the guest may consume without saying so at once.
	residueBytes  = 128 << 10
	residueFrames = 16

	minAuditPause = 50 * time.Millisecond
	maxAuditPause = 2 * time.Second
)

// turns is whose data goes to the guest now.
type turns struct {
	holder   *lane
	used     amount
	draining bool
	deadline time.Time
	ghost    amount // charged to clients that have gone
	stray    amount // charged to nobody: it was taken to be of a client that proved to be reading
	last     int    // index of the last holder, for the round
}

// others is what of the data credit is in use by everybody else.
func (s *scheduler) others(l *lane) amount {
	sum := s.turns.ghost.plus(s.turns.stray)
	for _, o := range s.lanes {
		if o != l {
			sum.add(o.charge)
		}
	}
	return sum
}

// share is how much of the data credit a client may have in use.
func (s *scheduler) share(l *lane) amount {
	free := grant(data).minus(s.others(l))
	return amount{free.bytes / 2, free.frames / 2}
}

// fits says whether a client may use n more of the credit.
func (s *scheduler) fits(l *lane, n amount) bool {
	return !s.gate.on || n.zero() || l.charge.zero() || l.charge.plus(n).atMost(s.share(l))
}

// headCost is what the smallest packet that the client could send next takes of the data credit.
func (l *lane) headCost() amount {
	switch {
	case l.stream.len() > 0 && l.stream.peek().class == control:
		return amount{}
	case l.raw.len() > 0 && (l.stream.len() == 0 || l.raw.peek().size < l.stream.peek().size):
		return amount{uint64(l.raw.peek().size) + headroom, 1}
	case l.stream.len() > 0:
		return amount{uint64(l.stream.peek().size), 1}
	}
	return amount{}
}

// mayProbe says whether a client over its share may send one packet to find out whether its charge is
// really its own: when it is consumed, the client reads, and what is stuck is somebody else's. A quarter
// of the credit is kept from such probes. When nobody else has anything in use there is no doubt.
func (s *scheduler) mayProbe(l *lane, n amount, now time.Time) bool {
	g := grant(data)
	free := s.gate.limit[data].minus(s.gate.sent[data].plus(n))
	return !now.Before(l.auditAt) && !s.others(l).zero() && free.bytes >= g.bytes/4 && free.frames >= g.frames/4
}

// due says whether it is worth giving a client the turn.
func (s *scheduler) due(l *lane, now time.Time) bool {
	return l.open && l.hasData() && (s.fits(l, l.headCost()) || !now.Before(l.auditAt))
}

// elect gives the turn to the next client that is due, or to the only one that waits.
func (s *scheduler) elect(now time.Time) *lane {
	t := &s.turns
	t.used, t.draining = amount{}, false
	t.holder = nil
	waiting := -1
	for i := range s.lanes {
		k := (t.last + 1 + i) % len(s.lanes)
		l := s.lanes[k]
		if s.due(l, now) {
			t.holder, t.last = l, k
			return l
		}
		if waiting < 0 && l.open && l.hasData() {
			waiting = k
		}
	}
	if waiting >= 0 {
		t.holder, t.last = s.lanes[waiting], waiting
	}
	return t.holder
}

// contended says whether somebody else is due.
func (s *scheduler) contended(now time.Time) bool {
	for _, l := range s.lanes {
		if l != s.turns.holder && s.due(l, now) {
			return true
		}
	}
	return false
}

// nextAudit is when a client that waits over its share is looked at again; zero when there is none.
func (s *scheduler) nextAudit(now time.Time) (at time.Time) {
	for _, l := range s.lanes {
		if l.open && l.hasData() && now.Before(l.auditAt) && (at.IsZero() || l.auditAt.Before(at)) {
			at = l.auditAt
		}
	}
	return at
}

// dataFor takes the next packet of data for a port. Without one, wake is when to look again (zero: when
// something changes).
func (s *scheduler) dataFor(port portIndex, now time.Time) (p *packet, wake time.Time) {
	t := &s.turns
	for range 2*len(s.lanes) + 2 {
		h := t.holder
		if h == nil || h.gone {
			if h = s.elect(now); h == nil {
				return nil, time.Time{}
			}
		}
		contended := s.contended(now)
		if t.draining {
			switch {
			case !contended:
				t.draining = false
			case h.charge.atMost(amount{residueBytes, residueFrames}):
				h.auditPause = 0
				s.elect(now)
				continue
			case !now.Before(t.deadline):
				// Stuck. It may go on as far as its share goes; past that, somebody looks at it again later.
				h.auditPause = min(max(2*h.auditPause, minAuditPause), maxAuditPause)
				h.auditAt = now.Add(h.auditPause)
				s.elect(now)
				continue
			default:
				return nil, t.deadline
			}
		}
		if contended && (!h.hasData() || !t.used.atMost(amount{turnBytes - 1, turnFrames - 1}) || !s.fits(h, h.headCost())) {
			if s.gate.on && !now.Before(h.auditAt) {
				t.draining, t.deadline = true, now.Add(drainPause)
			} else {
				s.elect(now)
				if t.holder == h {
					break
				}
			}
			continue
		}
		if !h.hasData() {
			if s.elect(now) == nil {
				return nil, time.Time{}
			}
			if t.holder == h {
				break
			}
			continue
		}
		q := &h.stream
		extra := 0
		if port == bulkPort {
			q, extra = &h.raw, headroom
		}
		if q.len() == 0 {
			break // the other port's turn
		}
		head := q.peek()
		cost := amount{uint64(head.size + extra), 1}
		if !s.gate.room(head.class, cost) {
			break // until there is credit
		}
		if head.class == data && !s.fits(h, cost) {
			if h.auditAt.IsZero() {
				h.auditAt = now.Add(drainPause)
			}
			if contended || !s.mayProbe(h, cost, now) {
				break
			}
			h.probing = true
			h.auditPause = min(max(2*h.auditPause, minAuditPause), maxAuditPause)
			h.auditAt = now.Add(h.auditPause)
		}
		q.pop()
		s.gate.charge(head.class, cost)
		t.used.add(cost)
		if head.class == data && s.gate.on {
			h.charge.add(cost)
		}
		if port == controlPort {
			h.passed(head.id())
		}
		h.room.Broadcast()
		return head, time.Time{}
	}
	return nil, s.nextAudit(now)
}

// passed notes that a packet left stream.
func (l *lane) passed(id uint32) {
	if n := l.behind[id]; n > 1 {
		l.behind[id] = n - 1
	} else {
		delete(l.behind, id)
	}
}

// consumed attributes consumption: to clients that have gone (the guest drops what they sent), to the
// holder of the turn, then to those that have most.
func (s *scheduler) consumed(n amount, now time.Time) {
	t := &s.turns
	if n.zero() {
		return
	}
	if t.draining {
		t.deadline = now.Add(drainPause)
	}
	take := func(from *amount) bool {
		d := from.smaller(n)
		from.sub(d)
		n.sub(d)
		return n.zero()
	}
	if take(&t.ghost) {
		return
	}
	if h := t.holder; h != nil && !h.charge.zero() {
		h.auditPause, h.auditAt = 0, time.Time{}
		if take(&h.charge); h.probing {
			t.stray.add(h.charge)
			h.charge, h.probing = amount{}, false
		}
	}
	for !n.zero() {
		var most *lane
		var best amount
		for _, l := range s.lanes {
			if a := l.charge.smaller(n); a.bytes > best.bytes || a.bytes == best.bytes && a.frames > best.frames {
				most, best = l, a
			}
		}
		if most == nil {
			take(&t.stray)
			return
		}
		most.auditPause, most.auditAt = 0, time.Time{}
		take(&most.charge)
	}
}

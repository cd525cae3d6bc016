package relay

import "time"

// A guest without msb.input says how much data it has consumed, and not whose. As long as it holds no more than a
// quarter of the credit, that does not matter. Beyond, clients take turns: one alone sends a burst, of one packet at
// first, and its turn ends when the guest holds no more than before, with the next burst twice as large, or when that
// does not happen for a while. Then it is suspected of not being read, and its next turn comes later and later, and
// only while a quarter of the credit is left. So what is never read takes little more than one packet a client, and a
// client that is read gets on.
const (
	lastBurstBytes, lastBurstFrames = 4 << 20, 32

	// turnPause is how long nothing may be consumed before a turn has failed, for a client that has failed before,
	// which may only be slow, it is longer.
	turnPause, lastTurnPause = 250 * time.Millisecond, 2 * time.Second
	// A client whose turn failed waits this long for the next, twice as long each time.
	firstRetry, lastRetry = 500 * time.Millisecond, time.Minute
)

// turn is what is going on when clients take turns.
type turn struct {
	of       *lane  // whose turn it is, nil for nobody's
	level    amount // what the guest held when it began
	sent     amount
	began    time.Time
	pause    time.Duration
	deadline time.Time
	// suspectsAt is when clients whose last turn failed may have one, so that others have most of the time.
	suspectsAt time.Time
}

// record is how a client's turns went.
type record struct {
	burst    amount // how much it may send in the next; one packet at least
	failures int    // since the last that did not
	retryAt  time.Time
}

// startTurn gives a client its turn and takes its first packet, or says when to look again.
func (s *scheduler) startTurn(port portIndex, now time.Time) (_ *packet, wake time.Time) {
	var best *lane
	for i := range s.lanes {
		l := s.lanes[(s.next+i)%len(s.lanes)]
		if !l.ready(port) || l.data(port).peek().class == control {
			continue
		}
		n := packetCost(l.data(port).peek(), port)
		may := l.turns.retryAt
		if l.turns.failures > 0 && may.Before(s.turn.suspectsAt) {
			may = s.turn.suspectsAt
		}
		switch {
		case now.Before(may):
			if wake.IsZero() || may.Before(wake) {
				wake = may
			}
		case l.turns.failures == 0 && !n.plus(n).atMost(s.free()):
		case l.turns.failures > 0 && !n.plus(half().over(2)).atMost(s.free()):
		case best == nil || l.turns.failures < best.turns.failures:
			best = l
		}
	}
	if best == nil {
		return nil, wake
	}
	pause := min(turnPause*time.Duration(1+best.turns.failures), lastTurnPause)
	s.turn = turn{of: best, level: s.outstanding(), began: now, pause: pause, deadline: now.Add(pause), suspectsAt: s.turn.suspectsAt}
	return s.turnData(port, now)
}

// turnData takes the next packet of whose turn it is.
func (s *scheduler) turnData(port portIndex, now time.Time) (_ *packet, wake time.Time) {
	t := &s.turn
	if !t.of.ready(port) {
		return nil, t.deadline
	}
	p := t.of.data(port).peek()
	n := packetCost(p, port)
	if p.class == control {
		if !s.gate.room(control, n) {
			return nil, t.deadline
		}
		return s.takeData(t.of, port), time.Time{}
	}
	if !s.gate.room(data, n) || !t.sent.zero() && !t.sent.plus(n).atMost(t.of.turns.burst) {
		return nil, t.deadline
	}
	t.sent.add(n)
	t.deadline = now.Add(t.pause)
	return s.takeData(t.of, port), time.Time{}
}

// turnOver ends the turn when it is time.
func (s *scheduler) turnOver(now time.Time) bool {
	t := &s.turn
	turns := &t.of.turns
	switch {
	case t.of.gone || t.sent.zero() && !t.of.hasData():
	case !t.sent.zero() && s.outstanding().atMost(t.level):
		*turns = record{burst: t.sent.plus(t.sent).smaller(amount{lastBurstBytes, lastBurstFrames})}
	case !now.Before(t.deadline):
		*turns = record{failures: turns.failures + 1, retryAt: now.Add(min(firstRetry<<min(turns.failures, 20), lastRetry))}
		t.suspectsAt = now.Add(8 * now.Sub(t.began))
	default:
		return false
	}
	s.turn = turn{suspectsAt: t.suspectsAt}
	if s.next++; s.next >= len(s.lanes) {
		s.next = 0
	}
	return true
}

package relay

import "time"

// The guest's data credit says how much it consumed in all, not of whom. The relay keeps an account of
// what it takes each client to have unread, and lets each have a window of it: small at first, growing
// with what was consumed, and never more than half of what is left of the pool. The pool is half of the
// credit. So commands that never read their input hold little of it.
//
// The account is a guess. What was unread when nothing had moved for a while is old, and consumption is
// put down to what was sent since, to the oldest of it; to old data only when there is nothing else.
//
// For a client that its account or a full pool holds back there are trials, which need no account: nobody
// else sends, the client sends a burst (one packet at first), and when the guest then holds no more than
// before, the client may go on like that with a burst twice as large, and a large one clears its account.
// When the guest holds more, the client is suspected of not reading, and its next trial is later and
// later. The half of the credit that is not the pool is for trials, so a client that reads always gets on,
// whatever others leave unread.
const (
	firstWindowBytes, firstWindowFrames = 1 << 20, 16
	lastWindowBytes, lastWindowFrames   = 8 << 20, 64
	lastBurstBytes, lastBurstFrames     = 4 << 20, 32

	// trialPause is how long without any consumption means that what is there is stuck; for a client that
	// has failed before, which may only be slow, it is longer.
	trialPause, lastTrialPause = 250 * time.Millisecond, 2 * time.Second
	// A client that failed its trial waits this long for the next, twice as long each time.
	firstRetry = 500 * time.Millisecond
	lastRetry  = time.Minute
	// proofFrames is the size of a trial that proves that all a client sent before has been read too.
	proofFrames = 8
	// forgiveFrames is how much consumption lessens a suspicion.
	forgiveFrames = 32
)

var (
	firstWindow = amount{firstWindowBytes, firstWindowFrames}
	lastWindow  = amount{lastWindowBytes, lastWindowFrames}
	lastBurst   = amount{lastBurstBytes, lastBurstFrames}
)

// trial is the exclusive turn of one client.
type trial struct {
	of       *lane
	bursting bool // the others' data has been consumed, or is stuck
	level    amount
	sent     amount
	began    time.Time
	pause    time.Duration
	deadline time.Time
	nextAt   time.Time // not before: others have their time too
}

// shares is the state of it all; the scheduler's lock guards it.
type shares struct {
	order uint64
	moved time.Time // when data was last sent or consumed
	ghost sentList  // of clients that have gone: the guest drops what they sent
	stray sentList  // put down to a client that then proved to be reading
	trial trial
	next  int // where the round over lanes for data begins
	// suspectsAt is when clients that failed a trial may have the next.
	suspectsAt time.Time

	// only is who alone has sent since the guest last held nothing; nil when several have.
	only *lane
}

// outstanding is what the guest holds unread.
func (s *scheduler) outstanding() amount {
	return s.gate.sent[data].minus(s.gate.limit[data].minus(grant(data)))
}

// fits says whether a client may use n more of the pool.
func (s *scheduler) fits(l *lane, n amount) bool {
	if !s.gate.on || n.zero() {
		return true
	}
	g, out := grant(data), s.outstanding()
	pool := amount{g.bytes / 2, g.frames / 2}
	if !out.plus(n).atMost(pool) {
		return false
	}
	unread := l.acct.unread()
	if unread.zero() {
		return true
	}
	free := pool.minus(out.minus(unread))
	return unread.plus(n).atMost(l.acct.window.smaller(amount{free.bytes / 2, free.frames / 2}))
}

// headCost is what the next packet of a queue takes of the data credit.
func headCost(q *fifo, port portIndex) amount {
	p := q.peek()
	if p.class == control {
		return amount{}
	}
	if port == bulkPort {
		return amount{uint64(p.size) + headroom, 1}
	}
	return amount{uint64(p.size), 1}
}

// data returns the client's queue of data for a port.
func (l *lane) data(port portIndex) *fifo {
	if port == bulkPort {
		return &l.raw
	}
	return &l.stream
}

// dataFor takes the next packet of data for a port. Without one, wake is when to look again (zero: when
// something changes).
func (s *scheduler) dataFor(port portIndex, now time.Time) (p *packet, wake time.Time) {
	for {
		if s.shares.trial.of != nil {
			p, wake, going := s.try(port, now)
			if going {
				return p, wake
			}
			continue
		}
		if !now.Before(s.shares.trial.nextAt) && s.startTrial(port, now) {
			continue
		}
		for i := range s.lanes {
			l := s.lanes[(s.shares.next+i)%len(s.lanes)]
			q := l.data(port)
			if !l.open || !l.ready(port) {
				continue
			}
			n := headCost(q, port)
			if s.gate.room(q.peek().class, packetCost(q.peek(), port)) && s.fits(l, n) {
				s.shares.next = (s.shares.next + i + 1) % len(s.lanes)
				return s.takeData(l, port, now), time.Time{}
			}
		}
		// Nobody else can use the time.
		if s.startTrial(port, now) {
			continue
		}
		return nil, s.nextTrial(now)
	}
}

func packetCost(p *packet, port portIndex) amount {
	if port == bulkPort {
		return amount{uint64(p.size) + headroom, 1}
	}
	return amount{uint64(p.size), 1}
}

// takeData moves the next packet of a client out and charges it.
func (s *scheduler) takeData(l *lane, port portIndex, now time.Time) *packet {
	if now.Sub(s.shares.moved) >= trialPause {
		s.settle()
	}
	s.shares.moved = now
	p := l.data(port).pop()
	cost := packetCost(p, port)
	s.gate.charge(p.class, cost)
	if p.class == data && s.gate.on {
		if s.shares.only != l && s.outstanding() != cost {
			s.shares.only = nil
		} else {
			s.shares.only = l
		}
		s.shares.order++
		l.acct.fresh.push(sentPacket{s.shares.order, int(cost.bytes)})
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

// mayTry says whether a client is held back, and whether a trial may change that.
func (s *scheduler) mayTry(l *lane, port portIndex, now time.Time) bool {
	q := l.data(port)
	if !s.gate.on || !l.open || !l.ready(port) || now.Before(l.acct.retryAt) {
		return false
	}
	n := headCost(q, port)
	if s.fits(l, n) || !s.gate.room(data, n) {
		return false
	}
	if s.shares.only == l {
		return false // there is no doubt whose it is
	}
	if l.acct.failures == 0 {
		return true
	}
	// Those that have failed before come now and then, and leave a quarter, or enough for many packets of
	// their size.
	if now.Before(s.shares.suspectsAt) {
		return false
	}
	g := grant(data)
	free := s.gate.limit[data].minus(s.gate.sent[data].plus(n))
	return free.frames >= min(g.frames/4, 32) && free.bytes >= min(g.bytes/4, 16*n.bytes)
}

// startTrial gives a client that is held back its exclusive turn, the least suspected first.
func (s *scheduler) startTrial(port portIndex, now time.Time) bool {
	var best *lane
	for i := range s.lanes {
		l := s.lanes[(s.shares.next+i)%len(s.lanes)]
		if s.mayTry(l, port, now) && (best == nil || l.acct.failures < best.acct.failures) {
			best = l
		}
	}
	if best == nil {
		return false
	}
	pause := min(trialPause*time.Duration(1+best.acct.failures), lastTrialPause)
	s.shares.trial = trial{of: best, began: now, pause: pause, deadline: now.Add(trialPause)}
	return true
}

// nextTrial is when a client that waits may have its trial.
func (s *scheduler) nextTrial(now time.Time) (at time.Time) {
	for _, l := range s.lanes {
		if !l.open || !l.hasData() {
			continue
		}
		may := l.acct.retryAt
		if l.acct.failures > 0 && may.Before(s.shares.suspectsAt) {
			may = s.shares.suspectsAt
		}
		if now.Before(may) && (at.IsZero() || may.Before(at)) {
			at = may
		}
	}
	return at
}

// try goes on with the trial; going is false when it has ended.
func (s *scheduler) try(port portIndex, now time.Time) (p *packet, wake time.Time, going bool) {
	t := &s.shares.trial
	l := t.of
	if l.gone || t.sent.zero() && !l.hasData() {
		s.endTrial(now)
		return nil, time.Time{}, false
	}
	if !t.bursting {
		if now.Before(t.deadline) {
			for _, o := range s.lanes {
				if o != l && !o.acct.fresh.empty() {
					return nil, t.deadline, true
				}
			}
		} else {
			s.settle()
		}
		t.bursting, t.level, t.deadline = true, s.outstanding(), now.Add(t.pause)
	}
	if !t.sent.zero() && s.outstanding().atMost(t.level) {
		l.acct.failures, l.acct.forgiven, l.acct.retryAt = 0, 0, time.Time{}
		l.acct.burst = t.sent.plus(t.sent).smaller(lastBurst)
		if t.sent.frames >= proofFrames || t.sent.bytes >= firstWindowBytes {
			l.acct.old.drainTo(&s.shares.stray)
			l.acct.fresh.drainTo(&s.shares.stray)
		}
		s.endTrial(now.Add(now.Sub(t.began)))
		return nil, time.Time{}, false
	}
	if !now.Before(t.deadline) {
		l.acct.suspect(now)
		s.settle()
		s.shares.suspectsAt = now.Add(8 * now.Sub(t.began))
		s.endTrial(s.shares.suspectsAt)
		return nil, time.Time{}, false
	}
	q := l.data(port)
	if !l.ready(port) {
		return nil, t.deadline, true
	}
	cost := packetCost(q.peek(), port)
	if !s.gate.room(q.peek().class, cost) || !t.sent.zero() && !t.sent.plus(cost).atMost(l.acct.burst) {
		return nil, t.deadline, true
	}
	if q.peek().class == data {
		t.sent.add(cost)
		t.deadline = now.Add(t.pause)
	}
	return s.takeData(l, port, now), time.Time{}, true
}

func (s *scheduler) endTrial(nextAt time.Time) {
	s.shares.trial = trial{nextAt: nextAt}
	s.shares.next++
	if s.shares.next >= len(s.lanes) {
		s.shares.next = 0
	}
}

// settle makes all that is unread old: nothing has moved for a while.
func (s *scheduler) settle() {
	for _, l := range s.lanes {
		l.acct.fresh.drainTo(&l.acct.old)
	}
}

// consumed puts consumption down to clients. A hostile guest may claim to have consumed anything: the
// account ends with what was sent.
func (s *scheduler) consumed(n amount, now time.Time) {
	if n.frames == 0 {
		return
	}
	s.shares.moved = now
	if t := &s.shares.trial; t.of != nil {
		t.deadline = now.Add(t.pause)
	}
	for range n.frames {
		if !s.consumeOne() {
			return
		}
	}
}

func (s *scheduler) consumeOne() bool {
	if !s.shares.ghost.empty() {
		s.shares.ghost.pop()
		return true
	}
	for _, list := range []func(*account) *sentList{(*account).freshList, (*account).oldList} {
		var best *account
		for _, l := range s.lanes {
			a := &l.acct
			if !list(a).empty() && (best == nil || a.failures < best.failures ||
				a.failures == best.failures && list(a).oldest() < list(best).oldest()) {
				best = a
			}
		}
		if best != nil {
			best.reads(list(best))
			return true
		}
	}
	if !s.shares.stray.empty() {
		s.shares.stray.pop()
		return true
	}
	return false
}

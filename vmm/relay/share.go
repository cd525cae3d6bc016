package relay

import "time"

// The guest's data credit says how much it consumed in all, not of whom. The relay keeps an account of
// what it takes each client to have unread, and lets each have a window of it: small at first, growing
// with what was consumed, and never more than half of what is left of the pool. The pool is half of the
// credit. So commands that never read their input hold little of it.
//
// The account is a guess: consumption is put down to the oldest data of clients that are not suspected of
// not reading. For a client that its account or a full pool holds back there are trials, which need no
// account: nobody else sends, the client sends a burst (one packet at first), and when the guest then
// holds no more than before, the client may go on like that with a burst twice as large. When it holds
// more, the client is suspected, and its next trial is later and later. The half of the credit that is
// not the pool is for trials, so a client that reads always gets on, whatever others leave unread.
const (
	firstWindowBytes, firstWindowFrames = 1 << 20, 16
	lastWindowBytes, lastWindowFrames   = 8 << 20, 64
	lastBurstBytes, lastBurstFrames     = 4 << 20, 32

	// trialPause is how long without any consumption means that what is there is stuck.
	trialPause = 250 * time.Millisecond
	// A client that failed its trial waits this long for the next, twice as long each time.
	firstRetry = 500 * time.Millisecond
	lastRetry  = 5 * time.Minute
	// forgiveFrames is how much consumption lessens a suspicion.
	forgiveFrames = 32
)

var (
	firstWindow = amount{firstWindowBytes, firstWindowFrames}
	lastWindow  = amount{lastWindowBytes, lastWindowFrames}
	lastBurst   = amount{lastBurstBytes, lastBurstFrames}
)

// account is what a client is taken to have unread at the guest.
type account struct {
	unread amount
	sent   []sentPacket // of what is unread, oldest first
	head   int
	window amount

	failures int // of trials, without a success since: the suspicion
	forgiven int // frames consumed since it grew
	retryAt  time.Time
	burst    amount // of the next trial; one packet at least
}

type sentPacket struct {
	order uint64 // among all clients
	size  int
}

func (a *account) oldest() uint64 { return a.sent[a.head].order }

func (a *account) push(p sentPacket) {
	if a.head > 0 && len(a.sent) == cap(a.sent) {
		n := copy(a.sent, a.sent[a.head:])
		a.sent, a.head = a.sent[:n], 0
	}
	a.sent = append(a.sent, p)
	a.unread.add(amount{uint64(p.size), 1})
}

func (a *account) pop() {
	p := a.sent[a.head]
	if a.head++; a.head == len(a.sent) {
		a.sent, a.head = a.sent[:0], 0
	}
	a.unread.sub(amount{uint64(p.size), 1})
}

// reads notes that a packet was consumed.
func (a *account) reads() {
	size := a.sent[a.head].size
	a.pop()
	a.window = a.window.plus(amount{uint64(size), 1}).smaller(lastWindow)
	if a.failures > 0 {
		if a.forgiven++; a.forgiven >= forgiveFrames {
			a.failures, a.forgiven = a.failures-1, 0
		}
	}
}

func (a *account) suspect(now time.Time) {
	retry := min(firstRetry<<min(a.failures, 20), lastRetry)
	a.failures++
	a.forgiven = 0
	a.window, a.burst = firstWindow, amount{}
	a.retryAt = now.Add(retry)
}

// trial is the exclusive turn of one client.
type trial struct {
	of       *lane
	bursting bool // the others' data has been consumed, or is stuck
	level    amount
	sent     amount
	began    time.Time
	deadline time.Time
	nextAt   time.Time // not before: others have their time too
}

// shares is the state of it all; the scheduler's lock guards it.
type shares struct {
	order uint64
	ghost account // of clients that have gone: the guest drops what they sent
	trial trial
	next  int // where the round over lanes for data begins
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
	if l.acct.unread.zero() {
		return true
	}
	free := pool.minus(out.minus(l.acct.unread))
	return l.acct.unread.plus(n).atMost(l.acct.window.smaller(amount{free.bytes / 2, free.frames / 2}))
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
			if !l.open || q.len() == 0 {
				continue
			}
			n := headCost(q, port)
			if s.gate.room(q.peek().class, packetCost(q.peek(), port)) && s.fits(l, n) {
				s.shares.next = (s.shares.next + i + 1) % len(s.lanes)
				return s.takeData(l, port), time.Time{}
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
func (s *scheduler) takeData(l *lane, port portIndex) *packet {
	p := l.data(port).pop()
	cost := packetCost(p, port)
	s.gate.charge(p.class, cost)
	if p.class == data && s.gate.on {
		s.shares.order++
		l.acct.push(sentPacket{s.shares.order, int(cost.bytes)})
	}
	if port == controlPort {
		l.passed(p.id())
	}
	l.room.Broadcast()
	return p
}

// passed notes that a packet left stream.
func (l *lane) passed(id uint32) {
	if n := l.behind[id]; n > 1 {
		l.behind[id] = n - 1
	} else {
		delete(l.behind, id)
	}
}

// mayTry says whether a client is held back, and whether a trial may change that.
func (s *scheduler) mayTry(l *lane, port portIndex, now time.Time) bool {
	q := l.data(port)
	if !s.gate.on || !l.open || q.len() == 0 || now.Before(l.acct.retryAt) {
		return false
	}
	n := headCost(q, port)
	if s.fits(l, n) || !s.gate.room(data, n) {
		return false
	}
	if s.outstanding().frames <= l.acct.unread.frames {
		return false // nobody else has anything unread: there is no doubt whose it is
	}
	if l.acct.failures == 0 {
		return true
	}
	// A quarter is kept from those that have failed before.
	g := grant(data)
	free := s.gate.limit[data].minus(s.gate.sent[data].plus(n))
	return free.bytes >= g.bytes/4 && free.frames >= g.frames/4
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
	s.shares.trial = trial{of: best, began: now, deadline: now.Add(trialPause)}
	return true
}

// nextTrial is when a client that waits may have its trial.
func (s *scheduler) nextTrial(now time.Time) (at time.Time) {
	for _, l := range s.lanes {
		if l.open && l.hasData() && now.Before(l.acct.retryAt) && (at.IsZero() || l.acct.retryAt.Before(at)) {
			at = l.acct.retryAt
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
		expired := !now.Before(t.deadline)
		for _, o := range s.lanes {
			if o == l || o.acct.failures > 0 || o.acct.unread.zero() {
				continue
			}
			if !expired {
				return nil, t.deadline, true
			}
			o.acct.suspect(now) // it had all the time there is
		}
		t.bursting, t.level, t.deadline = true, s.outstanding(), now.Add(trialPause)
	}
	if !t.sent.zero() && s.outstanding().atMost(t.level) {
		l.acct.failures, l.acct.forgiven, l.acct.retryAt = 0, 0, time.Time{}
		l.acct.burst = t.sent.plus(t.sent).smaller(lastBurst)
		s.endTrial(now.Add(now.Sub(t.began)))
		return nil, time.Time{}, false
	}
	if !now.Before(t.deadline) {
		l.acct.suspect(now)
		s.endTrial(now.Add(8*now.Sub(t.began)))
		return nil, time.Time{}, false
	}
	q := l.data(port)
	if q.len() == 0 {
		return nil, t.deadline, true
	}
	cost := packetCost(q.peek(), port)
	if !s.gate.room(q.peek().class, cost) || !t.sent.zero() && !t.sent.plus(cost).atMost(l.acct.burst) {
		return nil, t.deadline, true
	}
	if q.peek().class == data {
		t.sent.add(cost)
		t.deadline = now.Add(trialPause)
	}
	return s.takeData(l, port), time.Time{}, true
}

func (s *scheduler) endTrial(nextAt time.Time) {
	s.shares.trial = trial{nextAt: nextAt}
	s.shares.next++
	if s.shares.next >= len(s.lanes) {
		s.shares.next = 0
	}
}

// consumed puts consumption down to clients: those that have gone, then the least suspected, of those the
// oldest data.
//
// A hostile guest may claim to have consumed anything: the loop ends with what was sent.
func (s *scheduler) consumed(n amount, now time.Time) {
	if t := &s.shares.trial; t.of != nil && n.frames > 0 {
		t.deadline = now.Add(trialPause)
	}
	for range n.frames {
		if s.shares.ghost.unread.frames > 0 {
			s.shares.ghost.pop()
			continue
		}
		var best *lane
		for _, l := range s.lanes {
			if l.acct.unread.frames > 0 && (best == nil || l.acct.failures < best.acct.failures ||
				l.acct.failures == best.acct.failures && l.acct.oldest() < best.acct.oldest()) {
				best = l
			}
		}
		if best == nil {
			return
		}
		best.acct.reads()
	}
}

// forget moves the account of a client that has gone.
func (s *scheduler) forget(l *lane) {
	for l.acct.unread.frames > 0 {
		s.shares.ghost.push(l.acct.sent[l.acct.head])
		l.acct.pop()
	}
}

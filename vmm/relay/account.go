package relay

import "time"

// account is what a client is taken to have unread at the guest.
type account struct {
	fresh, old sentList
	window     amount

	failures int // of trials, without a success since: the suspicion
	forgiven int // frames consumed since it grew
	retryAt  time.Time
	burst    amount // of the next trial; one packet at least
}

func (a *account) freshList() *sentList { return &a.fresh }
func (a *account) oldList() *sentList   { return &a.old }

func (a *account) unread() amount { return a.fresh.sum.plus(a.old.sum) }

// reads notes that the oldest packet of a list was consumed.
func (a *account) reads(l *sentList) {
	p := l.pop()
	a.window = a.window.plus(amount{uint64(p.size), 1}).smaller(lastWindow)
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

// sentPacket is a packet of data that the guest may still hold.
type sentPacket struct {
	order uint64 // among all clients
	size  int
}

// sentList is a queue of them.
type sentList struct {
	packets []sentPacket
	head    int
	sum     amount
}

func (l *sentList) empty() bool    { return l.sum.frames == 0 }
func (l *sentList) oldest() uint64 { return l.packets[l.head].order }

func (l *sentList) push(p sentPacket) {
	if l.head > 0 && len(l.packets) == cap(l.packets) {
		n := copy(l.packets, l.packets[l.head:])
		l.packets, l.head = l.packets[:n], 0
	}
	l.packets = append(l.packets, p)
	l.sum.add(amount{uint64(p.size), 1})
}

func (l *sentList) pop() sentPacket {
	p := l.packets[l.head]
	if l.head++; l.head == len(l.packets) {
		l.packets, l.head = l.packets[:0], 0
	}
	l.sum.sub(amount{uint64(p.size), 1})
	return p
}

// drainTo moves everything to another list.
func (l *sentList) drainTo(to *sentList) {
	for !l.empty() {
		to.push(l.pop())
	}
}

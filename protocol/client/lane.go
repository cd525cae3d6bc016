package client

func (l *lane) admits(p *Packet) bool { return l.queued == 0 || l.queued+len(p.B) <= l.limit }

func (l *lane) push(p *Packet) {
	l.queued += len(p.B)
	if l.tail == nil {
		l.head = p
	} else {
		l.tail.next = p
	}
	l.tail = p
}

// inFlight notes that p left the queue for the wire; settle gives its room
// back when it is there.
func (l *lane) inFlight(p *Packet) { l.writing += len(p.B) }

func (l *lane) settle() {
	l.queued -= l.writing
	l.writing = 0
	for wt := l.waitHead; wt != nil && l.admits(wt.p); wt = l.waitHead {
		l.leave(wt)
		l.push(wt.p)
		wt.p = nil
		wt.admitted <- nil
	}
}

func (l *lane) wait(wt *waiter, p *Packet) {
	wt.p, wt.waiting, wt.prev, wt.next = p, true, l.waitTail, nil
	if l.waitTail == nil {
		l.waitHead = wt
	} else {
		l.waitTail.next = wt
	}
	l.waitTail = wt
}

func (l *lane) leave(wt *waiter) {
	if wt.prev == nil {
		l.waitHead = wt.next
	} else {
		wt.prev.next = wt.next
	}
	if wt.next == nil {
		l.waitTail = wt.prev
	} else {
		wt.next.prev = wt.prev
	}
	wt.prev, wt.next, wt.waiting = nil, nil, false
}

// drop ends everything that has not reached the wire.
func (l *lane) drop(err error) {
	for l.waitHead != nil {
		wt := l.waitHead
		l.leave(wt)
		wt.p.Free()
		wt.p = nil
		wt.admitted <- err
	}
	for p := l.head; p != nil; {
		next := p.next
		l.queued -= len(p.B)
		if p.written != nil {
			p.written <- err
		}
		p.Free()
		p = next
	}
	l.head, l.tail = nil, nil
}

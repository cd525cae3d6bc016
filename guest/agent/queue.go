package agent

import "sync"

// entry is one queued frame: head, then body if there is one. A sender that lends its body waits on done.
type entry struct {
	head []byte
	body []byte
	data bool
	done *waiter
}

func (e *entry) size() int { return len(e.head) + len(e.body) }

// waiter tells a sender what became of its frame.
type waiter struct{ result chan error }

var waiters = sync.Pool{New: func() any { return &waiter{result: make(chan error, 1)} }}

// queue holds the frames of one id in order.
type queue struct {
	id      uint32
	entries []entry
	bytes   int
	where   *ring // the ring that holds the queue, nil while it is being served or empty
	room    sync.Cond
	waiting int // senders
}

// ring is a round of queues.
type ring struct{ queues []*queue }

func (r *ring) push(q *queue) {
	r.queues = append(r.queues, q)
	q.where = r
}

func (r *ring) pop() *queue {
	q := r.queues[0]
	r.queues[0] = nil
	r.queues = r.queues[1:]
	q.where = nil
	return q
}

func (r *ring) remove(q *queue) {
	for i, x := range r.queues {
		if x == q {
			r.queues = append(r.queues[:i:i], r.queues[i+1:]...)
			q.where = nil
			return
		}
	}
}

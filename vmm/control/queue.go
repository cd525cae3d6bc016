package control

import (
	"context"
	"sync"
)

// queue holds the jobs of all connections. They are taken in turn, one of each
// connection, so that one that sends many does not hold up the others.
type queue struct {
	limit int
	wake  chan struct{}

	mu    sync.Mutex
	ring  []*lane // with jobs
	total int
}

// job carries out one request and hands on its reply without waiting.
type job func(ctx context.Context)

// lane is the part of one connection.
type lane struct {
	jobs []job
}

func newQueue(limit int) *queue { return &queue{limit: limit, wake: make(chan struct{}, 1)} }

// push adds a job; false when the queue is full.
func (q *queue) push(l *lane, j job) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.total >= q.limit {
		return false
	}
	q.total++
	if len(l.jobs) == 0 {
		q.ring = append(q.ring, l)
	}
	l.jobs = append(l.jobs, j)
	select {
	case q.wake <- struct{}{}:
	default:
	}
	return true
}

// next waits for the next job.
func (q *queue) next(ctx context.Context) (job, bool) {
	for {
		if ctx.Err() != nil {
			return nil, false
		}
		if j := q.pop(); j != nil {
			return j, true
		}
		select {
		case <-q.wake:
		case <-ctx.Done():
		}
	}
}

func (q *queue) pop() job {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.ring) == 0 {
		return nil
	}
	l := q.ring[0]
	q.ring = q.ring[1:]
	j := l.jobs[0]
	l.jobs = l.jobs[1:]
	if len(l.jobs) > 0 {
		q.ring = append(q.ring, l)
	}
	q.total--
	return j
}

// drop forgets the jobs of a connection that has gone, and says how many.
func (q *queue) drop(l *lane) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := len(l.jobs)
	for i, o := range q.ring {
		if o == l {
			q.ring = append(q.ring[:i:i], q.ring[i+1:]...)
			break
		}
	}
	q.total -= n
	l.jobs = nil
	return n
}

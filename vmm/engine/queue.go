package engine

import (
	"sync"
	"time"
)

// EventQueue is the bounded queue behind VM.Events, for engines. When it is full the oldest event is dropped.
type EventQueue struct {
	mu     sync.Mutex
	c      chan Event
	closed bool
}

// NewEventQueue holds up to size events.
func NewEventQueue(size int) *EventQueue { return &EventQueue{c: make(chan Event, size)} }

// Post adds e, with the time of now unless it has one. It never blocks, and does nothing after Close.
func (q *EventQueue) Post(e Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	for {
		select {
		case q.c <- e:
			return
		default:
		}
		select {
		case <-q.c:
		default:
		}
	}
}

// Close ends the channel; events in it can still be read.
func (q *EventQueue) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.closed = true
		close(q.c)
	}
}

// C is the channel for VM.Events.
func (q *EventQueue) C() <-chan Event { return q.c }

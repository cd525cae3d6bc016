package agentclient

import (
	"sync"
	"time"
)

// deadline closes a channel at a point in time that can be moved.
type deadline struct {
	mu    sync.Mutex
	timer *time.Timer
	done  chan struct{}
}

func newDeadline() *deadline { return &deadline{done: make(chan struct{})} }

// set moves the deadline; the zero time means none.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.done // the timer has fired or is about to
	}
	d.timer = nil

	passed := false
	select {
	case <-d.done:
		passed = true
	default:
	}
	if t.IsZero() {
		if passed {
			d.done = make(chan struct{})
		}
		return
	}
	if wait := time.Until(t); wait > 0 {
		if passed {
			d.done = make(chan struct{})
		}
		done := d.done
		d.timer = time.AfterFunc(wait, func() { close(done) })
		return
	}
	if !passed {
		close(d.done)
	}
}

// wait returns the channel of the current deadline.
func (d *deadline) wait() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.done
}

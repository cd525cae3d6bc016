package exec

import (
	"sync"
	"syscall"
)

// Reaper owns wait4 for the whole process. As PID 1 it collects every orphan, and it never loses the status of a child
// that a session waits for. Nothing else in the process may wait for children.
type Reaper struct {
	mu       sync.Mutex
	wake     sync.Cond
	spawning int                              // forks under way: an unknown pid may belong to one of them
	early    map[int]syscall.WaitStatus       // exits seen before their fork returned
	waiting  map[int]func(syscall.WaitStatus) // children that sessions wait for
	forks    uint64                           // counts forks, so that the loop knows when to try again
	closed   bool
	done     chan struct{}
}

// NewReaper starts the reaper's goroutine.
func NewReaper() *Reaper {
	r := &Reaper{
		early:   make(map[int]syscall.WaitStatus),
		waiting: make(map[int]func(syscall.WaitStatus)),
		done:    make(chan struct{}),
	}
	r.wake.L = &r.mu
	go r.loop()
	return r
}

// Spawn runs fork, which starts one child and returns its pid, and calls exited once with the child's status, from the
// reaper's goroutine or from Spawn itself: exited must not block.
func (r *Reaper) Spawn(fork func() (pid int, err error), exited func(syscall.WaitStatus)) (pid int, err error) {
	r.mu.Lock()
	r.spawning++
	r.mu.Unlock()

	pid, err = fork()

	r.mu.Lock()
	status, over := r.early[pid]
	if err == nil {
		if over {
			delete(r.early, pid)
		} else {
			r.waiting[pid] = exited
		}
	}
	if r.spawning--; r.spawning == 0 {
		clear(r.early)
	}
	r.forks++
	r.wake.Broadcast()
	r.mu.Unlock()

	if err == nil && over {
		exited(status)
	}
	return pid, err
}

// Close ends the goroutine once it has no child left to wait for, and waits for it. Children must have been killed.
func (r *Reaper) Close() {
	r.mu.Lock()
	r.closed = true
	r.wake.Broadcast()
	r.mu.Unlock()
	<-r.done
}

func (r *Reaper) loop() {
	defer close(r.done)
	for {
		r.mu.Lock()
		seen := r.forks
		r.mu.Unlock()

		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			// No child at all, and so no orphan can turn up either: one needs a child of ours to descend from.
			if !r.idle(seen) {
				return
			}
		case status.Exited() || status.Signaled():
			r.reaped(pid, status)
		}
	}
}

// idle blocks until something has been forked since seen; false means that the reaper is closed.
func (r *Reaper) idle(seen uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.forks == seen && !r.closed {
		r.wake.Wait()
	}
	return r.forks != seen || !r.closed
}

func (r *Reaper) reaped(pid int, status syscall.WaitStatus) {
	r.mu.Lock()
	exited, known := r.waiting[pid]
	delete(r.waiting, pid)
	if !known && r.spawning > 0 {
		r.early[pid] = status
	}
	r.mu.Unlock()
	if known {
		exited(status)
	}
}

package fusefs

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// interruptGrace is how long a request may go on after its caller got a signal.
// The kernel does not say which: a progress timer must not make a program fail
// with EINTR, Ctrl-C must end a request that hangs.
const interruptGrace = 500 * time.Millisecond

var errInterrupted = errors.New("interrupted")

// watchTick is how often requests that are under way are looked after. A timer
// for each would cost more than most of them take.
const watchTick = 20 * time.Millisecond

// request is the context of one request of the kernel.
type request struct {
	table  *deadlines
	cancel <-chan struct{} // closed by the kernel's interrupt
	end    time.Time

	// Guarded by table.mu.
	prev, next  *request
	interrupted time.Time

	mu    sync.Mutex
	done  chan struct{} // closed when the request ends early; nil: nobody asked for it
	err   error
	after []*func() // called when the request ends early
}

// bounded returns a context for one request: it ends after limit, with the
// mount, and interruptGrace after the kernel interrupted the request.
func (s *base) bounded(cancel <-chan struct{}, limit time.Duration) (context.Context, func()) {
	r := &request{table: &s.deadlines, cancel: cancel, end: time.Now().Add(limit)}
	s.deadlines.add(r)
	return r, r.answer
}

func (r *request) Deadline() (time.Time, bool) { return r.end, true }
func (r *request) Value(any) any               { return nil }

func (r *request) Done() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done == nil {
		r.done = make(chan struct{})
		if r.err != nil {
			close(r.done)
		}
	}
	return r.done
}

func (r *request) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == errInterrupted {
		return context.Canceled
	}
	return r.err
}

// AfterFunc is what context.AfterFunc uses where a context has it.
func (r *request) AfterFunc(f func()) (stop func() bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		go f()
		return func() bool { return false }
	}
	r.after = append(r.after, &f)
	return func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		i := slices.Index(r.after, &f)
		if i >= 0 {
			r.after = slices.Delete(r.after, i, i+1)
		}
		return i >= 0
	}
}

// interrupted tells whether a context of bounded ended because the kernel
// interrupted the request.
func interrupted(ctx context.Context) bool {
	if r, ok := ctx.(*request); ok {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.err == errInterrupted
	}
	return errors.Is(context.Cause(ctx), errInterrupted)
}

func (r *request) finish(err error) {
	r.mu.Lock()
	var after []*func()
	if r.err == nil {
		r.err = err
		if r.done != nil {
			close(r.done)
		}
		after, r.after = r.after, nil
	}
	r.mu.Unlock()
	for _, f := range after {
		(*f)()
	}
}

// answer ends the request in time.
func (r *request) answer() {
	r.table.remove(r)
	r.finish(context.Canceled)
}

// deadlines looks after the requests that are under way. It rests while there are
// none.
type deadlines struct {
	s *base

	mu      sync.Mutex
	oldest  *request // a list in both directions
	newest  *request
	running bool
}

func (w *deadlines) add(r *request) {
	w.mu.Lock()
	if r.prev = w.newest; r.prev != nil {
		r.prev.next = r
	} else {
		w.oldest = r
	}
	w.newest = r
	start := !w.running
	w.running = true
	w.mu.Unlock()
	if start && !w.s.spawn(w.run) {
		w.mu.Lock()
		w.running = false
		w.mu.Unlock()
		r.finish(context.Canceled) // the mount has gone
	}
}

func (w *deadlines) remove(r *request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.prev != nil {
		r.prev.next = r.next
	} else {
		w.oldest = r.next
	}
	if r.next != nil {
		r.next.prev = r.prev
	} else {
		w.newest = r.prev
	}
}

// watchRest is for how many ticks without a request the watch goes on.
const watchRest = 50

func (w *deadlines) run() {
	tick := time.NewTicker(watchTick)
	defer tick.Stop()
	for quiet := 0; ; {
		gone := false
		select {
		case <-tick.C:
		case <-w.s.ctx.Done():
			gone = true
		}
		w.mu.Lock()
		if w.oldest != nil {
			quiet = 0
		} else if quiet++; gone || quiet > watchRest {
			w.running = false
			w.mu.Unlock()
			return
		}
		late := w.late(gone)
		w.mu.Unlock()
		for _, x := range late {
			x.r.finish(x.err)
		}
		if gone {
			<-tick.C
		}
	}
}

// late returns the requests that have to end and why. w.mu is held.
func (w *deadlines) late(gone bool) (all []lateRequest) {
	now := time.Now()
	for r := w.oldest; r != nil; r = r.next {
		if r.interrupted.IsZero() {
			select {
			case <-r.cancel:
				r.interrupted = now
			default:
			}
		}
		switch {
		case gone:
			all = append(all, lateRequest{r, context.Canceled})
		case !now.Before(r.end):
			all = append(all, lateRequest{r, context.DeadlineExceeded})
		case !r.interrupted.IsZero() && now.Sub(r.interrupted) >= interruptGrace:
			all = append(all, lateRequest{r, errInterrupted})
		}
	}
	return all
}

type lateRequest struct {
	r   *request
	err error
}

// nameOp bounds a request for names or attributes.
func (s *base) nameOp(cancel <-chan struct{}) (context.Context, func()) {
	return s.bounded(cancel, s.opts.NameTimeout)
}

// dataOp bounds a request that moves data.
func (s *base) dataOp(cancel <-chan struct{}) (context.Context, func()) {
	return s.bounded(cancel, s.opts.DataTimeout)
}

// quiesce waits until the guest has the data of q, as data: the request for
// attributes that follows has its own, shorter time.
func (s *base) quiesce(cancel <-chan struct{}, q *writeQueue) fuse.Status {
	if q == nil || q.idle() {
		return fuse.OK
	}
	ctx, end := s.dataOp(cancel)
	defer end()
	return s.status(ctx, q.drain(ctx))
}

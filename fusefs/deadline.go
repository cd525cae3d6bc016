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

// promptly is how long a request may take before somebody watches over it: most
// are answered sooner, and a watch costs as much as they do.
const promptly = 10 * time.Millisecond

// request is the context of one request of the kernel. Value, Deadline and the
// rest are those of a context that nobody derives from in the common case.
type request struct {
	s      *base
	cancel <-chan struct{}
	end    time.Time
	done   chan struct{} // closed when the request ends early
	over   chan struct{} // closed when it is answered; nil until it is watched
	watch  *time.Timer

	mu       sync.Mutex
	err      error
	answered bool
	after    []*func() // called when the request ends early
}

// bounded returns a context for one request: it ends after limit, with the
// mount, and interruptGrace after the kernel interrupted the request.
func (s *base) bounded(cancel <-chan struct{}, limit time.Duration) (context.Context, func()) {
	r := &request{s: s, cancel: cancel, end: time.Now().Add(limit), done: make(chan struct{})}
	r.watch = time.AfterFunc(min(promptly, limit), r.guard)
	return r, r.answer
}

func (r *request) Deadline() (time.Time, bool) { return r.end, true }
func (r *request) Done() <-chan struct{}       { return r.done }
func (r *request) Value(any) any               { return nil }

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

func (r *request) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == errInterrupted {
		return context.Canceled
	}
	return r.err
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
	if r.err == nil && !r.answered {
		r.err = err
		close(r.done)
		after, r.after = r.after, nil
	}
	r.mu.Unlock()
	for _, f := range after {
		(*f)()
	}
}

func (r *request) answer() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.answered {
		return
	}
	r.answered = true
	r.watch.Stop()
	if r.err == nil {
		r.err = context.Canceled
		close(r.done)
	}
	if r.over != nil {
		close(r.over)
	}
}

// guard watches over a request that takes its time. It runs in the goroutine of
// its timer and ends with the request.
func (r *request) guard() {
	r.mu.Lock()
	if r.answered {
		r.mu.Unlock()
		return
	}
	r.over = make(chan struct{})
	r.mu.Unlock()
	limit := time.NewTimer(time.Until(r.end))
	defer limit.Stop()
	select {
	case <-r.over:
		return
	case <-limit.C:
		r.finish(context.DeadlineExceeded)
		return
	case <-r.s.ctx.Done():
		r.finish(context.Canceled)
		return
	case <-r.cancel:
	}
	grace := time.NewTimer(interruptGrace)
	defer grace.Stop()
	select {
	case <-r.over:
	case <-limit.C:
		r.finish(context.DeadlineExceeded)
	case <-r.s.ctx.Done():
		r.finish(context.Canceled)
	case <-grace.C:
		r.finish(errInterrupted)
	}
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

package fusefs

import (
	"context"
	"errors"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// interruptGrace is how long a request may go on after its caller got a signal.
// The kernel does not say which: a progress timer must not make a program fail
// with EINTR, Ctrl-C must end a request that hangs.
const interruptGrace = 500 * time.Millisecond

var errInterrupted = errors.New("interrupted")

// bounded returns a context for one request: it ends after limit, with the
// mount, and interruptGrace after the kernel interrupted the request.
func (s *base) bounded(cancel <-chan struct{}, limit time.Duration) (context.Context, func()) {
	ctx, stop := context.WithCancelCause(s.ctx)
	ctx, stopTimer := context.WithTimeout(ctx, limit)
	end := func() { stopTimer(); stop(nil) }
	if cancel == nil {
		return ctx, end
	}
	go func() {
		select {
		case <-ctx.Done():
			return
		case <-cancel:
		}
		grace := time.NewTimer(interruptGrace)
		defer grace.Stop()
		select {
		case <-ctx.Done():
		case <-grace.C:
			stop(errInterrupted)
		}
	}()
	return ctx, end
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

package fusefs

import (
	"context"
	"errors"
	"math"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"msb/protocol/agent"
)

// GetLk tells which lock is in the way.
func (s *nodeFS) GetLk(cancel <-chan struct{}, in *fuse.LkIn, out *fuse.LkOut) fuse.Status {
	f, errno := s.opens.file(in.Fh)
	if errno != 0 {
		return fuse.Status(errno)
	}
	ctx, end := s.nameOp(cancel)
	defer end()
	c, ref, err := f.remote(ctx)
	if err != nil {
		return s.status(ctx, err)
	}
	defer f.done()
	results, err := s.do(ctx, c, &agent.NodeTestLock{Handle: ref, Type: in.Lk.Typ, Start: in.Lk.Start, Len: lockLen(&in.Lk), Owner: in.Owner})
	if err != nil {
		return s.status(ctx, err)
	}
	l := results[0].(*agent.NodeLockResult)
	out.Lk = fuse.FileLock{Start: l.Start, End: math.MaxInt64, Typ: l.Type}
	if l.Len > 0 && l.Start <= math.MaxInt64 && l.Len-1 <= math.MaxInt64-l.Start {
		out.Lk.End = l.Start + l.Len - 1
	}
	return fuse.OK
}

func lockLen(l *fuse.FileLock) uint64 {
	if l.End >= math.MaxInt64 || l.End < l.Start {
		return 0
	}
	return l.End - l.Start + 1
}

// SetLk sets or drops a lock, or says that another one is in the way.
func (s *nodeFS) SetLk(cancel <-chan struct{}, in *fuse.LkIn) fuse.Status {
	ctx, end := s.nameOp(cancel)
	defer end()
	return s.setLock(ctx, in, false)
}

// SetLkw waits for a lock, for as long as its caller does.
func (s *nodeFS) SetLkw(cancel <-chan struct{}, in *fuse.LkIn) fuse.Status {
	ctx, stop := context.WithCancelCause(s.ctx)
	defer stop(nil)
	go func() {
		select {
		case <-cancel:
			stop(errInterrupted)
		case <-ctx.Done():
		}
	}()
	return s.setLock(ctx, in, true)
}

func (s *nodeFS) setLock(ctx context.Context, in *fuse.LkIn, wait bool) fuse.Status {
	f, errno := s.opens.file(in.Fh)
	if errno != 0 {
		return fuse.Status(errno)
	}
	op := &agent.NodeLock{Type: in.Lk.Typ, Wait: wait}
	if in.LkFlags&fuse.LK_FLOCK != 0 {
		op.Kind = agent.NodeFlock
	} else {
		op.Start, op.Len, op.Owner = in.Lk.Start, lockLen(&in.Lk), in.Owner
	}
	bounded, end := s.nameOp(nil)
	c, ref, err := f.remote(bounded)
	end()
	if err != nil {
		return s.status(ctx, err)
	}
	defer f.done()
	if op.Type != agent.NodeUnlock {
		f.mu.Lock()
		f.locked = true
		f.mu.Unlock()
		if op.Kind == agent.NodePosix {
			f.n.mu.Lock()
			f.n.locked = true
			f.n.mu.Unlock()
		}
	}
	op.Handle = ref
	_, err = s.do(ctx, c, op)
	if errors.Is(context.Cause(ctx), errInterrupted) && err != nil {
		return fuse.Status(syscall.EINTR)
	}
	return s.status(ctx, err)
}

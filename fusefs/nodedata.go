package fusefs

import (
	"math"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"msb/protocol/agent"
)

// Lseek finds data and holes.
func (s *nodeFS) Lseek(cancel <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	f, errno := s.opens.file(in.Fh)
	if errno != 0 {
		return fuse.Status(errno)
	}
	ctx, end := s.dataOp(cancel)
	defer end()
	if err := f.n.queue.drain(ctx); err != nil {
		return s.status(ctx, err)
	}
	c, ref, err := f.remote(ctx)
	if err != nil {
		return s.status(ctx, err)
	}
	defer f.done()
	results, err := s.do(ctx, c, &agent.NodeSeek{Handle: ref, Offset: in.Offset, Whence: in.Whence})
	if err != nil {
		return s.status(ctx, err)
	}
	out.Offset = results[0].(*agent.NodeNumberResult).N
	if out.Offset > math.MaxInt64 {
		return fuse.EIO
	}
	return fuse.OK
}

// Fallocate reserves or frees space.
func (s *nodeFS) Fallocate(cancel <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	if s.opts.ReadOnly {
		return fuse.EROFS
	}
	f, errno := s.opens.file(in.Fh)
	if errno != 0 {
		return fuse.Status(errno)
	}
	ctx, end := s.dataOp(cancel)
	defer end()
	if err := f.n.queue.drain(ctx); err != nil {
		return s.status(ctx, err)
	}
	c, ref, err := f.remote(ctx)
	if err != nil {
		return s.status(ctx, err)
	}
	defer f.done()
	defer f.n.changed()
	_, err = s.do(ctx, c, &agent.NodeAllocate{Handle: ref, Mode: in.Mode, Offset: in.Offset, Len: in.Length})
	return s.status(ctx, err)
}

// CopyFileRange copies within the guest.
func (s *nodeFS) CopyFileRange(cancel <-chan struct{}, in *fuse.CopyFileRangeIn) (uint32, fuse.Status) {
	if s.opts.ReadOnly {
		return 0, fuse.EROFS
	}
	from, errno := s.opens.file(in.FhIn)
	if errno != 0 {
		return 0, fuse.Status(errno)
	}
	to, errno := s.opens.file(in.FhOut)
	if errno != 0 {
		return 0, fuse.Status(errno)
	}
	ctx, end := s.dataOp(cancel)
	defer end()
	for _, f := range []*openFile{from, to} {
		if err := f.n.queue.drain(ctx); err != nil {
			return 0, s.status(ctx, err)
		}
	}
	c, src, err := from.remote(ctx)
	if err != nil {
		return 0, s.status(ctx, err)
	}
	defer from.done()
	d, dst, err := to.remote(ctx)
	if err != nil {
		return 0, s.status(ctx, err)
	}
	defer to.done()
	if c.epoch != d.epoch {
		return 0, fuse.Status(syscall.EIO)
	}
	defer to.n.changed()
	length := min(in.Len, math.MaxInt32&^4095)
	results, err := s.do(ctx, d, &agent.NodeCopyRange{From: src, FromOffset: in.OffIn, To: dst, ToOffset: in.OffOut, Len: length})
	if err != nil {
		return 0, s.status(ctx, err)
	}
	n := results[0].(*agent.NodeNumberResult).N
	if n > length {
		return 0, fuse.EIO
	}
	return uint32(n), fuse.OK
}

package fusefs

import (
	"context"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"msb/protocol/agent"
)

// Read reads from an open file.
func (s *nodeFS) Read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	f, errno := s.opens.file(in.Fh)
	if errno != 0 {
		return nil, fuse.Status(errno)
	}
	if len(buf) > int(in.Size) {
		buf = buf[:in.Size]
	}
	if f.n.queue.idle() {
		if data, ok := f.small.get(int64(in.Offset), len(buf), s.aheadTTL()); ok {
			return fuse.ReadResultData(data), fuse.OK
		}
	}
	ctx, end := s.dataOp(cancel)
	defer end()
	if err := f.n.queue.drain(ctx); err != nil {
		return nil, s.status(ctx, err)
	}
	res, err := f.ahead.read(ctx, int64(in.Offset), buf)
	if err != nil {
		return nil, s.status(ctx, err)
	}
	return res, fuse.OK
}

// Write takes data for an open file. Appended data goes to the guest at once, to
// be placed at the end that it has there; other data is queued.
func (s *nodeFS) Write(cancel <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	f, errno := s.opens.file(in.Fh)
	if errno != 0 {
		return 0, fuse.Status(errno)
	}
	ctx, end := s.dataOp(cancel)
	defer end()
	if err := f.failure(); err != nil {
		return 0, s.status(ctx, err)
	}
	if !s.link.up() {
		return 0, fuse.Status(syscall.ENOTCONN)
	}
	kills := in.WriteFlags&fuse.WRITE_KILL_SUIDGID != 0
	if kills {
		f.killPriv()
		if err := s.dropSetID(ctx, f.n, s.ids.gid.guest(in.Gid)); err != nil {
			return 0, s.status(ctx, err)
		}
	}
	defer f.n.changed()
	if in.WriteFlags&fuse.WRITE_CACHE != 0 {
		defer s.forgetAttr(f.n.id) // a mapping's pages: the kernel does not move the times itself
	}
	if f.flags&agent.NodeAppend == 0 && !s.strict() {
		if err := s.enqueue(ctx, &f.n.queue, f, int64(in.Offset), data); err != nil {
			return 0, s.status(ctx, err)
		}
		return uint32(len(data)), fuse.OK
	}
	if err := f.n.queue.drain(ctx); err != nil {
		return 0, s.status(ctx, err)
	}
	if err := f.writeAt(ctx, data, int64(in.Offset)); err != nil {
		return 0, s.status(ctx, err)
	}
	return uint32(len(data)), fuse.OK
}

// Writev is Write for data in several parts, which a kernel mount never has.
func (s *nodeFS) Writev(<-chan struct{}, *fuse.WriteIn, [][]byte) (uint32, fuse.Status) {
	return 0, fuse.ENOSYS
}

// Flush is called at each close(2). The guest is asked only when there is
// something for it: data, locks to drop, or a handle that was written to.
func (s *nodeFS) Flush(cancel <-chan struct{}, in *fuse.FlushIn) fuse.Status {
	f, errno := s.opens.file(in.Fh)
	if errno != 0 {
		return fuse.Status(errno)
	}
	f.n.mu.Lock()
	locked := f.n.locked
	f.n.mu.Unlock()
	f.mu.Lock()
	wrote := f.wrote
	f.mu.Unlock()
	if f.n.queue.idle() && !locked && !wrote {
		if err := f.failure(); err != nil {
			return fuse.Status(s.errno(s.ctx, err))
		}
		return fuse.OK
	}
	ctx, end := s.dataOp(cancel)
	defer end()
	_, err := s.deliver(ctx, f.n, nil)
	if locked {
		if c, ref, rerr := f.remote(ctx); rerr == nil {
			if _, ferr := s.do(ctx, c, &agent.NodeFlush{Handle: ref, Owner: in.LockOwner}); err == nil {
				err = ferr
			}
			f.done()
		}
	}
	f.mu.Lock()
	wrote = f.wrote
	f.mu.Unlock()
	if wrote {
		if cerr := s.closeWritten(ctx, f); err == nil {
			err = cerr
		}
	}
	if err == nil {
		err = f.failure()
	}
	return s.status(ctx, err)
}

// closeWritten closes the guest's handle of a file that was written to.
func (s *nodeFS) closeWritten(ctx context.Context, f *openFile) error {
	c, err := s.conn()
	if err != nil {
		return err
	}
	ref := f.detach(c.epoch)
	if ref == 0 {
		return nil
	}
	_, err = s.do(ctx, c, &agent.NodeClose{Handle: ref})
	return err
}

// deliver sees that the guest has all data of n. A small piece that waits goes in
// one request with then, if that is not nil, and with the close of its handle.
// It returns the answer to then, nil when that is still to be sent.
func (s *nodeFS) deliver(ctx context.Context, n *inode, then *agent.NodeSetAttr) (*agent.NodeAttrResult, error) {
	p := n.queue.steal()
	if p == nil {
		return nil, n.queue.drain(ctx)
	}
	answer, stored, err := s.sendStolen(ctx, p, then)
	s.finish(&n.queue, p, stored)
	if err != nil || answer != nil {
		return answer, err
	}
	return nil, n.queue.drain(ctx)
}

// sendStolen sends a piece of data and what goes with it. stored tells whether
// the data has arrived, err whether then failed.
func (s *nodeFS) sendStolen(ctx context.Context, p *piece, then *agent.NodeSetAttr) (answer *agent.NodeAttrResult, stored, err error) {
	f := p.to.(*openFile)
	if err := f.failure(); err != nil {
		return nil, err, nil
	}
	c, err := s.conn()
	if err != nil {
		return nil, err, nil
	}
	ref := f.usable(c.epoch)
	if ref == 0 {
		return nil, f.writeAt(ctx, p.buf, p.off), nil
	}
	ops := []agent.NodeOp{&agent.NodeWrite{Handle: ref, Offset: uint64(p.off), Data: p.buf, Flags: f.writeFlags()}}
	if then != nil {
		ops = append(ops, then)
	}
	closing := f.detach(c.epoch)
	if closing != 0 {
		ops = append(ops, &agent.NodeClose{Handle: closing})
	}
	results, err := s.do(ctx, c, ops...)
	if closing != 0 && len(results) < len(ops)-1 {
		s.farewell.close(closing, c.epoch)
	}
	switch {
	case err != nil && (len(results) == 0 || len(results) == len(ops)-1 && closing != 0):
		return nil, err, nil // the write, or the close with what it had not told
	case then != nil && len(results) > 1:
		return results[1].(*agent.NodeAttrResult), nil, nil
	}
	return nil, nil, err
}

// Fsync returns when the file is on the guest's disk.
func (s *nodeFS) Fsync(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	f, errno := s.opens.file(in.Fh)
	if errno != 0 {
		return fuse.Status(errno)
	}
	ctx, end := s.dataOp(cancel)
	defer end()
	if err := f.n.queue.drain(ctx); err != nil {
		return s.status(ctx, err)
	}
	if err := f.failure(); err != nil {
		return s.status(ctx, err)
	}
	c, ref, err := f.remote(ctx)
	if err == nil {
		defer f.done()
		_, err = s.do(ctx, c, &agent.NodeSync{Target: ref, DataOnly: in.FsyncFlags&1 != 0})
	}
	return s.status(ctx, err)
}

package fusefs

import (
	"context"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"msb/protocol/agent"
)

// Open opens an existing file. One that is only read is opened, read whole if it
// is small, and closed again in one round trip.
func (s *nodeFS) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	flags := guestFlags(in.Flags)
	writes := flags&(syscall.O_ACCMODE|agent.NodeTruncate) != 0
	if s.opts.ReadOnly && writes {
		return fuse.EROFS
	}
	n, errno := s.inodes.get(in.NodeId)
	if errno != 0 {
		return fuse.Status(errno)
	}
	if st := s.quiesce(cancel, &n.queue); !st.Ok() {
		return st
	}
	ctx, end := s.nameOp(cancel)
	defer end()
	var f *openFile
	var keep bool
	var err error
	if writes {
		f, keep, err = s.openWrite(ctx, n, flags, in)
	} else {
		f, keep, err = s.openRead(ctx, n, flags)
	}
	if err != nil {
		return s.status(ctx, err)
	}
	out.Fh = f.id
	out.OpenFlags = s.openFlags(f)
	if keep && out.OpenFlags == 0 {
		out.OpenFlags = fuse.FOPEN_KEEP_CACHE
	}
	return fuse.OK
}

func (s *nodeFS) openRead(ctx context.Context, n *inode, flags uint32) (f *openFile, keep bool, err error) {
	version := n.versionNow()
	n.mu.Lock()
	size, known := n.attr.Size, !n.at.IsZero() && !n.wrote
	warm := known && n.fill.likely()
	asked := n.at
	n.mu.Unlock()
	trusted := warm && (s.opts.Alone && time.Since(asked) < s.opts.AttrTimeout || s.watch.covers(n, asked) && time.Since(asked) < s.opts.WatchTimeout)
	if trusted {
		return s.newOpen(n, flags), true, nil
	}
	p, err := s.plan()
	if err != nil {
		return nil, false, err
	}
	node, err := p.named(ctx, n)
	if err != nil {
		return nil, false, err
	}
	whole := known && size <= smallFile && !warm && !s.strict()
	var h, r agent.NodeRef
	if !warm || s.strict() {
		open := flags
		if whole {
			open |= agent.NodeNoAtime // nobody has read it yet
		}
		h = p.add(&agent.NodeOpen{Node: node, Flags: open})
	}
	if whole {
		r = p.add(&agent.NodeRead{Handle: h, Len: uint32(size) + 1})
		p.add(&agent.NodeClose{Handle: h})
	}
	i := p.add(&agent.NodeGetAttr{Target: node})
	at := time.Now()
	results, err := p.run(ctx, nil)
	if err != nil {
		p.giveBack(results)
		return nil, false, err
	}
	a := results[i].(*agent.NodeAttrResult).Attr
	if errno := n.accept(&a); errno != 0 {
		p.giveBack(results)
		return nil, false, errno
	}
	f = s.newOpen(n, flags)
	if (!warm || s.strict()) && !whole {
		f.ref, f.epoch = results[h].(*agent.NodeHandleResult).Handle, p.c.epoch
	}
	keep = s.observe(n, &a, version)
	if whole && n.versionNow() == version {
		if data := results[r].(*agent.NodeBytesResult).Data; uint64(len(data)) == a.Size && len(data) <= int(size) {
			f.small.put(data, at)
		}
	}
	return f, keep, nil
}

func (s *nodeFS) openWrite(ctx context.Context, n *inode, flags uint32, in *fuse.OpenIn) (f *openFile, keep bool, err error) {
	version := n.versionNow()
	p, err := s.plan()
	if err != nil {
		return nil, false, err
	}
	truncates := flags&agent.NodeTruncate != 0
	if truncates && s.opts.AllowOther {
		// Who may write was checked for the file that the kernel knows: make
		// sure that it is this one before anything happens to it.
		q := &plan{s: s, c: p.c}
		if _, err := q.named(ctx, n); err != nil {
			return nil, false, err
		}
		if _, err := q.run(ctx, nil); err != nil {
			return nil, false, err
		}
	}
	node, err := p.named(ctx, n)
	if err != nil {
		return nil, false, err
	}
	h := p.add(&agent.NodeOpen{Node: node, Flags: flags})
	if truncates && in.Mode&fuse.OPEN_KILL_SUIDGID != 0 {
		if mode, drop := n.withoutSetID(s.ids.gid.guest(in.Gid)); drop {
			p.add(&agent.NodeSetAttr{Target: node, Valid: agent.NodeSetMode, Mode: mode})
		}
	}
	i := p.add(&agent.NodeGetAttr{Target: node})
	results, err := p.run(ctx, nil)
	if err != nil {
		p.giveBack(results)
		return nil, false, err
	}
	a := results[i].(*agent.NodeAttrResult).Attr
	if errno := n.accept(&a); errno != 0 {
		p.giveBack(results)
		return nil, false, errno
	}
	f = s.newOpen(n, flags)
	f.ref, f.epoch = results[h].(*agent.NodeHandleResult).Handle, p.c.epoch
	if truncates {
		n.changed()
		n.learn(&a)
		return f, false, nil
	}
	return f, s.observe(n, &a, version), nil
}

// observe takes attributes that came with an open. The kernel learns that its
// own are old, and whether it may keep its pages is returned.
func (s *nodeFS) observe(n *inode, a *agent.NodeAttr, version uint64) (keep bool) {
	n.mu.Lock()
	if n.version != version {
		n.mu.Unlock()
		return false
	}
	old := n.attr
	moved := !n.at.IsZero() && stampOf(&old) != stampOf(a) || n.wrote
	keep = n.fill.keep(a, time.Now())
	n.learnLocked(a, time.Now())
	n.mu.Unlock()
	if moved {
		s.forgetAttr(n.id)
	}
	return keep
}

// Release closes the file. Nobody waits for it, so errors were for Flush.
func (s *nodeFS) Release(_ <-chan struct{}, in *fuse.ReleaseIn) {
	f, errno := s.opens.file(in.Fh)
	if errno != 0 {
		return
	}
	ctx, end := s.dataOp(nil)
	defer end()
	if err := f.n.queue.drain(ctx); err != nil {
		s.log.Warn("a file was closed before its data was stored", "error", err)
	}
	s.opens.dropFile(in.Fh)
	f.n.mu.Lock()
	delete(f.n.opens, f)
	f.n.mu.Unlock()
	f.ahead.close()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ref != 0 && (f.locked || f.wrote) {
		s.farewell.closeNow(f.ref, f.epoch)
	} else if f.ref != 0 {
		s.farewell.close(f.ref, f.epoch)
	}
	f.ref, f.lost = 0, true
}

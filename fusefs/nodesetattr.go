package fusefs

import (
	"math"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"msb/protocol/agent"
)

// attrBits are the bits of FATTR that the guest knows by the same numbers.
const attrBits = agent.NodeSetMode | agent.NodeSetUID | agent.NodeSetGID | agent.NodeSetSize |
	agent.NodeSetAtime | agent.NodeSetMtime | agent.NodeSetAtimeNow | agent.NodeSetMtimeNow

// SetAttr changes mode, owner, size and times.
func (s *nodeFS) SetAttr(cancel <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	if s.opts.ReadOnly {
		return fuse.EROFS
	}
	n, errno := s.inodes.get(in.NodeId)
	if errno != 0 {
		return fuse.Status(errno)
	}
	if in.Valid&fuse.FATTR_SIZE != 0 || in.Valid&attrBits == 0 || !n.queue.small() {
		if st := s.quiesce(cancel, &n.queue); !st.Ok() {
			return st
		}
	}
	ctx, end := s.nameOp(cancel)
	defer end()
	asked := time.Now()
	op := &agent.NodeSetAttr{
		Valid: in.Valid & attrBits, Mode: in.Mode & 0o7777,
		UID: s.ids.uid.guest(in.Uid), GID: s.ids.gid.guest(in.Gid), Size: in.Size,
		AtimeSec: int64(in.Atime), AtimeNsec: in.Atimensec, MtimeSec: int64(in.Mtime), MtimeNsec: in.Mtimensec,
	}
	if in.Valid&fuse.FATTR_SIZE != 0 {
		if in.Size > math.MaxInt64 {
			return fuse.EINVAL
		}
		if mode, drop := n.withoutSetID(s.ids.gid.guest(in.InHeader.Gid)); drop && in.Valid&fuse.FATTR_KILL_SUIDGID != 0 && op.Valid&agent.NodeSetMode == 0 {
			op.Valid |= agent.NodeSetMode
			op.Mode = mode
		}
	}
	if op.Valid == 0 {
		// A chown that names nobody, which moves the time of change and takes
		// set-id bits away all the same, or the kernel before a write, which
		// will say so itself.
		a, err := s.getAttr(ctx, n)
		if err != nil {
			return s.status(ctx, err)
		}
		caller := s.ids.uid.guest(in.InHeader.Uid)
		if caller != 0 && caller != a.UID || n.kind() == syscall.S_IFLNK {
			s.fillAttr(out, n, &a, asked)
			return fuse.OK
		}
		op.Valid, op.Mode = agent.NodeSetMode, a.Mode&0o7777
		if mode, drop := n.withoutSetID(s.ids.gid.guest(in.InHeader.Gid)); drop && n.kind() != syscall.S_IFDIR {
			op.Mode = mode
		}
	}
	p, err := s.plan()
	if err != nil {
		return s.status(ctx, err)
	}
	if op.Target, err = s.setTarget(p, n, in); op.Target == 0 && err == nil {
		op.Target, err = p.sure(ctx, n)
	}
	if err != nil {
		return s.status(ctx, err)
	}
	if op.Target >= agent.MaxNodeOps {
		answer, err := s.deliver(ctx, n, op)
		if err != nil {
			n.changed()
			return s.status(ctx, err)
		}
		if answer != nil {
			if errno := n.accept(&answer.Attr); errno != 0 {
				return fuse.Status(errno)
			}
			n.learn(&answer.Attr)
			s.fillAttr(out, n, &answer.Attr, asked)
			return fuse.OK
		}
	}
	i := p.add(op)
	n.changed()
	version := n.versionNow()
	results, err := p.run(ctx, nil)
	if err != nil {
		n.changed()
		return s.status(ctx, err)
	}
	a := results[i].(*agent.NodeAttrResult).Attr
	if errno := n.accept(&a); errno != 0 {
		return fuse.Status(errno)
	}
	n.learnSince(&a, version)
	s.fillAttr(out, n, &a, asked)
	return fuse.OK
}

// setTarget returns the guest's handle that the kernel names, if it is open
// there.
func (s *nodeFS) setTarget(p *plan, n *inode, in *fuse.SetAttrIn) (agent.NodeRef, error) {
	if in.Valid&fuse.FATTR_FH == 0 {
		return 0, nil
	}
	f, errno := s.opens.file(in.Fh)
	if errno != 0 || f.n != n {
		return 0, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.lost:
		return 0, syscall.ESTALE
	case f.ref != 0 && f.epoch == p.c.epoch:
		return f.ref, nil
	}
	return 0, nil
}

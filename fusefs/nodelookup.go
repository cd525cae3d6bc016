package fusefs

import (
	"context"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"msb/protocol/agent"
)

// nodeName checks a name from the kernel.
func nodeName(name string) syscall.Errno {
	switch {
	case len(name) > maxName:
		return syscall.ENAMETOOLONG
	case !validName(name):
		return syscall.EINVAL
	}
	return 0
}

// Lookup finds one name in a directory.
func (s *nodeFS) Lookup(cancel <-chan struct{}, in *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	parent, errno := s.inodes.get(in.NodeId)
	if errno != 0 {
		return fuse.Status(errno)
	}
	if errno := nodeName(name); errno != 0 {
		return fuse.Status(errno)
	}
	ctx, end := s.nameOp(cancel)
	defer end()
	if a, asked, verdict := s.remembered(ctx, parent, name); verdict == absent {
		return s.absent(parent, name, out, asked)
	} else if verdict == present {
		n, _ := s.inodes.place(parent, name, &a, 0, 0)
		s.fillEntry(out, parent, n, &a, asked)
		return fuse.OK
	}
	var version uint64
	known := s.inodes.child(parent, name)
	if known != nil {
		if st := s.quiesce(cancel, &known.queue); !st.Ok() {
			return st
		}
		version = known.versionNow()
	}
	p, err := s.plan()
	if err != nil {
		return s.status(ctx, err)
	}
	dir, err := p.node(ctx, parent)
	if err != nil {
		return s.status(ctx, err)
	}
	i := p.add(&agent.NodeLookup{Dir: dir, Name: []byte(name)})
	asked := time.Now()
	results, err := p.run(ctx, nil)
	if errno := s.errno(ctx, err); errno == syscall.ENOENT {
		s.inodes.remove(parent, name)
		return s.absent(parent, name, out, asked)
	} else if errno != 0 {
		return fuse.Status(errno)
	}
	e := results[i].(*agent.NodeEntryResult)
	if e.Attr.Mode&syscall.S_IFMT == syscall.S_IFLNK && s.opts.Symlinks == Hide {
		s.farewell.forget(p.c.epoch, agent.NodeCount{Node: e.Node, N: 1})
		return s.absent(parent, name, out, asked)
	}
	n, errno := s.enter(p.c, parent, name, e, out, asked)
	if errno != 0 {
		return fuse.Status(errno)
	}
	if n == known {
		n.learnSince(&e.Attr, version)
	} else {
		n.learn(&e.Attr)
	}
	return fuse.OK
}

// absent answers that there is no such name; the kernel may remember it.
func (s *nodeFS) absent(dir *inode, name string, out *fuse.EntryOut, asked time.Time) fuse.Status {
	if s.opts.EntryTimeout == 0 {
		return fuse.ENOENT
	}
	*out = fuse.EntryOut{}
	out.SetEntryTimeout(s.watch.absence(dir, name, s.opts.EntryTimeout, asked))
	return fuse.OK
}

// enter checks a file that the guest has just given and answers with it.
func (s *nodeFS) enter(c conn, parent *inode, name string, e *agent.NodeEntryResult, out *fuse.EntryOut, asked time.Time) (*inode, syscall.Errno) {
	if errno := checkAttr(&e.Attr); errno != 0 {
		s.log.Warn("the guest told impossible attributes", "name", name)
		s.farewell.forget(c.epoch, agent.NodeCount{Node: e.Node, N: 1})
		return nil, errno
	}
	n, extra := s.inodes.place(parent, name, &e.Attr, e.Node, c.epoch)
	s.farewell.forget(c.epoch, extra...)
	s.fillEntry(out, parent, n, &e.Attr, asked)
	return n, 0
}

// Forget takes back lookups.
func (s *nodeFS) Forget(id, lookups uint64) {
	node, epoch := s.inodes.forget(id, lookups)
	if node.N > 0 {
		s.farewell.forget(epoch, node)
	}
}

// GetAttr returns attributes.
func (s *nodeFS) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	n, errno := s.inodes.get(in.NodeId)
	if errno != 0 {
		return fuse.Status(errno)
	}
	if st := s.quiesce(cancel, &n.queue); !st.Ok() {
		return st
	}
	if a, asked, ok := n.recall(); ok && time.Since(asked) < s.fresh(n, asked) && (a.Nlink == 1 || n.kind() == syscall.S_IFDIR) {
		s.fillAttr(out, n, &a, asked)
		return fuse.OK
	}
	ctx, end := s.nameOp(cancel)
	defer end()
	asked := time.Now()
	a, err := s.getAttr(ctx, n)
	if last, _, _ := n.recall(); err == syscall.ENOTCONN && n.id == fuse.FUSE_ROOT_ID && last.Ino != 0 {
		s.fill(&out.Attr, n, &last) // df looks at it, and at what StatFs says
		return fuse.OK
	}
	if err != nil {
		return s.status(ctx, err)
	}
	s.fillAttr(out, n, &a, asked)
	return fuse.OK
}

// fresh is how old attributes may be that are given without asking.
func (s *nodeFS) fresh(n *inode, asked time.Time) time.Duration {
	if s.watch.covers(n, asked) {
		return s.opts.WatchTimeout
	}
	return min(s.opts.AttrTimeout, freshFor)
}

// getAttr asks the guest.
func (s *nodeFS) getAttr(ctx context.Context, n *inode) (agent.NodeAttr, error) {
	version := n.versionNow()
	p, err := s.plan()
	if err != nil {
		return agent.NodeAttr{}, err
	}
	ref, err := p.node(ctx, n)
	if err != nil {
		return agent.NodeAttr{}, err
	}
	i := p.add(&agent.NodeGetAttr{Target: ref})
	results, err := p.run(ctx, nil)
	if err != nil {
		return agent.NodeAttr{}, err
	}
	a := results[i].(*agent.NodeAttrResult).Attr
	if err := n.accept(&a); err != 0 {
		return agent.NodeAttr{}, err
	}
	n.learnSince(&a, version)
	return a, nil
}

// accept checks attributes that are said to be those of n.
func (n *inode) accept(a *agent.NodeAttr) syscall.Errno {
	if errno := checkAttr(a); errno != 0 {
		return errno
	}
	if a.Mode&syscall.S_IFMT != n.kind() {
		return syscall.ESTALE
	}
	return 0
}

// Readlink returns the target of a symlink as Options.Symlinks says.
func (s *nodeFS) Readlink(cancel <-chan struct{}, in *fuse.InHeader) ([]byte, fuse.Status) {
	n, errno := s.inodes.get(in.NodeId)
	if errno != 0 {
		return nil, fuse.Status(errno)
	}
	ctx, end := s.nameOp(cancel)
	defer end()
	p, err := s.plan()
	if err != nil {
		return nil, s.status(ctx, err)
	}
	ref, err := p.node(ctx, n)
	if err != nil {
		return nil, s.status(ctx, err)
	}
	i := p.add(&agent.NodeReadLink{Node: ref})
	results, err := p.run(ctx, nil)
	if err != nil {
		return nil, s.status(ctx, err)
	}
	target, errno := s.symlinks.toHost(string(results[i].(*agent.NodeBytesResult).Data), s.inodes.depth(n)-1)
	return []byte(target), fuse.Status(errno)
}

// StatFs describes the guest's file system. Without a connection it answers all
// the same, with what was seen last: that is how a mount that lives is told from
// a dead one.
func (s *nodeFS) StatFs(cancel <-chan struct{}, in *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	n, errno := s.inodes.get(in.NodeId)
	if errno != 0 {
		n, _ = s.inodes.get(fuse.FUSE_ROOT_ID)
	}
	ctx, end := s.nameOp(cancel)
	defer end()
	r, err := s.statFS(ctx, n)
	l := &s.lastStat
	l.Lock()
	defer l.Unlock()
	switch {
	case err == nil:
		l.known = true
		l.out = fuse.StatfsOut{
			Blocks: r.Blocks, Bfree: r.Bfree, Bavail: r.Bavail, Files: r.Files, Ffree: r.Ffree,
			Bsize: r.Bsize, Frsize: r.Frsize, NameLen: min(r.Namelen, maxName),
		}
	case !l.known:
		l.out = fuse.StatfsOut{Bsize: 4096, Frsize: 4096, NameLen: maxName}
	}
	*out = l.out
	return fuse.OK
}

func (s *nodeFS) statFS(ctx context.Context, n *inode) (*agent.NodeStatFSResult, error) {
	p, err := s.plan()
	if err != nil {
		return nil, err
	}
	ref, err := p.node(ctx, n)
	if err != nil {
		return nil, err
	}
	i := p.add(&agent.NodeStatFS{Node: ref})
	results, err := p.run(ctx, nil)
	if err != nil {
		return nil, err
	}
	return results[i].(*agent.NodeStatFSResult), nil
}

package fusefs

import (
	"math"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"msb/protocol/agent"
)

// checkAttr is EIO for attributes that no file has.
func checkAttr(a *agent.NodeAttr) syscall.Errno {
	switch a.Mode & syscall.S_IFMT {
	case syscall.S_IFREG, syscall.S_IFDIR, syscall.S_IFLNK, syscall.S_IFIFO, syscall.S_IFSOCK, syscall.S_IFCHR, syscall.S_IFBLK:
	default:
		return syscall.EIO
	}
	switch {
	case a.Ino == 0, a.Mode > 0o177777, a.Size > math.MaxInt64, a.Blocks > math.MaxInt64,
		absurd(a.AtimeSec), absurd(a.MtimeSec), absurd(a.CtimeSec),
		a.AtimeNsec >= 1e9, a.MtimeNsec >= 1e9, a.CtimeNsec >= 1e9:
		return syscall.EIO
	}
	return 0
}

// fill writes attributes of the guest into a FUSE attribute.
func (s *nodeFS) fill(out *fuse.Attr, n *inode, a *agent.NodeAttr) {
	out.Ino = n.ino
	out.Size = a.Size
	out.Blocks = a.Blocks
	out.Blksize = 4096
	if a.Blksize >= 512 && a.Blksize <= chunkSize {
		out.Blksize = a.Blksize
	}
	out.Mode = a.Mode &^ s.opts.Umask
	out.Nlink = a.Nlink
	out.Uid, out.Gid = s.ids.uid.host(a.UID), s.ids.gid.host(a.GID)
	out.Rdev = uint32(a.Rdev)
	out.Atime, out.Atimensec = uint64(a.AtimeSec), a.AtimeNsec
	out.Mtime, out.Mtimensec = uint64(a.MtimeSec), a.MtimeNsec
	out.Ctime, out.Ctimensec = uint64(a.CtimeSec), a.CtimeNsec
}

// fillEntry answers with the file that has a name in dir, as the guest told when
// it was asked.
func (s *nodeFS) fillEntry(out *fuse.EntryOut, dir, n *inode, a *agent.NodeAttr, asked time.Time) {
	s.fill(&out.Attr, n, a)
	out.NodeId = n.id
	out.SetEntryTimeout(s.watch.lifetime(limited(dir, a), s.opts.EntryTimeout, asked, stir{dir.ino, true}))
	out.SetAttrTimeout(s.attrTimeout(n, a, asked))
}

func (s *nodeFS) fillAttr(out *fuse.AttrOut, n *inode, a *agent.NodeAttr, asked time.Time) {
	s.fill(&out.Attr, n, a)
	out.SetTimeout(s.attrTimeout(n, a, asked))
}

// attrTimeout is for how long the kernel may keep attributes. Each name of a
// symlink is a file of its own for it, so what happens to one it would not see
// at the others.
func (s *nodeFS) attrTimeout(n *inode, a *agent.NodeAttr, asked time.Time) time.Duration {
	if n.kind() == syscall.S_IFLNK && a.Nlink > 1 {
		return 0
	}
	return s.watch.lifetime(limited(n, a), s.opts.AttrTimeout, asked, stir{n.ino, false})
}

// limited returns nil instead of n for attributes that no watch covers: the guest
// may change a file with several names through one that nobody here knows.
func limited(n *inode, a *agent.NodeAttr) *inode {
	if a.Nlink > 1 && a.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		return nil
	}
	return n
}

// learn keeps the attributes that the guest told.
func (n *inode) learn(a *agent.NodeAttr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.learnLocked(a, time.Now())
}

func (n *inode) learnLocked(a *agent.NodeAttr, at time.Time) {
	n.attr, n.at, n.wrote = *a, at, false
	n.fill.observe(a, at)
}

// learnSince is learn for an answer to a question that was asked when version
// was v: what changed from here meanwhile makes it worthless.
func (n *inode) learnSince(a *agent.NodeAttr, v uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.version == v {
		n.learnLocked(a, time.Now())
	}
}

func (n *inode) versionNow() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.version
}

// recall returns the last attributes, when the guest told them and whether they
// still hold as far as this side knows.
func (n *inode) recall() (a agent.NodeAttr, at time.Time, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.attr, n.at, !n.at.IsZero() && !n.wrote
}

// changed notes that this side changed the file.
func (n *inode) changed() {
	n.touch()
	for _, f := range n.opened() {
		f.small.drop()
		f.ahead.drop()
	}
}

// opened returns the open files of n.
func (n *inode) opened() []*openFile {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.opens) == 0 {
		return nil
	}
	all := make([]*openFile, 0, len(n.opens))
	for f := range n.opens {
		all = append(all, f)
	}
	return all
}

// stamp is what changes when a file's content does.
type stamp struct {
	mtime, ctime int64
	mnsec, cnsec uint32
	size         uint64
}

func stampOf(a *agent.NodeAttr) stamp {
	return stamp{a.MtimeSec, a.CtimeSec, a.MtimeNsec, a.CtimeNsec, a.Size}
}

// settled is how long a stamp must have been seen before it can be trusted: the
// clock that files are stamped with has steps of up to 10 ms.
const settled = 20 * time.Millisecond

// pages is what is known of the kernel's copy of a file's content.
type pages struct {
	seen   stamp
	since  time.Time // when seen was seen first
	filled stamp     // of the copy
	from   time.Time // when the copy was begun; zero: none
}

func (p *pages) observe(a *agent.NodeAttr, at time.Time) {
	if s := stampOf(a); s != p.seen || p.since.IsZero() {
		p.seen, p.since = s, at
	}
}

// keep tells, at an open that has just brought attributes, whether the kernel
// may keep its copy, and notes that it begins another one if not.
func (p *pages) keep(a *agent.NodeAttr, now time.Time) bool {
	p.observe(a, now)
	s := stampOf(a)
	if !p.from.IsZero() && p.filled == s && p.from.Sub(p.since) >= settled {
		return true
	}
	p.filled, p.from = s, now
	return false
}

// likely tells whether keep will say yes unless the guest has changed the file.
func (p *pages) likely() bool {
	return !p.from.IsZero() && p.filled == p.seen && p.from.Sub(p.since) >= settled
}

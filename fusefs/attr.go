package fusefs

import (
	"math"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"msb/protocol/agent"
)

// lastSecond is the end of the year 9999; no honest file is further away.
const lastSecond = 253402300799

// facts are the attributes of a guest's file after they were checked. They are
// comparable: equal facts are how a file is recognized again.
type facts struct {
	mode         uint32 // file type and permissions
	size         uint64
	uid, gid     uint32 // the guest's
	atime, mtime int64
}

func (f facts) kind() uint32 { return f.mode & syscall.S_IFMT }

// same compares what does not change by reading.
func (f facts) same(g facts) bool {
	f.atime, g.atime = 0, 0
	return f == g
}

// check turns an entry of the guest into facts. A kind that contradicts the
// mode, a size no file can have or an absurd time is EIO.
func check(e agent.Entry) (facts, syscall.Errno) {
	f := facts{mode: e.Mode & 0o177777, size: e.Size, uid: e.UID, gid: e.GID}
	if e.Atime != nil {
		f.atime = *e.Atime
	}
	if e.Mtime != nil {
		f.mtime = *e.Mtime
	}
	if e.Size > math.MaxInt64 || absurd(f.atime) || absurd(f.mtime) {
		return f, syscall.EIO
	}
	ok := false
	switch k := f.kind(); e.Kind {
	case agent.KindFile:
		ok = k == syscall.S_IFREG
	case agent.KindDir:
		ok = k == syscall.S_IFDIR
	case agent.KindSymlink:
		ok = k == syscall.S_IFLNK
	case agent.KindOther:
		ok = k == syscall.S_IFIFO || k == syscall.S_IFSOCK || k == syscall.S_IFCHR || k == syscall.S_IFBLK
	}
	if !ok {
		return f, syscall.EIO
	}
	return f, 0
}

func absurd(t int64) bool { return t > lastSecond || t < -lastSecond }

// fill writes facts into a FUSE attribute.
func (s *pathFS) fill(out *fuse.Attr, n *node, f facts) {
	out.Ino = n.ino
	out.Size = f.size
	out.Blocks = (f.size + 511) / 512
	out.Blksize = 4096
	out.Mode = f.mode &^ s.opts.Umask
	out.Nlink = 1
	if s.tree.isGone(n) {
		out.Nlink = 0
	}
	out.Uid, out.Gid = s.ids.uid.host(f.uid), s.ids.gid.host(f.gid)
	out.Atime, out.Mtime, out.Ctime = uint64(f.atime), uint64(f.mtime), uint64(f.mtime)
}

func (s *pathFS) fillEntry(out *fuse.EntryOut, n *node, f facts) {
	s.fill(&out.Attr, n, f)
	out.NodeId = n.id
	out.SetEntryTimeout(s.opts.EntryTimeout)
	out.SetAttrTimeout(s.opts.AttrTimeout)
}

func (s *pathFS) fillAttr(out *fuse.AttrOut, n *node, f facts) {
	s.fill(&out.Attr, n, f)
	out.SetTimeout(s.opts.AttrTimeout)
}

// fillNew answers the creation of a file whose exact times are not known: the
// kernel is told to ask when it needs them.
func (s *pathFS) fillNew(out *fuse.EntryOut, n *node, f facts) {
	f.atime = time.Now().Unix()
	f.mtime = f.atime
	s.fillEntry(out, n, f)
	out.SetAttrTimeout(0)
}

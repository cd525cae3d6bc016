package fusefs

import (
	"context"
	"errors"
	"syscall"
	"unicode/utf8"

	"github.com/hanwen/go-fuse/v2/fuse"

	"msb/agentclient"
	"msb/protocol/agent"
)

// place is a name in a directory, as a request names it.
type place struct {
	c      *agentclient.Client
	parent *node
	name   string
	path   string // of the entry, in the guest
}

// locate finds the directory and the path of an entry that is to change. The
// caller has locked the paths.
func (s *pathFS) locate(dir uint64, name string) (place, syscall.Errno) {
	p := place{name: name}
	if s.opts.ReadOnly {
		return p, syscall.EROFS
	}
	if errno := sendableName(name); errno != 0 {
		return p, errno
	}
	var errno syscall.Errno
	if p.parent, errno = s.tree.get(dir); errno != 0 {
		return p, errno
	}
	path, errno := s.tree.path(p.parent)
	if errno != 0 {
		return p, errno
	}
	p.path = join(path, name)
	var err error
	if p.c, err = s.link.get(); err != nil {
		return p, syscall.ENOTCONN
	}
	return p, 0
}

// owner is who a new file belongs to in the guest: the caller, or the group of
// a directory that hands its group down.
func (s *pathFS) owner(in *fuse.InHeader, parent *node) (uid, gid uint32) {
	uid, gid = s.ids.uid.guest(in.Uid), s.ids.gid.guest(in.Gid)
	if f, _, _ := parent.recall(); f.mode&syscall.S_ISGID != 0 {
		gid = f.gid
	}
	return uid, gid
}

// newFacts are the attributes of a new entry that this side knows.
func newFacts(kind, mode, uid, gid uint32) facts {
	return facts{mode: kind | mode&0o7777, uid: uid, gid: gid}
}

// settled answers a creation.
func (s *pathFS) settled(p place, f facts, out *fuse.EntryOut) *node {
	s.tree.remove(p.parent, p.name)
	n := s.tree.place(p.parent, p.name, f.kind())
	n.mu.Lock()
	n.facts, n.known = f, knowledge{wrote: true}
	n.mu.Unlock()
	s.changedDir(p)
	s.fillNew(out, n, f)
	return n
}

func (s *pathFS) changedDir(p place) { p.parent.changedName(p.name) }

// Create makes and opens a file; without O_EXCL, one that exists is opened.
func (s *pathFS) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	ctx, end := s.nameOp(cancel)
	defer end()
	unlock, err := s.sharePaths(ctx)
	if err != nil {
		return s.status(ctx, err)
	}
	defer unlock()
	p, errno := s.locate(in.NodeId, name)
	if errno != 0 {
		return fuse.Status(errno)
	}
	o := openOptions(in.Flags)
	for range 3 { // the guest may remove and create it at the same time
		file, f, err := s.createNew(ctx, p, &in.InHeader, o, in.Mode)
		if err == nil {
			n := s.settled(p, f, &out.EntryOut)
			out.Fh = s.newHandle(n, file, o).id
			out.OpenFlags = answerFlags(o)
			return fuse.OK
		}
		if !errors.Is(err, syscall.EEXIST) || in.Flags&syscall.O_EXCL != 0 {
			return s.status(ctx, err)
		}
		status := s.openExisting(ctx, p, o, out)
		if status != fuse.ENOENT {
			return status
		}
	}
	return fuse.EIO
}

// createNew makes a file that did not exist, with the owner and exactly the
// mode that were asked for.
func (s *pathFS) createNew(ctx context.Context, p place, in *fuse.InHeader, o agent.OpenOptions, mode uint32) (*agentclient.File, facts, error) {
	mode &= 0o7777
	uid, gid := s.owner(in, p.parent)
	o.CreateNew, o.Create, o.Truncate, o.Mode = true, false, false, &mode
	o.Write = true
	file, err := p.c.FS().OpenFile(ctx, p.path, o)
	if err != nil {
		return nil, facts{}, err
	}
	attrs := agent.Attrs{}
	if uid != 0 || gid != 0 {
		attrs.UID, attrs.GID = &uid, &gid
	}
	if attrs.UID != nil || mode&0o7022 != 0 { // the agent's umask may have taken these
		attrs.Mode = &mode
	}
	if attrs != (agent.Attrs{}) {
		if err := file.SetStat(ctx, attrs); err != nil {
			file.Close(ctx)
			p.c.FS().Remove(ctx, p.path)
			return nil, facts{}, err
		}
	}
	return file, newFacts(syscall.S_IFREG, mode, uid, gid), nil
}

// openExisting opens what Create found in its way.
func (s *pathFS) openExisting(ctx context.Context, p place, o agent.OpenOptions, out *fuse.CreateOut) fuse.Status {
	f, err := s.find(ctx, p.parent, p.name)
	if err != nil {
		return s.status(ctx, err)
	}
	if f.kind() != syscall.S_IFREG {
		return fuse.Status(syscall.ESTALE) // the kernel starts again and follows
	}
	file, err := openPath(ctx, p.c, p.path, o)
	if err != nil {
		return s.status(ctx, err)
	}
	n := s.tree.place(p.parent, p.name, f.kind())
	n.learn(f)
	if o.Truncate {
		f.size = 0
		s.changed(n)
	}
	s.fillEntry(&out.EntryOut, n, f)
	out.SetAttrTimeout(0)
	out.Fh = s.newHandle(n, file, o).id
	out.OpenFlags = answerFlags(o)
	return fuse.OK
}

// Mknod makes an empty file. The protocol knows no other nodes.
func (s *pathFS) Mknod(cancel <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	if kind := in.Mode & syscall.S_IFMT; kind != 0 && kind != syscall.S_IFREG {
		return fuse.EPERM
	}
	ctx, end := s.nameOp(cancel)
	defer end()
	unlock, err := s.sharePaths(ctx)
	if err != nil {
		return s.status(ctx, err)
	}
	defer unlock()
	p, errno := s.locate(in.NodeId, name)
	if errno != 0 {
		return fuse.Status(errno)
	}
	file, f, err := s.createNew(ctx, p, &in.InHeader, agent.OpenOptions{Write: true}, in.Mode)
	if err != nil {
		return s.status(ctx, err)
	}
	file.Close(ctx)
	s.settled(p, f, out)
	return fuse.OK
}

// Mkdir makes a directory. The guest's operation is content with one that
// exists, so it is looked for first.
func (s *pathFS) Mkdir(cancel <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	ctx, end := s.nameOp(cancel)
	defer end()
	unlock, err := s.sharePaths(ctx)
	if err != nil {
		return s.status(ctx, err)
	}
	defer unlock()
	p, errno := s.locate(in.NodeId, name)
	if errno != 0 {
		return fuse.Status(errno)
	}
	if _, err := p.c.FS().Stat(ctx, p.path, false); err == nil {
		return fuse.Status(syscall.EEXIST)
	} else if errno := s.errno(ctx, err); errno != syscall.ENOENT {
		return fuse.Status(errno)
	}
	mode := in.Mode & 0o7777
	if f, _, _ := p.parent.recall(); f.mode&syscall.S_ISGID != 0 {
		mode |= syscall.S_ISGID
	}
	if err := p.c.FS().Mkdir(ctx, p.path, &mode); err != nil {
		return s.status(ctx, err)
	}
	uid, gid, err := s.give(ctx, p, &in.InHeader, func() error { return p.c.FS().RemoveDir(ctx, p.path, false) })
	if err != nil {
		return s.status(ctx, err)
	}
	s.settled(p, newFacts(syscall.S_IFDIR, mode, uid, gid), out)
	return fuse.OK
}

// give makes the caller the owner of a new entry; when that fails, undo.
func (s *pathFS) give(ctx context.Context, p place, in *fuse.InHeader, undo func() error) (uid, gid uint32, err error) {
	uid, gid = s.owner(in, p.parent)
	if uid == 0 && gid == 0 {
		return uid, gid, nil
	}
	if err := p.c.FS().SetStat(ctx, p.path, false, agent.Attrs{UID: &uid, GID: &gid}); err != nil {
		undo()
		return uid, gid, err
	}
	return uid, gid, nil
}

// Symlink makes a symlink.
func (s *pathFS) Symlink(cancel <-chan struct{}, in *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	if s.opts.Symlinks == Hide {
		return fuse.EPERM
	}
	ctx, end := s.nameOp(cancel)
	defer end()
	unlock, err := s.sharePaths(ctx)
	if err != nil {
		return s.status(ctx, err)
	}
	defer unlock()
	p, errno := s.locate(in.NodeId, name)
	if errno != 0 {
		return fuse.Status(errno)
	}
	target = s.symlinks.toGuest(target)
	if !utf8.ValidString(target) {
		return fuse.Status(syscall.EILSEQ)
	}
	if err := p.c.FS().Symlink(ctx, target, p.path); err != nil {
		return s.status(ctx, err)
	}
	uid, gid, err := s.give(ctx, p, in, func() error { return p.c.FS().Remove(ctx, p.path) })
	if err != nil {
		return s.status(ctx, err)
	}
	f := newFacts(syscall.S_IFLNK, 0o777, uid, gid)
	f.size = uint64(len(target))
	s.settled(p, f, out)
	return fuse.OK
}

// Readlink returns a target that cannot lead out of the mount.
func (s *pathFS) Readlink(cancel <-chan struct{}, in *fuse.InHeader) ([]byte, fuse.Status) {
	n, errno := s.tree.get(in.NodeId)
	if errno != 0 {
		return nil, fuse.Status(errno)
	}
	ctx, end := s.nameOp(cancel)
	defer end()
	c, err := s.link.get()
	if err != nil {
		return nil, s.status(ctx, err)
	}
	unlock, err := s.sharePaths(ctx)
	if err != nil {
		return nil, s.status(ctx, err)
	}
	defer unlock()
	path, errno := s.tree.path(n)
	if errno != 0 {
		return nil, fuse.Status(errno)
	}
	target, err := c.FS().ReadLink(ctx, path)
	if err != nil {
		return nil, s.status(ctx, err)
	}
	target, errno = s.symlinks.toHost(target, s.tree.depth(n)-1)
	return []byte(target), fuse.Status(errno)
}

// Link is refused: the protocol has no hard links.
func (s *pathFS) Link(<-chan struct{}, *fuse.LinkIn, string, *fuse.EntryOut) fuse.Status {
	return fuse.EPERM
}

// Unlink removes a name; the file lives on while it is open.
func (s *pathFS) Unlink(cancel <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	return s.remove(cancel, in, name, func(ctx context.Context, p place) error {
		return p.c.FS().Remove(ctx, p.path)
	})
}

// Rmdir removes an empty directory.
func (s *pathFS) Rmdir(cancel <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	return s.remove(cancel, in, name, func(ctx context.Context, p place) error {
		return p.c.FS().RemoveDir(ctx, p.path, false)
	})
}

func (s *pathFS) remove(cancel <-chan struct{}, in *fuse.InHeader, name string, op func(context.Context, place) error) fuse.Status {
	ctx, end := s.nameOp(cancel)
	defer end()
	unlock, err := s.sharePaths(ctx)
	if err != nil {
		return s.status(ctx, err)
	}
	defer unlock()
	p, errno := s.locate(in.NodeId, name)
	if errno != 0 {
		return fuse.Status(errno)
	}
	if err := op(ctx, p); err != nil {
		return s.status(ctx, err)
	}
	s.tree.remove(p.parent, p.name)
	s.changedDir(p)
	return fuse.OK
}

// Rename renames, replacing what has the new name. The flags of renameat2
// cannot be had atomically, so they are refused.
func (s *pathFS) Rename(cancel <-chan struct{}, in *fuse.RenameIn, name, newName string) fuse.Status {
	if in.Flags != 0 {
		return fuse.EINVAL
	}
	ctx, end := s.nameOp(cancel)
	defer end()
	unlock, err := s.ownPaths(ctx)
	if err != nil {
		return s.status(ctx, err)
	}
	defer unlock()
	from, errno := s.locate(in.NodeId, name)
	if errno != 0 {
		return fuse.Status(errno)
	}
	to, errno := s.locate(in.Newdir, newName)
	if errno != 0 {
		return fuse.Status(errno)
	}
	if err := from.c.FS().Rename(ctx, from.path, to.path); err != nil {
		return s.status(ctx, err)
	}
	s.tree.rename(from.parent, name, to.parent, newName)
	s.changedDir(from)
	s.changedDir(to)
	return fuse.OK
}

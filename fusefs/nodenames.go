package fusefs

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"msb/agentclient"
	"msb/protocol/agent"
)

// spot is a name in a directory that is to change.
type spot struct {
	*plan
	dir     *inode
	name    string
	ref     agent.NodeRef // of dir
	version uint64        // of dir when asked
	asked   time.Time
}

// spot finds the directory of a name that is to change.
func (s *nodeFS) spot(ctx context.Context, dir uint64, name string) (spot, error) {
	if s.opts.ReadOnly {
		return spot{}, syscall.EROFS
	}
	if errno := nodeName(name); errno != 0 {
		return spot{}, errno
	}
	n, errno := s.inodes.get(dir)
	if errno != 0 {
		return spot{}, errno
	}
	p, err := s.plan()
	if err != nil {
		return spot{}, err
	}
	ref, err := p.sure(ctx, n)
	if err != nil {
		return spot{}, err
	}
	return spot{p, n, name, ref, n.versionNow(), time.Now()}, nil
}

// change does what changes the directory and asks for the directory's attributes
// in the same round trip: the kernel will want them next, to see what its user
// may do there.
func (at spot) change(ctx context.Context, as *agent.NodeIdentity, op agent.NodeOp) (agent.NodeResult, error) {
	i := at.add(op)
	after := at.add(&agent.NodeGetAttr{Target: at.ref})
	results, err := at.run(ctx, as)
	at.dir.names.touched(at.name)
	if int(i) >= len(results) {
		at.uncertain(err)
		return nil, err
	}
	at.moved(results, after)
	return results[i], nil
}

// uncertain is called when a change has failed: if it was not the guest that said
// so, it may have happened all the same, and the kernel is to look.
func (at spot) uncertain(err error) {
	var refused *agentclient.NodeError
	if errors.As(err, &refused) || errors.Is(err, syscall.ESTALE) {
		return
	}
	at.dir.touch()
	at.s.spawn(func() { // the kernel waits for the answer first
		at.s.server.EntryNotify(at.dir.id, at.name)
		at.s.forgetAttr(at.dir.id)
	})
}

// moved notes that the directory has changed, and its attributes if they came.
func (at spot) moved(results []agent.NodeResult, after agent.NodeRef) {
	if int(after) < len(results) {
		at.dir.changedTo(&results[after].(*agent.NodeAttrResult).Attr, at.version, at.asked)
	} else {
		at.dir.touch()
	}
}

// creator is who a new file belongs to in the guest. The kernel of this host has
// checked what its user may do; group and set-group-id are up to the directory
// by the guest's rules.
func (s *nodeFS) creator(in *fuse.InHeader) *agent.NodeIdentity {
	return &agent.NodeIdentity{UID: s.ids.uid.guest(in.Uid), GID: s.ids.gid.guest(in.Gid), Privileged: true}
}

// settle answers the creation of a file.
func (s *nodeFS) settleNew(at spot, e *agent.NodeEntryResult, out *fuse.EntryOut) (*inode, syscall.Errno) {
	n, errno := s.enter(at.c, at.dir, at.name, e, out, at.asked)
	if errno == 0 {
		n.learn(&e.Attr)
	}
	return n, errno
}

// touch notes that a directory's own attributes have changed.
func (n *inode) touch() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wrote = true
	n.version++
	n.changedAt = time.Now()
}

// changedTo notes that this side has changed n, and what the guest told of it
// with that, unless something else has happened to n since version v.
func (n *inode) changedTo(a *agent.NodeAttr, v uint64, asked time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	only := n.version == v && n.accept(a) == 0
	n.wrote = true
	n.version++
	n.changedAt = time.Now()
	if only {
		n.learnLocked(a, asked)
	}
}

// make runs the operation that creates a name.
func (s *nodeFS) make(cancel <-chan struct{}, in *fuse.InHeader, name string, out *fuse.EntryOut, op func(dir agent.NodeRef, name []byte) agent.NodeOp) (*inode, fuse.Status) {
	ctx, end := s.nameOp(cancel)
	defer end()
	at, err := s.spot(ctx, in.NodeId, name)
	if err != nil {
		return nil, s.status(ctx, err)
	}
	r, err := at.change(ctx, s.creator(in), op(at.ref, []byte(name)))
	if err != nil {
		return nil, s.status(ctx, err)
	}
	n, errno := s.settleNew(at, r.(*agent.NodeEntryResult), out)
	return n, fuse.Status(errno)
}

// Mknod makes a file, FIFO, socket or device.
func (s *nodeFS) Mknod(cancel <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	mode := in.Mode
	if mode&syscall.S_IFMT == 0 {
		mode |= syscall.S_IFREG
	}
	_, st := s.make(cancel, &in.InHeader, name, out, func(dir agent.NodeRef, name []byte) agent.NodeOp {
		return &agent.NodeMknod{Dir: dir, Name: name, Mode: mode, Rdev: uint64(in.Rdev)}
	})
	return st
}

// Mkdir makes a directory.
func (s *nodeFS) Mkdir(cancel <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	at := time.Now()
	n, st := s.make(cancel, &in.InHeader, name, out, func(dir agent.NodeRef, name []byte) agent.NodeOp {
		return &agent.NodeMkdir{Dir: dir, Name: name, Mode: in.Mode & 0o7777}
	})
	if st.Ok() && (s.opts.Alone || s.watch.covers(n, at)) {
		n.names.born(at)
		if s.watch.since(at, stir{n.ino, true}) { // somebody in the guest was quicker
			n.names.drop()
		}
	}
	return st
}

// Symlink makes a symlink.
func (s *nodeFS) Symlink(cancel <-chan struct{}, in *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	if s.opts.Symlinks == Hide {
		return fuse.EPERM
	}
	target = s.symlinks.toGuest(target)
	_, st := s.make(cancel, in, name, out, func(dir agent.NodeRef, name []byte) agent.NodeOp {
		return &agent.NodeSymlink{Dir: dir, Name: name, Target: []byte(target)}
	})
	return st
}

// Link gives a file another name.
func (s *nodeFS) Link(cancel <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	n, errno := s.inodes.get(in.Oldnodeid)
	if errno != 0 {
		return fuse.Status(errno)
	}
	if st := s.quiesce(cancel, &n.queue); !st.Ok() {
		return st
	}
	ctx, end := s.nameOp(cancel)
	defer end()
	at, err := s.spot(ctx, in.NodeId, name)
	if err != nil {
		return s.status(ctx, err)
	}
	ref, err := at.sure(ctx, n)
	if err != nil {
		return s.status(ctx, err)
	}
	r, err := at.change(ctx, nil, &agent.NodeLink{Node: ref, Dir: at.ref, Name: []byte(name)})
	if err != nil {
		return s.status(ctx, err)
	}
	_, errno = s.settleNew(at, r.(*agent.NodeEntryResult), out)
	n.changed()
	if n.kind() == syscall.S_IFLNK {
		s.forgetAttr(n.id)
	}
	return fuse.Status(errno)
}

// Create makes and opens a file. One that exists is left to the kernel, which
// looks again and checks whether its user may open it.
func (s *nodeFS) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	ctx, end := s.nameOp(cancel)
	defer end()
	at, err := s.spot(ctx, in.NodeId, name)
	if err != nil {
		return s.status(ctx, err)
	}
	flags := guestFlags(in.Flags)
	made, err := at.change(ctx, s.creator(&in.InHeader), &agent.NodeCreate{
		Dir: at.ref, Name: []byte(name), Flags: flags&^agent.NodeTruncate | agent.NodeExclusive, Mode: in.Mode & 0o7777,
	})
	if err != nil {
		if errors.Is(err, syscall.EEXIST) && in.Flags&syscall.O_EXCL == 0 {
			err = syscall.ESTALE
		}
		return s.status(ctx, err)
	}
	r := made.(*agent.NodeCreatedResult)
	n, errno := s.settleNew(at, &agent.NodeEntryResult{Node: r.Node, Attr: r.Attr}, &out.EntryOut)
	if errno != 0 {
		s.farewell.close(r.Handle, at.c.epoch)
		return fuse.Status(errno)
	}
	f := s.newOpen(n, flags)
	f.ref, f.epoch = r.Handle, at.c.epoch
	out.Fh = f.id
	out.OpenFlags = s.openFlags(f)
	return fuse.OK
}

// Unlink removes a name; the file lives on while it is open.
func (s *nodeFS) Unlink(cancel <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	ctx, end := s.nameOp(cancel)
	defer end()
	if dir, errno := s.inodes.get(in.NodeId); errno == 0 {
		if n := s.inodes.child(dir, name); n != nil {
			if err := s.hold(ctx, n); err != nil {
				return s.status(ctx, err)
			}
		}
	}
	return s.remove(ctx, in, name, func(dir agent.NodeRef, name []byte) agent.NodeOp {
		return &agent.NodeUnlink{Dir: dir, Name: name}
	})
}

// Rmdir removes an empty directory.
func (s *nodeFS) Rmdir(cancel <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	ctx, end := s.nameOp(cancel)
	defer end()
	return s.remove(ctx, in, name, func(dir agent.NodeRef, name []byte) agent.NodeOp {
		return &agent.NodeRmdir{Dir: dir, Name: name}
	})
}

func (s *nodeFS) remove(ctx context.Context, in *fuse.InHeader, name string, op func(dir agent.NodeRef, name []byte) agent.NodeOp) fuse.Status {
	at, err := s.spot(ctx, in.NodeId, name)
	if err != nil {
		return s.status(ctx, err)
	}
	if _, err = at.change(ctx, nil, op(at.ref, []byte(name))); err != nil {
		return s.status(ctx, err)
	}
	if n := s.inodes.child(at.dir, name); n != nil {
		n.touch() // its link count
	} else {
		s.inodes.mistrust()
	}
	s.inodes.remove(at.dir, name)
	return fuse.OK
}

const (
	renameNoReplace = 1
	renameExchange  = 2
)

// Rename renames, replacing what has the new name, unless flags of renameat2 say
// otherwise.
func (s *nodeFS) Rename(cancel <-chan struct{}, in *fuse.RenameIn, name, newName string) fuse.Status {
	if in.Flags&^(renameNoReplace|renameExchange) != 0 {
		return fuse.EINVAL
	}
	ctx, end := s.nameOp(cancel)
	defer end()
	from, err := s.spot(ctx, in.NodeId, name)
	if err != nil {
		return s.status(ctx, err)
	}
	to, err := s.spot(ctx, in.Newdir, newName)
	if err != nil {
		return s.status(ctx, err)
	}
	if from.c.epoch != to.c.epoch {
		return fuse.Status(syscall.ESTALE)
	}
	if old := s.inodes.child(to.dir, newName); old != nil && in.Flags == 0 {
		if err := s.hold(ctx, old); err != nil {
			return s.status(ctx, err)
		}
	}
	i := from.add(&agent.NodeRename{Dir: from.ref, Name: []byte(name), NewDir: to.ref, NewName: []byte(newName), Flags: in.Flags})
	after := from.add(&agent.NodeGetAttr{Target: from.ref})
	afterTo := after
	if to.dir != from.dir {
		afterTo = from.add(&agent.NodeGetAttr{Target: to.ref})
	}
	results, err := from.run(ctx, nil)
	from.dir.names.touched(name)
	to.dir.names.touched(newName)
	if int(i) >= len(results) {
		from.uncertain(err)
		to.uncertain(err)
		return s.status(ctx, err)
	}
	for _, n := range []*inode{s.inodes.child(from.dir, name), s.inodes.child(to.dir, newName)} {
		if n != nil {
			n.touch()
		}
	}
	from.moved(results, after)
	if to.dir != from.dir {
		to.moved(results, afterTo)
	}
	s.inodes.rename(from.dir, name, to.dir, newName, in.Flags&renameExchange != 0)
	return fuse.OK
}

package nodes

import (
	"bytes"
	"math"

	"golang.org/x/sys/unix"

	"msb/protocol/agent"
)

// makeEntry runs a system call that makes a name in a directory and returns the new node.
func (r *request) makeEntry(ref agent.NodeRef, raw []byte, mode uint32, call func(dir int, name string) error) (agent.NodeResult, error) {
	name, err := component(raw)
	if err != nil {
		return nil, err
	}
	n, dir, err := r.node(ref)
	if err != nil {
		return nil, err
	}
	defer r.done(n)
	err = r.svc.maker.run(mode, func() error {
		return r.owned(func() error { return call(dir, name) })
	})
	if err != nil {
		return nil, err
	}
	return r.find(dir, name)
}

func (r *request) mkdir(op *agent.NodeMkdir) (agent.NodeResult, error) {
	mode := op.Mode & modeBits
	return r.makeEntry(op.Dir, op.Name, mode, func(dir int, name string) error { return unix.Mkdirat(dir, name, mode) })
}

func (r *request) mknod(op *agent.NodeMknod) (agent.NodeResult, error) {
	switch op.Mode & unix.S_IFMT {
	case unix.S_IFREG, unix.S_IFIFO, unix.S_IFSOCK, unix.S_IFCHR, unix.S_IFBLK:
	default:
		return nil, unix.EINVAL
	}
	if op.Rdev > math.MaxUint32 {
		return nil, unix.EINVAL // the system call takes 32 bits
	}
	return r.makeEntry(op.Dir, op.Name, op.Mode&modeBits, func(dir int, name string) error {
		return unix.Mknodat(dir, name, op.Mode&(unix.S_IFMT|modeBits), int(op.Rdev))
	})
}

func (r *request) symlink(op *agent.NodeSymlink) (agent.NodeResult, error) {
	switch {
	case len(op.Target) == 0:
		return nil, unix.ENOENT
	case bytes.IndexByte(op.Target, 0) >= 0:
		return nil, unix.EINVAL
	case len(op.Target) >= unix.PathMax:
		return nil, unix.ENAMETOOLONG
	}
	return r.makeEntry(op.Dir, op.Name, 0, func(dir int, name string) error {
		return unix.Symlinkat(string(op.Target), dir, name)
	})
}

func (r *request) link(op *agent.NodeLink) (agent.NodeResult, error) {
	name, err := component(op.Name)
	if err != nil {
		return nil, err
	}
	n, fd, err := r.node(op.Node)
	if err != nil {
		return nil, err
	}
	defer r.done(n)
	d, dir, err := r.node(op.Dir)
	if err != nil {
		return nil, err
	}
	defer r.done(d)
	if n.kind == unix.S_IFDIR {
		return nil, unix.EPERM
	}
	err = r.as(func() error {
		return unix.Linkat(unix.AT_FDCWD, procPath(fd), dir, name, unix.AT_SYMLINK_FOLLOW)
	})
	if err != nil {
		return nil, err
	}
	var st unix.Statx_t
	if err := statx(fd, &st); err != nil {
		return nil, err
	}
	if err := r.table.again(n); err != nil {
		return nil, err
	}
	return &agent.NodeEntryResult{Node: n.id, Attr: attrOf(&st)}, nil
}

// remove is unlink and rmdir.
func (r *request) remove(ref agent.NodeRef, raw []byte, flags int) (agent.NodeResult, error) {
	name, err := component(raw)
	if err != nil {
		return nil, err
	}
	n, dir, err := r.node(ref)
	if err != nil {
		return nil, err
	}
	defer r.done(n)
	if err := r.as(func() error { return unix.Unlinkat(dir, name, flags) }); err != nil {
		return nil, err
	}
	return none, nil
}

func (r *request) rename(op *agent.NodeRename) (agent.NodeResult, error) {
	from, err := component(op.Name)
	if err != nil {
		return nil, err
	}
	to, err := component(op.NewName)
	if err != nil {
		return nil, err
	}
	n, dir, err := r.node(op.Dir)
	if err != nil {
		return nil, err
	}
	defer r.done(n)
	m, newDir, err := r.node(op.NewDir)
	if err != nil {
		return nil, err
	}
	defer r.done(m)
	if err := r.as(func() error { return unix.Renameat2(dir, from, newDir, to, uint(op.Flags)) }); err != nil {
		return nil, err
	}
	return none, nil
}

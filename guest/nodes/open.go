package nodes

import (
	"golang.org/x/sys/unix"

	"msb/protocol/agent"
)

// openBits are the flags of an open that pass, with this machine's numbers.
var openBits = []struct {
	wire  uint32
	local int
}{
	{agent.NodeTruncate, unix.O_TRUNC},
	{agent.NodeAppend, unix.O_APPEND},
	{agent.NodeDataSync, unix.O_DSYNC},
	{agent.NodeDirect, unix.O_DIRECT},
	{agent.NodeNoAtime, unix.O_NOATIME},
	{agent.NodeFileSync, unix.O_SYNC},
}

// openFlags turns the flags of a request into this machine's. extra are those that this operation takes as well.
func openFlags(wire uint32, extra uint32) (flags int, err error) {
	switch wire & 3 {
	case agent.NodeReadOnly:
		flags = unix.O_RDONLY
	case agent.NodeWriteOnly:
		flags = unix.O_WRONLY
	case agent.NodeReadWrite:
		flags = unix.O_RDWR
	default:
		return 0, unix.EINVAL
	}
	rest := wire &^ (3 | extra)
	for _, b := range openBits {
		if wire&b.wire == b.wire {
			flags |= b.local
			rest &^= b.wire
		}
	}
	if rest != 0 {
		return 0, unix.EINVAL
	}
	return flags, nil
}

// open opens a node again by its descriptor, so that what is opened is the node whatever its name is now.
func (r *request) open(op *agent.NodeOpen) (agent.NodeResult, error) {
	flags, err := openFlags(op.Flags, agent.NodeDirectory)
	if err != nil {
		return nil, err
	}
	n, fd, err := r.node(op.Node)
	if err != nil {
		return nil, err
	}
	defer r.done(n)
	switch n.kind {
	case unix.S_IFREG:
		if op.Flags&agent.NodeDirectory != 0 {
			return nil, unix.ENOTDIR
		}
	case unix.S_IFDIR:
		flags |= unix.O_DIRECTORY
	case unix.S_IFLNK:
		return nil, unix.ELOOP
	default:
		return nil, unix.ENXIO
	}
	if err := r.table.room(); err != nil {
		return nil, err
	}
	var opened int
	err = r.as(func() (err error) {
		opened, err = unix.Open(procPath(fd), flags|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
		return err
	})
	if err != nil {
		return nil, err
	}
	h, err := r.newHandle(n, opened, flags)
	if err != nil {
		return nil, err
	}
	return &agent.NodeHandleResult{Handle: h}, nil
}

// newHandle registers an open file of a node that is in use. It takes fd over.
func (r *request) newHandle(n *node, fd, flags int) (uint64, error) {
	h := &handle{fd: fd, node: n, table: r.table, append: flags&unix.O_APPEND != 0, write: flags&unix.O_ACCMODE != unix.O_RDONLY}
	if n.kind == unix.S_IFDIR {
		h.dir = new(listing)
	}
	h.refs.Store(1)
	r.svc.cache.pin(n)
	if err := r.table.insert(h); err != nil {
		_ = h.unref()
		return 0, err
	}
	return h.id, nil
}

func (r *request) create(op *agent.NodeCreate) (agent.NodeResult, error) {
	name, err := component(op.Name)
	if err != nil {
		return nil, err
	}
	flags, err := openFlags(op.Flags, agent.NodeExclusive)
	if err != nil {
		return nil, err
	}
	if op.Flags&agent.NodeExclusive != 0 {
		flags |= unix.O_EXCL
	}
	d, dir, err := r.node(op.Dir)
	if err != nil {
		return nil, err
	}
	defer r.done(d)
	if err := r.table.room(); err != nil {
		return nil, err
	}
	mode := op.Mode & modeBits
	var fd int
	err = r.svc.maker.run(mode, func() error {
		return r.owned(func() (err error) {
			fd, err = unix.Openat(dir, name, flags|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, mode)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	n, e, err := r.opened(fd)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	if _, err := r.svc.cache.use(n); err != nil {
		unix.Close(fd)
		return nil, err
	}
	defer r.done(n)
	h, err := r.newHandle(n, fd, flags)
	if err != nil {
		r.table.forget(n.id, 1)
		return nil, err
	}
	return &agent.NodeCreatedResult{Node: e.Node, Attr: e.Attr, Handle: h}, nil
}

// opened returns the node of an open file.
func (r *request) opened(fd int) (*node, *agent.NodeEntryResult, error) {
	path, err := reopen(fd, unix.O_PATH)
	if err != nil {
		return nil, nil, err
	}
	n, e, err := r.entry(path)
	if err == nil && n.kind != unix.S_IFREG {
		r.table.forget(n.id, 1)
		err = unix.ENXIO
	}
	return n, e, err
}

func (r *request) close(op *agent.NodeClose) (agent.NodeResult, error) {
	h := r.table.remove(r.produced(op.Handle, true))
	if h == nil {
		return nil, unix.EBADF
	}
	if err := h.unref(); err != nil {
		return nil, err
	}
	return none, nil
}

// flush closes a copy of the descriptor: some file systems report there what could not be written.
func (r *request) flush(op *agent.NodeFlush) (agent.NodeResult, error) {
	h, err := r.handle(op.Handle)
	if err != nil {
		return nil, err
	}
	defer func() { _ = h.unref() }()
	r.table.dropLocks(func(l lockOwner) bool { return l.node == h.node && l.owner == op.Owner })
	fd, err := unix.FcntlInt(uintptr(h.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		err = unix.Close(fd)
	}
	if err != nil {
		return nil, err
	}
	return none, nil
}

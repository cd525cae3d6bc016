package nodes

import (
	"math"

	"golang.org/x/sys/unix"

	"msb/protocol/agent"
)

const modeBits = 0o7777

// target is a node or an open handle that an operation is about.
type target struct {
	fd     int
	handle *handle // nil for a node, whose fd is an O_PATH one
	node   *node
	done   func()
}

func (r *request) target(ref agent.NodeRef) (target, error) {
	id := r.produced(ref, true)
	if h := r.table.handle(id); h != nil {
		return target{h.fd, h, h.node, func() { _ = h.unref() }}, nil
	}
	n, fd, err := r.node(ref)
	if err != nil {
		return target{}, err
	}
	return target{fd, nil, n, func() { r.done(n) }}, nil
}

func (r *request) getAttr(op *agent.NodeGetAttr) (agent.NodeResult, error) {
	t, err := r.target(op.Target)
	if err != nil {
		return nil, err
	}
	defer t.done()
	return t.attr()
}

func (t target) attr() (agent.NodeResult, error) {
	var st unix.Statx_t
	if err := statx(t.fd, &st); err != nil {
		return nil, err
	}
	return &agent.NodeAttrResult{Attr: attrOf(&st)}, nil
}

// setAttr changes attributes in an order in which none undoes another: the size and the owner, which clear set-id
// bits, then the mode, then the times.
func (r *request) setAttr(op *agent.NodeSetAttr) (agent.NodeResult, error) {
	const known = agent.NodeSetMode | agent.NodeSetUID | agent.NodeSetGID | agent.NodeSetSize | agent.NodeSetAtime |
		agent.NodeSetMtime | agent.NodeSetAtimeNow | agent.NodeSetMtimeNow
	times, err := timesOf(op)
	set := func(bits uint32) bool { return op.Valid&bits != 0 }
	switch {
	case err != nil:
		return nil, err
	case op.Valid&^known != 0,
		set(agent.NodeSetUID) && op.UID == math.MaxUint32,
		set(agent.NodeSetGID) && op.GID == math.MaxUint32,
		set(agent.NodeSetSize) && op.Size > math.MaxInt64:
		return nil, unix.EINVAL
	}
	t, err := r.target(op.Target)
	if err != nil {
		return nil, err
	}
	defer t.done()
	if set(agent.NodeSetSize) {
		if err := r.as(func() error { return t.truncate(int64(op.Size)) }); err != nil {
			return nil, err
		}
	}
	if set(agent.NodeSetUID | agent.NodeSetGID) {
		uid, gid := -1, -1
		if set(agent.NodeSetUID) {
			uid = int(int32(op.UID))
		}
		if set(agent.NodeSetGID) {
			gid = int(int32(op.GID))
		}
		if err := r.as(func() error { return unix.Fchownat(t.fd, "", uid, gid, unix.AT_EMPTY_PATH) }); err != nil {
			return nil, err
		}
	}
	if set(agent.NodeSetMode) {
		if err := r.as(func() error { return t.chmod(op.Mode & modeBits) }); err != nil {
			return nil, err
		}
	}
	if times[0].Nsec != unix.UTIME_OMIT || times[1].Nsec != unix.UTIME_OMIT {
		if err := r.as(func() error { return unix.UtimesNanoAt(t.fd, "", times[:], unix.AT_EMPTY_PATH) }); err != nil {
			return nil, err
		}
	}
	return t.attr()
}

func timesOf(op *agent.NodeSetAttr) (t [2]unix.Timespec, err error) {
	for i, x := range [2]struct {
		set, now bool
		sec      int64
		nsec     uint32
	}{
		{op.Valid&agent.NodeSetAtime != 0, op.Valid&agent.NodeSetAtimeNow != 0, op.AtimeSec, op.AtimeNsec},
		{op.Valid&agent.NodeSetMtime != 0, op.Valid&agent.NodeSetMtimeNow != 0, op.MtimeSec, op.MtimeNsec},
	} {
		switch {
		case x.now:
			t[i].Nsec = unix.UTIME_NOW
		case !x.set:
			t[i].Nsec = unix.UTIME_OMIT
		case x.nsec >= 1e9:
			return t, unix.EINVAL
		default:
			t[i] = unix.Timespec{Sec: x.sec, Nsec: int64(x.nsec)}
		}
	}
	return t, nil
}

func (t target) truncate(size int64) error {
	if t.handle != nil {
		return unix.Ftruncate(t.fd, size)
	}
	switch t.node.kind {
	case unix.S_IFREG:
		return unix.Truncate(procPath(t.fd), size)
	case unix.S_IFDIR:
		return unix.EISDIR
	}
	return unix.EINVAL
}

func (t target) chmod(mode uint32) error {
	switch {
	case t.handle != nil:
		return unix.Fchmod(t.fd, mode)
	case t.node.kind == unix.S_IFLNK:
		return unix.EOPNOTSUPP // as fchmodat says of a symlink
	}
	return unix.Chmod(procPath(t.fd), mode)
}

// killPriv takes set-id bits away as the kernel does when someone without CAP_FSETID writes.
func killPriv(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	mode := st.Mode & modeBits
	kept := mode &^ unix.S_ISUID
	if mode&unix.S_IXGRP != 0 {
		kept &^= unix.S_ISGID
	}
	if kept == mode {
		return nil
	}
	return unix.Fchmod(fd, kept)
}

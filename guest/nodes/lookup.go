package nodes

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/sys/unix"

	"msb/protocol/agent"
)

// component checks that a name is one name in a directory and nothing that leads elsewhere.
func component(name []byte) (string, error) {
	switch {
	case len(name) == 0, bytes.IndexByte(name, 0) >= 0, bytes.IndexByte(name, '/') >= 0,
		len(name) == 1 && name[0] == '.', len(name) == 2 && name[0] == '.' && name[1] == '.':
		return "", unix.EINVAL
	case len(name) > unix.NAME_MAX:
		return "", unix.ENAMETOOLONG
	}
	return string(name), nil
}

const statMask = unix.STATX_BASIC_STATS | unix.STATX_BTIME | unix.STATX_MNT_ID

// statx describes what a descriptor stands for.
func statx(fd int, st *unix.Statx_t) error {
	return retry(func() error { return unix.Statx(fd, "", unix.AT_EMPTY_PATH, statMask, st) })
}

func attrOf(st *unix.Statx_t) agent.NodeAttr {
	a := agent.NodeAttr{
		Ino:       st.Ino,
		Dev:       unix.Mkdev(st.Dev_major, st.Dev_minor),
		Mode:      uint32(st.Mode),
		Nlink:     st.Nlink,
		UID:       st.Uid,
		GID:       st.Gid,
		Rdev:      unix.Mkdev(st.Rdev_major, st.Rdev_minor),
		Size:      st.Size,
		Blocks:    st.Blocks,
		Blksize:   st.Blksize,
		AtimeSec:  st.Atime.Sec,
		AtimeNsec: st.Atime.Nsec,
		MtimeSec:  st.Mtime.Sec,
		MtimeNsec: st.Mtime.Nsec,
		CtimeSec:  st.Ctime.Sec,
		CtimeNsec: st.Ctime.Nsec,
	}
	if st.Mask&unix.STATX_BTIME != 0 {
		a.BtimeSec, a.BtimeNsec = st.Btime.Sec, st.Btime.Nsec
	}
	return a
}

// entry makes the result of an operation that brings a node. It takes fd over.
func (r *request) entry(fd int) (*node, *agent.NodeEntryResult, error) {
	var st unix.Statx_t
	if err := statx(fd, &st); err != nil {
		unix.Close(fd)
		return nil, nil, err
	}
	n, err := r.table.enter(fd, &st)
	if err != nil {
		return nil, nil, err
	}
	r.refresh(n, &st)
	return n, &agent.NodeEntryResult{Node: n.id, Attr: attrOf(&st)}, nil
}

// find opens one name of a directory as a node, as who the request names.
func (r *request) find(dir int, name string) (agent.NodeResult, error) {
	fd, err := r.findFD(dir, name)
	if err != nil {
		return nil, err
	}
	_, e, err := r.entry(fd)
	if err != nil {
		return nil, err
	}
	return e, nil
}

func (r *request) findFD(dir int, name string) (fd int, err error) {
	err = r.as(func() (err error) {
		fd, err = unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	})
	return fd, err
}

func (r *request) lookup(op *agent.NodeLookup) (agent.NodeResult, error) {
	name, err := component(op.Name)
	if err != nil {
		return nil, err
	}
	n, dir, err := r.node(op.Dir)
	if err != nil {
		return nil, err
	}
	defer r.done(n)
	return r.find(dir, name)
}

func (r *request) attach(op *agent.NodeAttach) (agent.NodeResult, error) {
	switch {
	case len(op.Path) == 0 || op.Path[0] != '/' || bytes.IndexByte(op.Path, 0) >= 0:
		return nil, unix.EINVAL
	case len(op.Path) >= unix.PathMax:
		return nil, unix.ENAMETOOLONG
	}
	var fd int
	err := r.as(func() (err error) {
		fd, err = unix.Open(string(op.Path), unix.O_PATH|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, err
	}
	_, e, err := r.entry(fd)
	if err != nil {
		return nil, err
	}
	return e, nil
}

// keySize is what a key has before the file system's own handle: its type.
const keySize = 4

func (r *request) key(op *agent.NodeKey) (agent.NodeResult, error) {
	n, fd, err := r.node(op.Node)
	if err != nil {
		return nil, err
	}
	defer r.done(n)
	h, err := fileHandle(fd)
	if err != nil {
		return nil, err
	}
	key := binary.BigEndian.AppendUint32(make([]byte, 0, keySize+h.Size()), uint32(h.Type()))
	return &agent.NodeBytesResult{Data: append(key, h.Bytes()...)}, nil
}

func (r *request) recall(op *agent.NodeRecall) (agent.NodeResult, error) {
	if len(op.Key) <= keySize || len(op.Key) > keySize+128 {
		return nil, unix.EINVAL
	}
	base, _, err := r.node(op.Base)
	if err != nil {
		return nil, err
	}
	defer r.done(base)
	anchor, err := r.svc.cache.anchorOf(base)
	if err != nil {
		return nil, err
	}
	h := unix.NewFileHandle(int32(binary.BigEndian.Uint32(op.Key)), op.Key[keySize:])
	fd, err := openHandle(anchor, h)
	if err != nil {
		return nil, err
	}
	_, e, err := r.entry(fd)
	if err != nil {
		return nil, err
	}
	return e, nil
}

func (r *request) readLink(op *agent.NodeReadLink) (agent.NodeResult, error) {
	n, fd, err := r.node(op.Node)
	if err != nil {
		return nil, err
	}
	defer r.done(n)
	if n.kind != unix.S_IFLNK {
		return nil, unix.EINVAL
	}
	buf := make([]byte, unix.PathMax)
	if err := r.reserve(len(buf)); err != nil {
		return nil, err
	}
	size := 0
	err = r.as(func() (err error) {
		size, err = unix.Readlinkat(fd, "", buf)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &agent.NodeBytesResult{Data: buf[:size]}, nil
}

func (r *request) statFS(op *agent.NodeStatFS) (agent.NodeResult, error) {
	n, fd, err := r.node(op.Node)
	if err != nil {
		return nil, err
	}
	defer r.done(n)
	var st unix.Statfs_t
	if err := retry(func() error { return unix.Fstatfs(fd, &st) }); err != nil {
		return nil, err
	}
	return &agent.NodeStatFSResult{
		Type:    uint64(uint32(st.Type)),
		Bsize:   uint32(st.Bsize),
		Frsize:  uint32(st.Frsize),
		Blocks:  st.Blocks,
		Bfree:   st.Bfree,
		Bavail:  st.Bavail,
		Files:   st.Files,
		Ffree:   st.Ffree,
		Namelen: uint32(st.Namelen),
		Flags:   uint64(st.Flags),
	}, nil
}

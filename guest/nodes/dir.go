package nodes

import (
	"bytes"
	"encoding/binary"
	"math"
	"sync"

	"golang.org/x/sys/unix"

	"msb/protocol/agent"
)

const (
	// entrySize and attrSize bound what an entry takes in an answer, in bytes, beside its name.
	entrySize = 48
	attrSize  = 128
	// direntBuffer is how much is read from a directory at a time.
	direntBuffer = 32 << 10
	direntHead   = 19 // of struct linux_dirent64, before the name
)

// listing is how far an open directory has been read. mu is held by the operation that reads it.
type listing struct {
	mu   sync.Mutex
	at   uint64 // offset of rest's first entry
	next uint64 // where the kernel goes on
	rest []byte // entries read and not returned
}

// dirent is one entry of the kernel's.
type dirent struct {
	ino  uint64
	next uint64 // offset after it
	kind uint32
	name []byte
}

// cutDirent takes the first entry of b.
func cutDirent(b []byte) (d dirent, rest []byte, ok bool) {
	if len(b) < direntHead {
		return d, nil, false
	}
	size := int(binary.NativeEndian.Uint16(b[16:]))
	if size < direntHead || size > len(b) {
		return d, nil, false
	}
	d.ino = binary.NativeEndian.Uint64(b)
	d.next = binary.NativeEndian.Uint64(b[8:])
	d.kind = uint32(b[18]) << 12
	d.name = b[direntHead:size]
	if i := bytes.IndexByte(d.name, 0); i >= 0 {
		d.name = d.name[:i]
	}
	return d, b[size:], true
}

// readDir returns entries by the kernel's own offsets, which stay what they are while entries come and go.
func (r *request) readDir(op *agent.NodeReadDir) (agent.NodeResult, error) {
	switch {
	case op.Flags&^(agent.NodeDirAttr|agent.NodeDirNode) != 0, op.Size > agent.MaxNodeInline, op.Offset > math.MaxInt64:
		return nil, unix.EINVAL
	}
	h, err := r.handle(op.Handle)
	if err != nil {
		return nil, err
	}
	defer func() { _ = h.unref() }()
	if h.dir == nil {
		return nil, unix.ENOTDIR
	}
	if err := r.reserve(int(op.Size)); err != nil {
		return nil, err
	}
	l := h.dir
	l.mu.Lock()
	defer l.mu.Unlock()
	if op.Offset == 0 || op.Offset != l.at {
		if op.Offset != l.next || op.Offset == 0 {
			if _, err := unix.Seek(h.fd, int64(op.Offset), unix.SEEK_SET); err != nil {
				return nil, err
			}
		}
		l.at, l.next, l.rest = op.Offset, op.Offset, nil
	}
	list := &agent.NodeListResult{Entries: []agent.NodeDirEntry{}}
	for used := 0; ; {
		if len(l.rest) == 0 {
			if r.stopped.Load() {
				return nil, unix.EINTR
			}
			if ok, err := l.fill(h.fd); err != nil && len(list.Entries) == 0 {
				return nil, err
			} else if !ok || err != nil {
				return list, nil
			}
		}
		d, rest, ok := cutDirent(l.rest)
		if !ok {
			l.rest = nil
			return nil, unix.EIO
		}
		if name := string(d.name); name == "." || name == ".." {
			l.rest, l.at = rest, d.next
			continue
		}
		used += entrySize + len(d.name)
		if op.Flags != 0 {
			used += attrSize
		}
		switch {
		case used <= int(op.Size):
		case len(list.Entries) == 0:
			return nil, unix.EINVAL // as getdents says of a buffer that is too small
		default:
			return list, nil
		}
		l.rest, l.at = rest, d.next
		e := agent.NodeDirEntry{Name: bytes.Clone(d.name), Ino: d.ino, Type: d.kind, Offset: d.next}
		if op.Flags != 0 {
			r.describe(h.fd, &e, op.Flags&agent.NodeDirNode != 0)
		}
		list.Entries = append(list.Entries, e)
	}
}

// fill reads more entries. false is the end.
func (l *listing) fill(fd int) (bool, error) {
	buf := make([]byte, direntBuffer)
	n := 0
	err := retry(func() (err error) {
		n, err = unix.Getdents(fd, buf)
		return err
	})
	if err != nil || n == 0 {
		return false, err
	}
	l.rest = buf[:n]
	for b := l.rest; len(b) > 0; {
		d, rest, ok := cutDirent(b)
		if !ok {
			break
		}
		l.next, b = d.next, rest
	}
	return true, nil
}

// describe adds attributes, and the node, to an entry. What is gone, or may not be looked at, has none.
func (r *request) describe(dir int, e *agent.NodeDirEntry, node bool) {
	name := string(e.Name)
	if !node {
		var st unix.Statx_t
		err := r.as(func() error {
			return unix.Statx(dir, name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, statMask, &st)
		})
		if err == nil {
			e.Attr = attrOf(&st)
		}
		return
	}
	fd, err := r.findFD(dir, name)
	if err != nil {
		return
	}
	if _, x, err := r.entry(fd); err == nil {
		e.Node, e.Attr = x.Node, x.Attr
	}
}

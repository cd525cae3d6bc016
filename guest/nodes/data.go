package nodes

import (
	"io"
	"math"

	"golang.org/x/sys/unix"

	"msb/guest/files"
	"msb/guest/port"
	"msb/protocol/agent"
)

// copyStep bounds one copy_file_range, which cannot be interrupted, in bytes.
const copyStep = 64 << 20

// file returns the handle of a file that is open.
func (r *request) file(ref agent.NodeRef) (*handle, error) {
	h, err := r.handle(ref)
	if err == nil && h.dir != nil {
		_ = h.unref()
		return nil, unix.EISDIR
	}
	return h, err
}

func (r *request) read(op *agent.NodeRead) (agent.NodeResult, error) {
	if op.Len > agent.MaxNodeInline || op.Offset > math.MaxInt64-uint64(op.Len) {
		return nil, unix.EINVAL
	}
	h, err := r.file(op.Handle)
	if err != nil {
		return nil, err
	}
	defer func() { _ = h.unref() }()
	if err := r.reserve(int(op.Len)); err != nil {
		return nil, err
	}
	buf := r.scratch(int(op.Len))
	n := 0
	for n < len(buf) {
		m, err := unix.Pread(h.fd, buf[n:], int64(op.Offset)+int64(n))
		if err == unix.EINTR {
			continue
		}
		if err != nil && n == 0 {
			return nil, err
		}
		if err != nil || m == 0 {
			break // an error in the middle comes again with the next read
		}
		n += m
	}
	r.used -= len(buf) - n
	return &agent.NodeBytesResult{Data: buf[:n]}, nil
}

// writable returns the handle of a file for an operation that writes.
func (r *request) writable(ref agent.NodeRef, flags uint32) (*handle, error) {
	if flags&^agent.NodeKillPriv != 0 {
		return nil, unix.EINVAL
	}
	h, err := r.file(ref)
	if err != nil {
		return nil, err
	}
	if !h.write {
		err = unix.EBADF
	} else if flags&agent.NodeKillPriv != 0 {
		err = killPriv(h.fd)
	}
	if err != nil {
		_ = h.unref()
		return nil, err
	}
	return h, nil
}

func (r *request) write(op *agent.NodeWrite) (agent.NodeResult, error) {
	if len(op.Data) > agent.MaxNodeInline || op.Offset > math.MaxInt64-uint64(len(op.Data)) {
		return nil, unix.EINVAL
	}
	h, err := r.writable(op.Handle, op.Flags)
	if err != nil {
		return nil, err
	}
	defer func() { _ = h.unref() }()
	for n := 0; n < len(op.Data); {
		m, err := unix.Pwrite(h.fd, op.Data[n:], int64(op.Offset)+int64(n)) // appends on a descriptor that does
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return nil, err
		case m == 0:
			return nil, io.ErrShortWrite
		}
		n += m
	}
	return &agent.NodeNumberResult{N: uint64(len(op.Data))}, nil
}

func (r *request) readStream(op *agent.NodeReadStream) (agent.NodeResult, error) {
	h, err := r.file(op.Handle)
	if err != nil {
		return nil, err
	}
	defer func() { _ = h.unref() }()
	return r.stream(files.Flow{FD: h.fd, Offset: op.Offset, Len: op.Len})
}

func (r *request) writeStream(op *agent.NodeWriteStream) (agent.NodeResult, error) {
	h, err := r.writable(op.Handle, op.Flags)
	if err != nil {
		return nil, err
	}
	defer func() { _ = h.unref() }()
	return r.stream(files.Flow{FD: h.fd, Append: h.append, Offset: op.Offset, Len: op.Len, Write: true})
}

func (r *request) stream(f files.Flow) (_ agent.NodeResult, err error) {
	f.Owner, f.ID, f.Version, f.Offer = port.Owner(r.id), r.id, r.version, *r.payload.Bulk
	var n uint64
	if perr := r.svc.park(r.own, func() { n, err = r.svc.flows.Run(f) }); perr != nil {
		return nil, perr
	}
	if err != nil {
		return nil, err
	}
	return &agent.NodeNumberResult{N: n}, nil
}

func (r *request) sync(op *agent.NodeSync) (agent.NodeResult, error) {
	t, err := r.target(op.Target)
	if err != nil {
		return nil, err
	}
	defer t.done()
	return r.withOpen(t, func(fd int) error {
		if op.DataOnly {
			return unix.Fdatasync(fd)
		}
		return unix.Fsync(fd)
	})
}

func (r *request) syncFS(op *agent.NodeSyncFS) (agent.NodeResult, error) {
	t, err := r.target(op.Node)
	if err != nil {
		return nil, err
	}
	defer t.done()
	return r.withOpen(t, unix.Syncfs)
}

// withOpen calls f with a descriptor of a target that is really open.
func (r *request) withOpen(t target, f func(fd int) error) (agent.NodeResult, error) {
	fd := t.fd
	if t.handle == nil {
		if t.node.kind != unix.S_IFREG && t.node.kind != unix.S_IFDIR {
			return nil, unix.EINVAL
		}
		opened, err := reopen(t.fd, unix.O_RDONLY)
		if err != nil {
			return nil, err
		}
		defer unix.Close(opened)
		fd = opened
	}
	if err := retry(func() error { return f(fd) }); err != nil {
		return nil, err
	}
	return none, nil
}

func (r *request) allocate(op *agent.NodeAllocate) (agent.NodeResult, error) {
	if op.Offset > math.MaxInt64 || op.Len > math.MaxInt64 {
		return nil, unix.EFBIG
	}
	h, err := r.file(op.Handle)
	if err != nil {
		return nil, err
	}
	defer func() { _ = h.unref() }()
	if err := r.as(func() error { return unix.Fallocate(h.fd, op.Mode, int64(op.Offset), int64(op.Len)) }); err != nil {
		return nil, err
	}
	return none, nil
}

func (r *request) seek(op *agent.NodeSeek) (agent.NodeResult, error) {
	switch {
	case op.Whence != agent.NodeSeekData && op.Whence != agent.NodeSeekHole:
		return nil, unix.EINVAL
	case op.Offset > math.MaxInt64:
		return nil, unix.ENXIO
	}
	h, err := r.file(op.Handle)
	if err != nil {
		return nil, err
	}
	defer func() { _ = h.unref() }()
	at, err := unix.Seek(h.fd, int64(op.Offset), int(op.Whence))
	if err != nil {
		return nil, err
	}
	return &agent.NodeNumberResult{N: uint64(at)}, nil
}

func (r *request) copyRange(op *agent.NodeCopyRange) (agent.NodeResult, error) {
	if op.FromOffset > math.MaxInt64 || op.ToOffset > math.MaxInt64 {
		return nil, unix.EINVAL
	}
	from, err := r.file(op.From)
	if err != nil {
		return nil, err
	}
	defer func() { _ = from.unref() }()
	to, err := r.file(op.To)
	if err != nil {
		return nil, err
	}
	defer func() { _ = to.unref() }()
	src, dst, n := int64(op.FromOffset), int64(op.ToOffset), 0
	err = r.as(func() (err error) {
		n, err = unix.CopyFileRange(from.fd, &src, to.fd, &dst, int(min(op.Len, copyStep)), 0)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &agent.NodeNumberResult{N: uint64(n)}, nil
}

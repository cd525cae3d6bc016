package fusefs

import (
	"context"
	"errors"
	"io"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"msb/agentclient"
	"msb/protocol/agent"
)

// freshFor is how old attributes may be when a file is opened. Older ones are
// asked for again before the first read: the size bounds what the kernel reads,
// and with an old one a file that grew in the guest would be cut.
const freshFor = 10 * time.Millisecond

// openOptions translates open(2) flags.
func openOptions(flags uint32) agent.OpenOptions {
	o := agent.OpenOptions{
		Append:   flags&syscall.O_APPEND != 0,
		Truncate: flags&syscall.O_TRUNC != 0,
	}
	switch flags & syscall.O_ACCMODE {
	case syscall.O_RDONLY:
		o.Read, o.Write = true, o.Truncate
	case syscall.O_WRONLY:
		o.Write = true
	default:
		o.Read, o.Write = true, true
	}
	return o
}

// answerFlags tells the kernel how to treat the open file. A file open for
// appending bypasses its cache: only the guest knows where the end is when
// others append too.
func answerFlags(o agent.OpenOptions) uint32 {
	switch {
	case o.Append:
		return fuse.FOPEN_DIRECT_IO
	case !o.Write:
		return fuse.FOPEN_NOFLUSH
	}
	return 0
}

// Open opens an existing file.
func (s *pathFS) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	o := openOptions(in.Flags)
	if s.opts.ReadOnly && o.Write {
		return fuse.EROFS
	}
	n, errno := s.tree.get(in.NodeId)
	if errno != 0 {
		return fuse.Status(errno)
	}
	if st := s.quiesce(cancel, &n.queue); !st.Ok() {
		return st
	}
	ctx, end := s.nameOp(cancel)
	defer end()
	c, err := s.link.get()
	if err != nil {
		return s.status(ctx, err)
	}
	if err := n.queue.drain(ctx); err != nil {
		return s.status(ctx, err)
	}
	unlock, err := s.sharePaths(ctx)
	if err != nil {
		return s.status(ctx, err)
	}
	defer unlock()
	path, errno := s.tree.path(n)
	if errno != 0 {
		return fuse.Status(errno)
	}
	file, err := openPath(ctx, c, path, o)
	if err != nil {
		return s.status(ctx, err)
	}
	if o.Truncate {
		s.changed(n)
	} else if _, age, _ := n.recall(); age > freshFor {
		s.forgetAttr(n.id)
	}
	out.Fh = s.newHandle(n, file, o).id
	out.OpenFlags = answerFlags(o)
	return fuse.OK
}

// openPath opens a file of the guest. The guest's agent opens none for appending
// and cuts it in one step.
func openPath(ctx context.Context, c *agentclient.Client, path string, o agent.OpenOptions) (*agentclient.File, error) {
	if !o.Append || !o.Truncate {
		return c.FS().OpenFile(ctx, path, o)
	}
	o.Truncate = false
	file, err := c.FS().OpenFile(ctx, path, o)
	if err != nil {
		return nil, err
	}
	if err := file.SetStat(ctx, agent.Attrs{Size: new(uint64(0))}); err != nil {
		file.Close(ctx)
		return nil, err
	}
	return file, nil
}

// Release closes the file. Nobody waits for it, so errors were for Flush.
func (s *pathFS) Release(_ <-chan struct{}, in *fuse.ReleaseIn) {
	h, errno := s.handles.file(in.Fh)
	if errno != 0 {
		return
	}
	ctx, end := s.dataOp(nil)
	defer end()
	if err := h.n.queue.drain(ctx); err != nil {
		s.log.Warn("a file was closed before its data was stored", "error", err)
	}
	s.dropHandle(h)
	h.mu.Lock()
	defer h.mu.Unlock()
	if !ended(h.file.Client()) {
		h.file.Close(ctx)
	}
}

// Read reads from an open file.
func (s *pathFS) Read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	h, errno := s.handles.file(in.Fh)
	if errno != 0 {
		return nil, fuse.Status(errno)
	}
	ctx, end := s.dataOp(cancel)
	defer end()
	if err := h.n.queue.drain(ctx); err != nil {
		return nil, s.status(ctx, err)
	}
	if len(buf) > int(in.Size) {
		buf = buf[:in.Size]
	}
	res, err := h.ahead.read(ctx, int64(in.Offset), buf)
	if err != nil {
		return nil, s.status(ctx, err)
	}
	return res, fuse.OK
}

// Write takes data for an open file. Appended data goes to the guest at once,
// to be placed at the end that it has there; other data is queued.
func (s *pathFS) Write(cancel <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	h, errno := s.handles.file(in.Fh)
	if errno != 0 {
		return 0, fuse.Status(errno)
	}
	ctx, end := s.dataOp(cancel)
	defer end()
	if err := h.failure(); err != nil {
		return 0, s.status(ctx, err)
	}
	if !s.link.up() {
		return 0, fuse.Status(syscall.ENOTCONN)
	}
	defer s.changed(h.n)
	if !h.opts.Append {
		if err := s.enqueue(ctx, &h.n.queue, h, int64(in.Offset), data); err != nil {
			return 0, s.status(ctx, err)
		}
		return uint32(len(data)), fuse.OK
	}
	if err := h.n.queue.drain(ctx); err != nil {
		return 0, s.status(ctx, err)
	}
	file, err := s.remote(ctx, h)
	if err != nil {
		return 0, s.status(ctx, err)
	}
	if err := s.bulk.Acquire(ctx, 1); err != nil {
		return 0, s.status(ctx, err)
	}
	defer s.bulk.Release(1)
	n, err := file.WriteAt(ctx, data, int64(in.Offset))
	if err != nil && (n == 0 || !errors.Is(err, io.ErrShortWrite)) {
		return 0, s.status(ctx, err)
	}
	return uint32(n), fuse.OK
}

// Writev is Write for data in several parts, which a kernel mount never has.
func (s *pathFS) Writev(<-chan struct{}, *fuse.WriteIn, [][]byte) (uint32, fuse.Status) {
	return 0, fuse.ENOSYS
}

// Flush is called at each close(2).
func (s *pathFS) Flush(cancel <-chan struct{}, in *fuse.FlushIn) fuse.Status {
	return s.settle(cancel, in.Fh)
}

// Fsync waits until the guest has the data. The protocol cannot ask the guest
// to write it to its disk.
func (s *pathFS) Fsync(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	return s.settle(cancel, in.Fh)
}

// settle waits for the queued data and reports what could not be stored.
func (s *pathFS) settle(cancel <-chan struct{}, fh uint64) fuse.Status {
	h, errno := s.handles.file(fh)
	if errno != 0 {
		return fuse.Status(errno)
	}
	ctx, end := s.dataOp(cancel)
	defer end()
	if err := h.n.queue.drain(ctx); err != nil {
		return s.status(ctx, err)
	}
	if err := h.failure(); err != nil {
		return s.status(ctx, err)
	}
	return fuse.OK
}

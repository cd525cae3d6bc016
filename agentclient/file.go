package agentclient

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"sync/atomic"

	"msb/protocol/agent"
	"msb/protocol/client"
)

// handle is an open file or directory of the guest.
type handle struct {
	c      *Client
	id     uint64
	path   string
	closed atomic.Bool
}

// Client returns the connection that the handle belongs to.
func (h *handle) Client() *Client { return h.c }

// Path returns the path it was opened with.
func (h *handle) Path() string { return h.path }

// Stat describes what is open. For a directory the guest looks at the path
// again.
func (h *handle) Stat(ctx context.Context) (agent.Entry, error) {
	if h.closed.Load() {
		return agent.Entry{}, fs.ErrClosed
	}
	v, err := request[agent.FSStat](ctx, h.c, "fstat", h.path, agent.OpFStat{Handle: h.id})
	return agent.Entry(v), err
}

// Close closes the handle and returns what the guest says of it, which for a
// file may be a late write error. A ctx that has ended does not keep the
// handle open, it only does not wait.
func (h *handle) Close(ctx context.Context) error {
	if h.closed.Swap(true) {
		return fs.ErrClosed
	}
	h.c.handles.Add(-1)
	if ctx.Err() != nil {
		h.c.dropHandle(h.id)
		return context.Cause(ctx)
	}
	return h.c.fsDo(ctx, "close", h.path, agent.OpCloseHandle{Handle: h.id})
}

// File is an open file of the guest. Safe for concurrent use.
type File struct{ handle }

// SetStat changes the attributes that are not nil.
func (f *File) SetStat(ctx context.Context, a agent.Attrs) error {
	if f.closed.Load() {
		return fs.ErrClosed
	}
	return f.c.fsDo(ctx, "fsetstat", f.path, agent.OpFSetStat{Handle: f.id, Attrs: a})
}

func (f *File) request(op string, off uint64, length *uint64, offer *agent.BulkOffer) (agent.Type, any) {
	if op == "write" {
		return agent.FSRequest, agent.FSRequestPayload{Op: agent.OpWrite{Handle: f.id, Offset: off, Len: length}, Bulk: offer}
	}
	return agent.FSRequest, agent.FSRequestPayload{Op: agent.OpRead{Handle: f.id, Offset: off, Len: length}, Bulk: offer}
}

func (f *File) answer() agent.Type { return agent.FSResponse }

func (f *File) result(id uint32, op string, p []byte) error { return fsResult(id, op, f.path, p) }

// ReadAt reads len(p) bytes at off in one request. Like io.ReaderAt it returns
// io.EOF when it reads fewer. p is not touched after it has returned.
func (f *File) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	if f.closed.Load() {
		return 0, fs.ErrClosed
	}
	if err := span("read", f.path, off, int64(len(p))); err != nil || len(p) == 0 {
		return 0, err
	}
	if len(p) >= f.c.cfg.readBulk && f.c.takeBulk() {
		n, accepted, err := f.c.read(ctx, f, p, off, true)
		if !declined(err, accepted) {
			return n, err
		}
	}
	n, _, err := f.c.read(ctx, f, p, off, false)
	return n, err
}

// Download writes length bytes from off, or everything up to the end when
// length is nil, to w. The end of the file before length is no error.
func (f *File) Download(ctx context.Context, w io.Writer, off int64, length *uint64) (int64, error) {
	if f.closed.Load() {
		return 0, fs.ErrClosed
	}
	if err := span("read", f.path, off, 0); err != nil {
		return 0, err
	}
	if (length == nil || *length >= uint64(f.c.cfg.readBulk)) && f.c.takeBulk() {
		n, accepted, err := f.c.download(ctx, f, w, off, length)
		if !declined(err, accepted) {
			return n, err
		}
	}
	return f.downloadPieces(ctx, w, off, length)
}

// downloadPieces is Download without raw bulk: a CBOR stream knows no credit,
// so it is asked for in pieces that fit into memory.
func (f *File) downloadPieces(ctx context.Context, w io.Writer, off int64, length *uint64) (total int64, err error) {
	const piece = 1 << 20
	p := client.NewPacket(piece)
	defer p.Free()
	for {
		buf := p.B[:piece]
		if length != nil {
			buf = buf[:min(piece, *length-uint64(total))]
		}
		if len(buf) == 0 {
			return total, nil
		}
		if err := span("read", f.path, off+total, int64(len(buf))); err != nil {
			return total, err
		}
		n, _, err := f.c.read(ctx, f, buf, off+total, false)
		if err != nil && !errors.Is(err, io.EOF) {
			return total, err
		}
		m, werr := w.Write(buf[:n])
		total += int64(m)
		if werr != nil {
			return total, werr
		}
		if err != nil {
			return total, nil
		}
	}
}

// WriteAt writes p at off in one request. A file that was opened for appending
// ignores off.
func (f *File) WriteAt(ctx context.Context, p []byte, off int64) (int, error) {
	if f.closed.Load() {
		return 0, fs.ErrClosed
	}
	if err := span("write", f.path, off, int64(len(p))); err != nil || len(p) == 0 {
		return 0, err
	}
	size := uint64(len(p))
	if len(p) >= f.c.cfg.writeBulk && f.c.takeBulk() {
		n, accepted, err := f.c.write(ctx, f, &memory{p: p}, off, &size, true)
		if !declined(err, accepted) {
			return int(n), err
		}
	}
	n, _, err := f.c.write(ctx, f, &memory{p: p}, off, &size, false)
	return int(n), err
}

// Upload writes all of r at off in one request, or in two steps when it is
// small. It returns how many bytes the guest confirmed.
func (f *File) Upload(ctx context.Context, r io.Reader, off int64) (int64, error) {
	if f.closed.Load() {
		return 0, fs.ErrClosed
	}
	if err := span("write", f.path, off, 0); err != nil {
		return 0, err
	}
	first := client.NewPacket(f.c.cfg.writeBulk)
	defer first.Free()
	buf := first.B[:f.c.cfg.writeBulk]
	n, err := io.ReadFull(r, buf)
	switch {
	case n == 0 && errors.Is(err, io.EOF):
		return 0, nil
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		m, err := f.WriteAt(ctx, buf[:n], off)
		return int64(m), err
	case err != nil:
		return 0, err
	}
	head := &memory{p: buf}
	if f.c.takeBulk() {
		done, accepted, err := f.c.write(ctx, f, &joined{head, r}, off, nil, true)
		if !declined(err, accepted) {
			return done, err
		}
	}
	done, _, err := f.c.write(ctx, f, &joined{head, r}, off, nil, false)
	return done, err
}

// memory is a reader of a byte slice that cannot fail.
type memory struct{ p []byte }

func (m *memory) Read(p []byte) (int, error) {
	if len(m.p) == 0 {
		return 0, io.EOF
	}
	n := copy(p, m.p)
	m.p = m.p[n:]
	return n, nil
}

// joined reads head and then rest, as io.MultiReader does.
type joined struct {
	head *memory
	rest io.Reader
}

func (j *joined) Read(p []byte) (int, error) {
	if len(j.head.p) > 0 {
		return j.head.Read(p)
	}
	return j.rest.Read(p)
}

// Dir is an open directory of the guest.
type Dir struct{ handle }

// Read returns up to limit of the next entries, the guest's default of 128
// when limit is 0. No entry and no error is the end.
func (d *Dir) Read(ctx context.Context, limit uint32) ([]agent.Entry, error) {
	if d.closed.Load() {
		return nil, fs.ErrClosed
	}
	op := agent.OpReadDir{Handle: d.id}
	if limit > 0 {
		op.Limit = &limit
	}
	v, err := request[agent.FSList](ctx, d.c, "readdir", d.path, op)
	return v, err
}

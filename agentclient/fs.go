package agentclient

import (
	"bytes"
	"context"
	"errors"
	"math"
	"syscall"

	"msb/protocol/agent"
	"msb/protocol/client"
)

// FS are the operations on the files of a sandbox. Paths are the guest's; the
// guest resolves them. Failures are *FSError when the guest refused,
// *UnsupportedOperationError below generation 2.
type FS struct{ c *Client }

// FS returns the file operations of this connection.
func (c *Client) FS() *FS { return &FS{c: c} }

// Stat describes path; follow tells whether a symlink at its end is followed.
func (f *FS) Stat(ctx context.Context, path string, follow bool) (agent.Entry, error) {
	v, err := request[agent.FSStat](ctx, f.c, "stat", path, agent.OpStat{Path: path, FollowSymlink: follow})
	return agent.Entry(v), err
}

// SetStat changes the attributes that are not nil.
func (f *FS) SetStat(ctx context.Context, path string, follow bool, a agent.Attrs) error {
	return f.do(ctx, "setstat", path, agent.OpSetStat{Path: path, FollowSymlink: follow, Attrs: a})
}

// List returns all entries of a directory, unsorted, without . and .. and
// without following symlinks. Entries carry full paths.
func (f *FS) List(ctx context.Context, path string) ([]agent.Entry, error) {
	v, err := request[agent.FSList](ctx, f.c, "list", path, agent.OpList{Path: path})
	return v, err
}

// ReadLink returns the target of a symlink.
func (f *FS) ReadLink(ctx context.Context, path string) (string, error) {
	v, err := request[agent.FSPath](ctx, f.c, "readlink", path, agent.OpReadLink{Path: path})
	return string(v), err
}

// RealPath resolves path; its last component may be missing.
func (f *FS) RealPath(ctx context.Context, path string) (string, error) {
	v, err := request[agent.FSPath](ctx, f.c, "realpath", path, agent.OpRealPath{Path: path})
	return string(v), err
}

// Symlink makes link point to target.
func (f *FS) Symlink(ctx context.Context, target, link string) error {
	return f.do(ctx, "symlink", link, agent.OpSymlink{Target: target, LinkPath: link})
}

// Mkdir makes a directory and its parents; mode is set on the last one.
func (f *FS) Mkdir(ctx context.Context, path string, mode *uint32) error {
	return f.do(ctx, "mkdir", path, agent.OpMkdir{Path: path, Mode: mode})
}

// Remove unlinks a file.
func (f *FS) Remove(ctx context.Context, path string) error {
	return f.do(ctx, "remove", path, agent.OpRemove{Path: path})
}

// RemoveDir removes a directory, with everything in it if recursive.
func (f *FS) RemoveDir(ctx context.Context, path string, recursive bool) error {
	return f.do(ctx, "rmdir", path, agent.OpRemoveDir{Path: path, Recursive: recursive})
}

// Copy copies a regular file and its mode within the guest.
func (f *FS) Copy(ctx context.Context, src, dst string) error {
	return f.do(ctx, "copy", src, agent.OpCopy{Src: src, Dst: dst})
}

// Rename renames src to dst, replacing it.
func (f *FS) Rename(ctx context.Context, src, dst string) error {
	return f.do(ctx, "rename", src, agent.OpRename{Src: src, Dst: dst})
}

// OpenFile opens a file. Handles belong to this connection and end with it.
func (f *FS) OpenFile(ctx context.Context, path string, o agent.OpenOptions) (*File, error) {
	h, err := f.open(ctx, path, agent.OpOpenFile{Path: path, Options: o})
	if err != nil {
		return nil, err
	}
	return &File{handle: handle{c: f.c, id: uint64(h), path: path}}, nil
}

// OpenDir opens a directory for reading in pieces.
func (f *FS) OpenDir(ctx context.Context, path string) (*Dir, error) {
	h, err := f.open(ctx, path, agent.OpOpenDir{Path: path})
	if err != nil {
		return nil, err
	}
	return &Dir{handle: handle{c: f.c, id: uint64(h), path: path}}, nil
}

// open opens a handle. One that arrives after the caller has gone is closed.
func (f *FS) open(ctx context.Context, path string, op agent.FSOp) (agent.FSHandle, error) {
	f.c.handles.Add(1)
	p, err := f.c.call(ctx, agent.FSRequest, agent.FSRequestPayload{Op: op}, agent.FSResponse, func(p []byte) {
		if h, err := answer[agent.FSHandle]("open", path, p); err == nil {
			f.c.dropHandle(uint64(h))
		}
	})
	var h agent.FSHandle
	if err == nil {
		h, err = answer[agent.FSHandle]("open", path, p)
	}
	if err != nil {
		f.c.handles.Add(-1)
	}
	return h, err
}

// dropHandle closes a handle without waiting for the answer.
func (c *Client) dropHandle(id uint64) {
	s, err := c.engine.Subscribe(ignore{})
	if err == nil {
		c.post(s.ID(), client.Control, agent.FSRequest, agent.FSRequestPayload{Op: agent.OpCloseHandle{Handle: id}})
		s.Close()
	}
}

type ignore struct{}

func (ignore) Frame(client.Header, *client.Body) {}
func (ignore) Lost(*client.LostError)            {}

func (f *FS) do(ctx context.Context, op, path string, o agent.FSOp) error {
	return f.c.fsDo(ctx, op, path, o)
}

// fsDo runs an operation whose answer carries no data.
func (c *Client) fsDo(ctx context.Context, op, path string, o agent.FSOp) error {
	p, err := c.call(ctx, agent.FSRequest, agent.FSRequestPayload{Op: o}, agent.FSResponse, nil)
	if err != nil {
		return err
	}
	return fsResult(0, op, path, p)
}

// request runs an operation whose answer carries a T.
func request[T agent.FSValue](ctx context.Context, c *Client, op, path string, o agent.FSOp) (T, error) {
	p, err := c.call(ctx, agent.FSRequest, agent.FSRequestPayload{Op: o}, agent.FSResponse, nil)
	if err != nil {
		var zero T
		return zero, err
	}
	return answer[T](op, path, p)
}

func answer[T agent.FSValue](op, path string, p []byte) (T, error) {
	var zero T
	var r agent.FSResponsePayload
	if err := agent.DecodePayload(p, &r); err != nil {
		return zero, &ProtocolError{Problem: err.Error()}
	}
	if !r.OK {
		return zero, fsError(op, path, r)
	}
	v, ok := r.Data.(T)
	if !ok {
		return zero, &ProtocolError{Problem: op + ": the answer carries something else"}
	}
	return v, nil
}

// plainOK is the usual answer of an operation without data.
var plainOK = []byte("\xa3\x62ok\xf5\x65error\xf6\x64data\xf6")

// fsResult reads an answer without data.
func fsResult(id uint32, op, path string, p []byte) error {
	if bytes.Equal(p, plainOK) {
		return nil
	}
	var r agent.FSResponsePayload
	if err := agent.DecodePayload(p, &r); err != nil {
		return &ProtocolError{ID: id, Problem: op + ": " + err.Error()}
	}
	if !r.OK {
		return fsError(op, path, r)
	}
	return nil
}

func fsError(op, path string, r agent.FSResponsePayload) error {
	e := &FSError{Op: op, Path: path, Message: "the guest gave no reason"}
	if r.Error != nil {
		e.Message = *r.Error
		e.Errno = errnoOf(e.Message)
	}
	return e
}

// span checks the offset and the length of a piece of a file.
func span(op, path string, off, n int64) error {
	if off < 0 || n < 0 || off > math.MaxInt64-n {
		return &FSError{Op: op, Path: path, Message: "invalid offset", Errno: syscall.EINVAL}
	}
	return nil
}

// declined tells whether a bulk offer was refused before anything happened,
// for no reason of the file itself: the relay's cap, or a peer without bulk.
// The same request without the offer then gets the real answer.
func declined(err error, accepted bool) bool {
	var refused *FSError
	return !accepted && errors.As(err, &refused) && refused.Errno == 0
}

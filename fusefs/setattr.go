package fusefs

import (
	"context"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"msb/protocol/agent"
)

// SetAttr changes mode, owner, size and times: of the open file for a file
// without a name or when the kernel names a handle, else by name.
func (s *pathFS) SetAttr(cancel <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	if s.opts.ReadOnly {
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
	if err := n.queue.drain(ctx); err != nil {
		return s.status(ctx, err)
	}
	var h *handle
	if in.Valid&fuse.FATTR_FH != 0 {
		h, _ = s.handles.file(in.Fh)
	}
	if attrs := s.wanted(in); attrs != (agent.Attrs{}) {
		if err := s.change(ctx, n, h, attrs); err != nil {
			return s.status(ctx, err)
		}
		s.changed(n)
	}
	f, err := s.attributes(ctx, n, h)
	if err != nil {
		return s.status(ctx, err)
	}
	s.fillAttr(out, n, f)
	return fuse.OK
}

// wanted translates what is to change. Times lose their fractions of a second.
func (s *pathFS) wanted(in *fuse.SetAttrIn) agent.Attrs {
	var a agent.Attrs
	if in.Valid&fuse.FATTR_MODE != 0 {
		a.Mode = new(in.Mode & 0o7777)
	}
	if in.Valid&fuse.FATTR_UID != 0 {
		a.UID = new(s.ids.uid.guest(in.Uid))
	}
	if in.Valid&fuse.FATTR_GID != 0 {
		a.GID = new(s.ids.gid.guest(in.Gid))
	}
	if in.Valid&fuse.FATTR_SIZE != 0 {
		a.Size = new(in.Size)
	}
	now := time.Now().Unix()
	if in.Valid&fuse.FATTR_ATIME_NOW != 0 {
		a.Atime = &now
	} else if in.Valid&fuse.FATTR_ATIME != 0 {
		a.Atime = new(int64(in.Atime))
	}
	if in.Valid&fuse.FATTR_MTIME_NOW != 0 {
		a.Mtime = &now
	} else if in.Valid&fuse.FATTR_MTIME != 0 {
		a.Mtime = new(int64(in.Mtime))
	}
	return a
}

func (s *pathFS) change(ctx context.Context, n *node, h *handle, a agent.Attrs) error {
	unlock, err := s.sharePaths(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	path, gone := s.tree.path(n)
	if h == nil && gone != 0 {
		var done func()
		h, done = n.borrow()
		defer done()
	}
	if h == nil {
		if gone != 0 {
			return gone
		}
		return s.changePath(ctx, path, a)
	}
	file, err := s.remote(ctx, h)
	if err == syscall.ESTALE && gone == 0 {
		return s.changePath(ctx, path, a)
	}
	if err != nil {
		return err
	}
	return file.SetStat(ctx, a)
}

// changePath changes what has the name. A chmod that does not follow is refused
// for a symlink, as it should be; for everything else it is only safer.
func (s *pathFS) changePath(ctx context.Context, path string, a agent.Attrs) error {
	c, err := s.link.get()
	if err != nil {
		return err
	}
	return c.FS().SetStat(ctx, path, false, a)
}

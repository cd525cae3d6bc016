package fusefs

import (
	"context"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"msb/agentclient"
)

// Lookup finds one name in a directory.
func (s *pathFS) Lookup(cancel <-chan struct{}, in *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	parent, errno := s.tree.get(in.NodeId)
	if errno != 0 {
		return fuse.Status(errno)
	}
	switch errno := sendableName(name); errno {
	case 0:
	case syscall.EILSEQ, syscall.EINVAL:
		return s.absent(out)
	default:
		return fuse.Status(errno)
	}
	if known := s.tree.child(parent, name); known != nil {
		if st := s.quiesce(cancel, &known.queue); !st.Ok() {
			return st
		}
	}
	ctx, end := s.nameOp(cancel)
	defer end()
	unlock, err := s.sharePaths(ctx)
	if err != nil {
		return s.status(ctx, err)
	}
	defer unlock()
	f, err := s.find(ctx, parent, name)
	if errno := s.errno(ctx, err); errno == syscall.ENOENT {
		return s.absent(out)
	} else if errno != 0 {
		return fuse.Status(errno)
	}
	if f.kind() == syscall.S_IFLNK && s.opts.Symlinks == Hide {
		return s.absent(out)
	}
	n := s.tree.place(parent, name, f.kind())
	n.learn(f)
	s.fillEntry(out, n, f)
	return fuse.OK
}

// absent answers that there is no such name; the kernel may remember it.
func (s *pathFS) absent(out *fuse.EntryOut) fuse.Status {
	if s.opts.EntryTimeout == 0 {
		return fuse.ENOENT
	}
	*out = fuse.EntryOut{}
	out.SetEntryTimeout(s.opts.EntryTimeout)
	return fuse.OK
}

// find asks the guest for a name. A file that is open here and has been
// replaced there loses the name to the newcomer: the open one lives on.
func (s *pathFS) find(ctx context.Context, parent *node, name string) (facts, error) {
	c, err := s.link.get()
	if err != nil {
		return facts{}, err
	}
	dir, errno := s.tree.path(parent)
	if errno != 0 {
		return facts{}, errno
	}
	path := join(dir, name)
	known := s.tree.child(parent, name)
	if known == nil {
		return s.stat(ctx, c, path)
	}
	if err := known.queue.drain(ctx); err != nil {
		return facts{}, err
	}
	h, done := known.borrow()
	defer done()
	if h == nil {
		return s.stat(ctx, c, path)
	}
	for range 2 { // a file that grows between the two questions is the same
		type answer struct {
			f   facts
			err error
		}
		open := make(chan answer, 1)
		go func() {
			f, err := s.fstat(ctx, h)
			open <- answer{f, err}
		}()
		f, err := s.stat(ctx, c, path)
		if a := <-open; err != nil || a.err == nil && a.f.same(f) {
			return f, err
		}
	}
	f, err := s.stat(ctx, c, path)
	if err == nil {
		s.tree.removeNode(known)
	}
	return f, err
}

func (s *pathFS) stat(ctx context.Context, c *agentclient.Client, path string) (facts, error) {
	e, err := c.FS().Stat(ctx, path, false)
	if err != nil {
		return facts{}, err
	}
	return checked(check(e))
}

func (s *pathFS) fstat(ctx context.Context, h *handle) (facts, error) {
	file, err := s.remote(ctx, h)
	if err != nil {
		return facts{}, err
	}
	e, err := file.Stat(ctx)
	if err != nil {
		return facts{}, err
	}
	return checked(check(e))
}

// checked turns an errno into an error that is nil when it is 0.
func checked(f facts, errno syscall.Errno) (facts, error) {
	if errno != 0 {
		return f, errno
	}
	return f, nil
}

// Forget takes back lookups.
func (s *pathFS) Forget(id, lookups uint64) { s.tree.forget(id, lookups) }

// GetAttr returns attributes: of the open file when there is one, as its name
// may belong to another file by now.
func (s *pathFS) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	n, errno := s.tree.get(in.NodeId)
	if errno != 0 {
		return fuse.Status(errno)
	}
	if st := s.quiesce(cancel, &n.queue); !st.Ok() {
		return st
	}
	ctx, end := s.nameOp(cancel)
	defer end()
	var h *handle
	if in.Flags()&fuse.FUSE_GETATTR_FH != 0 {
		h, _ = s.handles.file(in.Fh())
	}
	f, err := s.attributes(ctx, n, h)
	if err != nil {
		return s.status(ctx, err)
	}
	s.fillAttr(out, n, f)
	return fuse.OK
}

// attributes asks the guest, by h, by any open handle, or by name.
func (s *pathFS) attributes(ctx context.Context, n *node, h *handle) (facts, error) {
	if err := n.queue.drain(ctx); err != nil {
		return facts{}, err
	}
	if h == nil {
		var done func()
		h, done = n.borrow()
		defer done()
	}
	var f facts
	var err error
	if h != nil {
		f, err = s.fstat(ctx, h)
	}
	if h == nil || err == syscall.ESTALE {
		f, err = s.statNode(ctx, n)
	}
	if err != nil {
		return facts{}, err
	}
	if f.kind() != n.kind {
		s.tree.removeNode(n)
		return facts{}, syscall.ESTALE
	}
	n.learn(f)
	return f, nil
}

func (s *pathFS) statNode(ctx context.Context, n *node) (facts, error) {
	c, err := s.link.get()
	if err != nil {
		return facts{}, err
	}
	unlock, err := s.sharePaths(ctx)
	if err != nil {
		return facts{}, err
	}
	defer unlock()
	path, errno := s.tree.path(n)
	if errno != 0 {
		return facts{}, errno
	}
	return s.stat(ctx, c, path)
}

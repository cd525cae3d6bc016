package fusefs

import (
	"context"
	"errors"
	"io"
	"sync"
	"syscall"

	"msb/agentclient"
	"msb/protocol/agent"
)

// handle is one open file of the kernel: a guest handle on the connection that
// opened it, opened again when that was lost and the file is still the same.
type handle struct {
	s     *pathFS
	id    uint64
	n     *node
	opts  agent.OpenOptions // how to open it again
	ahead readAhead

	borrowed sync.WaitGroup // users other than the descriptor's owner

	mu    sync.Mutex
	file  *agentclient.File
	lost  bool  // the file could not be opened again
	fault error // first write that could not be stored
}

// handles are the open files and listings by number.
type handles struct {
	mu       sync.RWMutex
	last     uint64
	files    map[uint64]*handle
	listings map[uint64]*listing
}

func newHandles() *handles {
	return &handles{files: map[uint64]*handle{}, listings: map[uint64]*listing{}}
}

func (t *handles) file(id uint64) (*handle, syscall.Errno) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if h := t.files[id]; h != nil {
		return h, 0
	}
	return nil, syscall.EBADF
}

func (t *handles) listing(id uint64) (*listing, syscall.Errno) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if l := t.listings[id]; l != nil {
		return l, 0
	}
	return nil, syscall.EBADF
}

// newHandle registers an open file of n.
func (s *pathFS) newHandle(n *node, file *agentclient.File, opts agent.OpenOptions) *handle {
	opts.Create, opts.CreateNew, opts.Truncate, opts.Mode = false, false, false, nil
	h := &handle{s: s, n: n, file: file, opts: opts}
	h.ahead.init(s.base, h)
	n.mu.Lock()
	if n.handles == nil {
		n.handles = map[*handle]struct{}{}
	}
	n.handles[h] = struct{}{}
	n.mu.Unlock()
	t := s.handles
	t.mu.Lock()
	t.last++
	h.id = t.last
	t.files[h.id] = h
	t.mu.Unlock()
	return h
}

// dropHandle forgets a file that is closed by the kernel and waits for those who
// borrowed it.
func (s *pathFS) dropHandle(h *handle) {
	s.handles.mu.Lock()
	delete(s.handles.files, h.id)
	s.handles.mu.Unlock()
	h.n.mu.Lock()
	delete(h.n.handles, h)
	h.n.mu.Unlock()
	h.ahead.close()
	h.borrowed.Wait()
}

// borrow returns an open file of n, if there is one, and what to call when done
// with it. It is not closed before.
func (n *node) borrow() (h *handle, done func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for h := range n.handles {
		h.borrowed.Add(1)
		return h, h.borrowed.Done
	}
	return nil, func() {}
}

// isOpen tells whether n has an open file.
func (n *node) isOpen() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.handles) > 0
}

// remote returns the guest handle of h on a living connection. After the
// connection was lost it opens the file again: by its name, so only when the
// guest still has the file that was last seen there. The protocol has no inode
// numbers; equal attributes stand for them.
func (s *pathFS) remote(ctx context.Context, h *handle) (*agentclient.File, error) {
	c, err := s.link.get()
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lost {
		return nil, syscall.ESTALE
	}
	if !ended(h.file.Client()) {
		return h.file, nil
	}
	path, errno := s.tree.path(h.n)
	want, _, ok := h.n.recall()
	if errno != 0 || !ok {
		h.lost = true
		return nil, syscall.ESTALE
	}
	file, err := c.FS().OpenFile(ctx, path, h.opts)
	if err != nil {
		return nil, err
	}
	e, err := file.Stat(ctx)
	if err != nil {
		file.Close(ctx)
		return nil, err
	}
	if f, errno := check(e); errno != 0 || !f.same(want) {
		h.lost = true
		file.Close(ctx)
		return nil, syscall.ESTALE
	}
	h.file = file
	return file, nil
}

// fail notes that data of h could not be stored. It is told by every later
// write, fsync and close of h.
func (h *handle) fail(err error) {
	h.mu.Lock()
	if h.fault == nil {
		h.fault = err
	}
	h.mu.Unlock()
}

func (h *handle) failure() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.fault
}

// readAt reads from the guest.
func (h *handle) readAt(ctx context.Context, buf []byte, off int64) (int, error) {
	file, err := h.s.remote(ctx, h)
	if err != nil {
		return 0, err
	}
	if err := h.s.bulk.Acquire(ctx, 1); err != nil {
		return 0, err
	}
	defer h.s.bulk.Release(1)
	n, err := file.ReadAt(ctx, buf, off)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	return n, nil
}

func (h *handle) knownSize() (int64, bool) {
	f, _, ok := h.n.recall()
	return int64(f.size), ok
}

// writeAt stores a small piece of data.
func (h *handle) writeAt(ctx context.Context, p []byte, off int64) error {
	file, err := h.s.remote(ctx, h)
	if err != nil {
		return err
	}
	n, err := file.WriteAt(ctx, p, off)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	return err
}

// upload stores a stream of data.
func (h *handle) upload(ctx context.Context, r io.Reader, off int64) error {
	file, err := h.s.remote(ctx, h)
	if err != nil {
		return err
	}
	_, err = file.Upload(ctx, r, off)
	return err
}

func (h *handle) whole() bool { return false }

func (h *handle) stored() { h.s.changed(h.n) }

func (h *handle) dropped() { h.s.forgetPages(h.n.id) }

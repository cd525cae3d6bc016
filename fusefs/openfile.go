package fusefs

import (
	"context"
	"errors"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"msb/protocol/agent"
)

const (
	// smallFile is up to which size a file is read with its open, in bytes.
	smallFile = 60 << 10
	// inlineData is up to which size data travels without raw bulk.
	inlineData = 32 << 10
)

// openFile is one open file of the kernel. The guest's handle is opened with it
// or when it is needed first: a small file that was read whole on the way, or
// one that the kernel still has the pages of, mostly needs none.
type openFile struct {
	s     *nodeFS
	id    uint64
	n     *inode
	flags uint32 // to open it again
	small small
	ahead readAhead

	mu     sync.Mutex
	ref    agent.NodeRef // 0: not open in the guest
	epoch  uint64
	lost   bool  // cannot be opened again
	locked bool  // holds or held locks, which end with the guest's handle
	kill   bool  // writes take set-id bits away
	fault  error // first write that could not be stored
	users  int   // of ref; it is not closed before they are done
	wrote  bool  // data went through ref
}

// small is a whole file that was read when it was opened.
type small struct {
	mu   sync.Mutex
	data []byte
	at   time.Time // zero: none
}

func (c *small) put(data []byte, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.data, c.at = data, at
}

func (c *small) drop() { c.put(nil, time.Time{}) }

// get returns the data from an offset on.
func (c *small) get(off int64, n int, ttl time.Duration) ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at.IsZero() || time.Since(c.at) > ttl {
		return nil, false
	}
	if off >= int64(len(c.data)) {
		return nil, true
	}
	rest := c.data[off:]
	return rest[:min(len(rest), n)], true
}

// guestFlags translates the flags of open(2). Flags for synchronous and direct
// I/O are the kernel's business: it sends fsync, and passes its cache by.
func guestFlags(flags uint32) uint32 {
	wire := flags & syscall.O_ACCMODE
	if flags&syscall.O_APPEND != 0 && wire != agent.NodeReadOnly {
		wire |= agent.NodeAppend
	}
	if flags&syscall.O_TRUNC != 0 {
		wire |= agent.NodeTruncate
	}
	return wire
}

// strict tells whether nothing may be cached.
func (s *nodeFS) strict() bool { return s.opts.AttrTimeout == 0 }

// openFlags tells the kernel how to treat the open file. A file open for
// appending bypasses its cache: only the guest knows where the end is when
// others append too.
func (s *nodeFS) openFlags(f *openFile) uint32 {
	if f.flags&agent.NodeAppend != 0 || s.strict() {
		return fuse.FOPEN_DIRECT_IO
	}
	return 0
}

// newOpen registers an open file that the guest has not opened yet.
func (s *nodeFS) newOpen(n *inode, flags uint32) *openFile {
	f := &openFile{s: s, n: n, flags: flags &^ (agent.NodeTruncate | agent.NodeExclusive)}
	f.ahead.init(s.base, f)
	n.mu.Lock()
	if n.opens == nil {
		n.opens = map[*openFile]struct{}{}
	}
	n.opens[f] = struct{}{}
	n.mu.Unlock()
	f.id = s.opens.addFile(f)
	return f
}

// remote returns the guest's handle of f, opening it when there is none in this
// session. The caller calls done when there is no error.
func (f *openFile) remote(ctx context.Context) (conn, agent.NodeRef, error) {
	c, err := f.s.conn()
	if err != nil {
		return c, 0, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.lost:
		return c, 0, syscall.ESTALE
	case f.ref != 0 && f.epoch == c.epoch:
		f.users++
		return c, f.ref, nil
	case f.ref != 0 && f.locked:
		f.lost = true // somebody else may have had the lock meanwhile
		return c, 0, syscall.ESTALE
	}
	p := &plan{s: f.s, c: c}
	node, err := p.sure(ctx, f.n)
	if err == nil {
		i := p.add(&agent.NodeOpen{Node: node, Flags: f.flags})
		var results []agent.NodeResult
		if results, err = p.run(ctx, nil); err == nil {
			f.ref, f.epoch = results[i].(*agent.NodeHandleResult).Handle, c.epoch
			f.users++
			return c, f.ref, nil
		}
	}
	if errors.Is(err, syscall.ESTALE) {
		f.lost = true
	}
	return c, 0, err
}

// done ends a use of the guest's handle.
func (f *openFile) done() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.users--
}

// detach takes the guest's handle away to be closed, when nobody needs just this
// one: it is opened again if more is to be done. A program in the guest can then
// run what has been written and closed here at once.
func (f *openFile) detach(epoch uint64) agent.NodeRef {
	a, _, known := f.n.recall()
	parent, _ := f.s.inodes.where(f.n)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ref == 0 || f.epoch != epoch || f.users > 0 || f.locked || f.lost || parent == nil || known && a.Nlink == 0 {
		return 0
	}
	ref := f.ref
	f.ref, f.wrote = 0, false
	return ref
}

// usable returns the guest's handle if it is open in a session.
func (f *openFile) usable(epoch uint64) agent.NodeRef {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lost || f.epoch != epoch {
		return 0
	}
	return f.ref
}

// hold makes sure that the open files of n stay readable when its last name
// goes away.
func (s *nodeFS) hold(ctx context.Context, n *inode) error {
	for _, f := range n.opened() {
		if _, _, err := f.remote(ctx); err == nil {
			f.done()
		} else if !errors.Is(err, syscall.ESTALE) {
			return err
		}
	}
	return nil
}

// readAt reads from the guest.
func (f *openFile) readAt(ctx context.Context, buf []byte, off int64) (int, error) {
	c, ref, err := f.remote(ctx)
	if err != nil {
		return 0, err
	}
	defer f.done()
	if len(buf) >= inlineData {
		if err := f.s.bulk.Acquire(ctx, 1); err != nil {
			return 0, err
		}
		defer f.s.bulk.Release(1)
	}
	n, err := c.ReadAt(ctx, ref, buf, off)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	return n, nil
}

func (f *openFile) knownSize() (int64, bool) {
	a, _, ok := f.n.recall()
	return int64(a.Size), ok
}

// writeAt stores a small piece of data.
func (f *openFile) writeAt(ctx context.Context, p []byte, off int64) error {
	c, ref, err := f.remote(ctx)
	if err != nil {
		return err
	}
	defer f.done()
	f.writes()
	_, err = c.WriteAt(ctx, ref, p, off, f.writeFlags())
	return err
}

// whole: a direct connection takes the largest piece at once.
func (f *openFile) whole() bool {
	c, err := f.s.conn()
	return err == nil && c.Direct()
}

// upload stores a stream of data.
func (f *openFile) upload(ctx context.Context, r io.Reader, off int64) error {
	c, ref, err := f.remote(ctx)
	if err != nil {
		return err
	}
	defer f.done()
	f.writes()
	_, err = c.Upload(ctx, ref, r, off, f.writeFlags())
	return err
}

func (f *openFile) writes() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wrote = true
}

func (f *openFile) killPriv() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kill = true
}

func (f *openFile) writeFlags() uint32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.kill {
		return agent.NodeKillPriv
	}
	return 0
}

// fail notes that data could not be stored. It is told by every later write,
// fsync and close.
func (f *openFile) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fault == nil {
		f.fault = err
	}
}

func (f *openFile) failure() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fault
}

func (f *openFile) stored() { f.n.changed() }

func (f *openFile) dropped() { f.s.forgetPages(f.n.id) }

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

// Open opens an existing file. One that is only read is opened, read whole if it
// is small, and closed again in one round trip.
func (s *nodeFS) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	flags := guestFlags(in.Flags)
	writes := flags&(syscall.O_ACCMODE|agent.NodeTruncate) != 0
	if s.opts.ReadOnly && writes {
		return fuse.EROFS
	}
	n, errno := s.inodes.get(in.NodeId)
	if errno != 0 {
		return fuse.Status(errno)
	}
	if st := s.quiesce(cancel, &n.queue); !st.Ok() {
		return st
	}
	ctx, end := s.nameOp(cancel)
	defer end()
	var f *openFile
	var keep bool
	var err error
	if writes {
		f, keep, err = s.openWrite(ctx, n, flags, in)
	} else {
		f, keep, err = s.openRead(ctx, n, flags)
	}
	if err != nil {
		return s.status(ctx, err)
	}
	out.Fh = f.id
	out.OpenFlags = s.openFlags(f)
	if keep && out.OpenFlags == 0 {
		out.OpenFlags = fuse.FOPEN_KEEP_CACHE
	}
	return fuse.OK
}

func (s *nodeFS) openRead(ctx context.Context, n *inode, flags uint32) (f *openFile, keep bool, err error) {
	version := n.versionNow()
	n.mu.Lock()
	size, known := n.attr.Size, !n.at.IsZero() && !n.wrote
	warm := known && n.fill.likely()
	asked := n.at
	n.mu.Unlock()
	trusted := warm && (s.opts.Alone && time.Since(asked) < s.opts.AttrTimeout || s.watch.covers(n, asked) && time.Since(asked) < s.opts.WatchTimeout)
	if trusted {
		return s.newOpen(n, flags), true, nil
	}
	p, err := s.plan()
	if err != nil {
		return nil, false, err
	}
	node, err := p.named(ctx, n)
	if err != nil {
		return nil, false, err
	}
	whole := known && size <= smallFile && !warm && !s.strict()
	var h, r agent.NodeRef
	if !warm || s.strict() {
		open := flags
		if whole {
			open |= agent.NodeNoAtime // nobody has read it yet
		}
		h = p.add(&agent.NodeOpen{Node: node, Flags: open})
	}
	if whole {
		r = p.add(&agent.NodeRead{Handle: h, Len: uint32(size) + 1})
		p.add(&agent.NodeClose{Handle: h})
	}
	i := p.add(&agent.NodeGetAttr{Target: node})
	at := time.Now()
	results, err := p.run(ctx, nil)
	if err != nil {
		p.giveBack(results)
		return nil, false, err
	}
	a := results[i].(*agent.NodeAttrResult).Attr
	if errno := n.accept(&a); errno != 0 {
		p.giveBack(results)
		return nil, false, errno
	}
	f = s.newOpen(n, flags)
	if (!warm || s.strict()) && !whole {
		f.ref, f.epoch = results[h].(*agent.NodeHandleResult).Handle, p.c.epoch
	}
	keep = s.observe(n, &a, version)
	if whole && n.versionNow() == version {
		if data := results[r].(*agent.NodeBytesResult).Data; uint64(len(data)) == a.Size && len(data) <= int(size) {
			f.small.put(data, at)
		}
	}
	return f, keep, nil
}

func (s *nodeFS) openWrite(ctx context.Context, n *inode, flags uint32, in *fuse.OpenIn) (f *openFile, keep bool, err error) {
	version := n.versionNow()
	p, err := s.plan()
	if err != nil {
		return nil, false, err
	}
	truncates := flags&agent.NodeTruncate != 0
	if truncates && s.opts.AllowOther {
		// Who may write was checked for the file that the kernel knows: make
		// sure that it is this one before anything happens to it.
		q := &plan{s: s, c: p.c}
		if _, err := q.named(ctx, n); err != nil {
			return nil, false, err
		}
		if _, err := q.run(ctx, nil); err != nil {
			return nil, false, err
		}
	}
	node, err := p.named(ctx, n)
	if err != nil {
		return nil, false, err
	}
	h := p.add(&agent.NodeOpen{Node: node, Flags: flags})
	if truncates && in.Mode&fuse.OPEN_KILL_SUIDGID != 0 {
		if mode, drop := n.withoutSetID(s.ids.gid.guest(in.Gid)); drop {
			p.add(&agent.NodeSetAttr{Target: node, Valid: agent.NodeSetMode, Mode: mode})
		}
	}
	i := p.add(&agent.NodeGetAttr{Target: node})
	results, err := p.run(ctx, nil)
	if err != nil {
		p.giveBack(results)
		return nil, false, err
	}
	a := results[i].(*agent.NodeAttrResult).Attr
	if errno := n.accept(&a); errno != 0 {
		p.giveBack(results)
		return nil, false, errno
	}
	f = s.newOpen(n, flags)
	f.ref, f.epoch = results[h].(*agent.NodeHandleResult).Handle, p.c.epoch
	if truncates {
		n.changed()
		n.learn(&a)
		return f, false, nil
	}
	return f, s.observe(n, &a, version), nil
}

// observe takes attributes that came with an open. The kernel learns that its
// own are old, and whether it may keep its pages is returned.
func (s *nodeFS) observe(n *inode, a *agent.NodeAttr, version uint64) (keep bool) {
	n.mu.Lock()
	if n.version != version {
		n.mu.Unlock()
		return false
	}
	old := n.attr
	moved := !n.at.IsZero() && stampOf(&old) != stampOf(a) || n.wrote
	keep = n.fill.keep(a, time.Now())
	n.learnLocked(a, time.Now())
	n.mu.Unlock()
	if moved {
		s.forgetAttr(n.id)
	}
	return keep
}

// withoutSetID returns the mode that is left when somebody of a group of the
// guest changes the file and set-id bits go, and whether there are any. Other
// groups of his are not known here.
func (n *inode) withoutSetID(gid uint32) (uint32, bool) {
	a, _, _ := n.recall()
	mode := a.Mode & 0o7777
	kept := mode &^ syscall.S_ISUID
	if mode&0o010 != 0 || gid != a.GID {
		kept &^= syscall.S_ISGID
	}
	return kept, kept != mode
}

// dropSetID takes set-id bits away that the guest's own rule for writes, which
// knows no groups, would leave.
func (s *nodeFS) dropSetID(ctx context.Context, n *inode, gid uint32) error {
	mode, drop := n.withoutSetID(gid)
	if !drop {
		return nil
	}
	p, err := s.plan()
	if err != nil {
		return err
	}
	ref, err := p.sure(ctx, n)
	if err != nil {
		return err
	}
	i := p.add(&agent.NodeSetAttr{Target: ref, Valid: agent.NodeSetMode, Mode: mode})
	results, err := p.run(ctx, nil)
	if err != nil {
		return err
	}
	a := results[i].(*agent.NodeAttrResult).Attr
	if errno := n.accept(&a); errno != 0 {
		return errno
	}
	n.learn(&a)
	s.spawn(func() { s.forgetAttr(n.id) })
	return nil
}

// Release closes the file. Nobody waits for it, so errors were for Flush.
func (s *nodeFS) Release(_ <-chan struct{}, in *fuse.ReleaseIn) {
	f, errno := s.opens.file(in.Fh)
	if errno != 0 {
		return
	}
	ctx, end := s.dataOp(nil)
	defer end()
	if err := f.n.queue.drain(ctx); err != nil {
		s.log.Warn("a file was closed before its data was stored", "error", err)
	}
	s.opens.dropFile(in.Fh)
	f.n.mu.Lock()
	delete(f.n.opens, f)
	f.n.mu.Unlock()
	f.ahead.close()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ref != 0 && (f.locked || f.wrote) {
		s.farewell.closeNow(f.ref, f.epoch)
	} else if f.ref != 0 {
		s.farewell.close(f.ref, f.epoch)
	}
	f.ref, f.lost = 0, true
}

// Read reads from an open file.
func (s *nodeFS) Read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	f, errno := s.opens.file(in.Fh)
	if errno != 0 {
		return nil, fuse.Status(errno)
	}
	if len(buf) > int(in.Size) {
		buf = buf[:in.Size]
	}
	if f.n.queue.idle() {
		if data, ok := f.small.get(int64(in.Offset), len(buf), s.aheadTTL()); ok {
			return fuse.ReadResultData(data), fuse.OK
		}
	}
	ctx, end := s.dataOp(cancel)
	defer end()
	if err := f.n.queue.drain(ctx); err != nil {
		return nil, s.status(ctx, err)
	}
	res, err := f.ahead.read(ctx, int64(in.Offset), buf)
	if err != nil {
		return nil, s.status(ctx, err)
	}
	return res, fuse.OK
}

// Write takes data for an open file. Appended data goes to the guest at once, to
// be placed at the end that it has there; other data is queued.
func (s *nodeFS) Write(cancel <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	f, errno := s.opens.file(in.Fh)
	if errno != 0 {
		return 0, fuse.Status(errno)
	}
	ctx, end := s.dataOp(cancel)
	defer end()
	if err := f.failure(); err != nil {
		return 0, s.status(ctx, err)
	}
	if !s.link.up() {
		return 0, fuse.Status(syscall.ENOTCONN)
	}
	kills := in.WriteFlags&fuse.WRITE_KILL_SUIDGID != 0
	if kills {
		f.killPriv()
		if err := s.dropSetID(ctx, f.n, s.ids.gid.guest(in.Gid)); err != nil {
			return 0, s.status(ctx, err)
		}
	}
	defer f.n.changed()
	if in.WriteFlags&fuse.WRITE_CACHE != 0 {
		defer s.forgetAttr(f.n.id) // a mapping's pages: the kernel does not move the times itself
	}
	if f.flags&agent.NodeAppend == 0 && !s.strict() {
		if err := s.enqueue(ctx, &f.n.queue, f, int64(in.Offset), data); err != nil {
			return 0, s.status(ctx, err)
		}
		return uint32(len(data)), fuse.OK
	}
	if err := f.n.queue.drain(ctx); err != nil {
		return 0, s.status(ctx, err)
	}
	if err := f.writeAt(ctx, data, int64(in.Offset)); err != nil {
		return 0, s.status(ctx, err)
	}
	return uint32(len(data)), fuse.OK
}

// Writev is Write for data in several parts, which a kernel mount never has.
func (s *nodeFS) Writev(<-chan struct{}, *fuse.WriteIn, [][]byte) (uint32, fuse.Status) {
	return 0, fuse.ENOSYS
}

// Flush is called at each close(2). The guest is asked only when there is
// something for it: data, locks to drop, or a handle that was written to.
func (s *nodeFS) Flush(cancel <-chan struct{}, in *fuse.FlushIn) fuse.Status {
	f, errno := s.opens.file(in.Fh)
	if errno != 0 {
		return fuse.Status(errno)
	}
	f.n.mu.Lock()
	locked := f.n.locked
	f.n.mu.Unlock()
	f.mu.Lock()
	wrote := f.wrote
	f.mu.Unlock()
	if f.n.queue.idle() && !locked && !wrote {
		if err := f.failure(); err != nil {
			return fuse.Status(s.errno(s.ctx, err))
		}
		return fuse.OK
	}
	ctx, end := s.dataOp(cancel)
	defer end()
	_, err := s.deliver(ctx, f.n, nil)
	if locked {
		if c, ref, rerr := f.remote(ctx); rerr == nil {
			if _, ferr := s.do(ctx, c, &agent.NodeFlush{Handle: ref, Owner: in.LockOwner}); err == nil {
				err = ferr
			}
			f.done()
		}
	}
	f.mu.Lock()
	wrote = f.wrote
	f.mu.Unlock()
	if wrote {
		if cerr := s.closeWritten(ctx, f); err == nil {
			err = cerr
		}
	}
	if err == nil {
		err = f.failure()
	}
	return s.status(ctx, err)
}

// closeWritten closes the guest's handle of a file that was written to.
func (s *nodeFS) closeWritten(ctx context.Context, f *openFile) error {
	c, err := s.conn()
	if err != nil {
		return err
	}
	ref := f.detach(c.epoch)
	if ref == 0 {
		return nil
	}
	_, err = s.do(ctx, c, &agent.NodeClose{Handle: ref})
	return err
}

// deliver sees that the guest has all data of n. A small piece that waits goes in
// one request with then, if that is not nil, and with the close of its handle.
// It returns the answer to then, nil when that is still to be sent.
func (s *nodeFS) deliver(ctx context.Context, n *inode, then *agent.NodeSetAttr) (*agent.NodeAttrResult, error) {
	p := n.queue.steal()
	if p == nil {
		return nil, n.queue.drain(ctx)
	}
	answer, stored, err := s.sendStolen(ctx, p, then)
	s.finish(&n.queue, p, stored)
	if err != nil || answer != nil {
		return answer, err
	}
	return nil, n.queue.drain(ctx)
}

// sendStolen sends a piece of data and what goes with it. stored tells whether
// the data has arrived, err whether then failed.
func (s *nodeFS) sendStolen(ctx context.Context, p *piece, then *agent.NodeSetAttr) (answer *agent.NodeAttrResult, stored, err error) {
	f := p.to.(*openFile)
	if err := f.failure(); err != nil {
		return nil, err, nil
	}
	c, err := s.conn()
	if err != nil {
		return nil, err, nil
	}
	ref := f.usable(c.epoch)
	if ref == 0 {
		return nil, f.writeAt(ctx, p.buf, p.off), nil
	}
	ops := []agent.NodeOp{&agent.NodeWrite{Handle: ref, Offset: uint64(p.off), Data: p.buf, Flags: f.writeFlags()}}
	if then != nil {
		ops = append(ops, then)
	}
	closing := f.detach(c.epoch)
	if closing != 0 {
		ops = append(ops, &agent.NodeClose{Handle: closing})
	}
	results, err := s.do(ctx, c, ops...)
	if closing != 0 && len(results) < len(ops)-1 {
		s.farewell.close(closing, c.epoch)
	}
	switch {
	case err != nil && (len(results) == 0 || len(results) == len(ops)-1 && closing != 0):
		return nil, err, nil // the write, or the close with what it had not told
	case then != nil && len(results) > 1:
		return results[1].(*agent.NodeAttrResult), nil, nil
	}
	return nil, nil, err
}

// Fsync returns when the file is on the guest's disk.
func (s *nodeFS) Fsync(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	f, errno := s.opens.file(in.Fh)
	if errno != 0 {
		return fuse.Status(errno)
	}
	ctx, end := s.dataOp(cancel)
	defer end()
	if err := f.n.queue.drain(ctx); err != nil {
		return s.status(ctx, err)
	}
	if err := f.failure(); err != nil {
		return s.status(ctx, err)
	}
	c, ref, err := f.remote(ctx)
	if err == nil {
		defer f.done()
		_, err = s.do(ctx, c, &agent.NodeSync{Target: ref, DataOnly: in.FsyncFlags&1 != 0})
	}
	return s.status(ctx, err)
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

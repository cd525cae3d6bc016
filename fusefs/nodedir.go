package fusefs

import (
	"context"
	"math"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"msb/protocol/agent"
)

// listingStep is how much of a directory is asked for after the first answer.
const listingStep = 256 << 10

// openDir is one open directory. An offset is the guest's own, so it stands for
// the same place however entries come and go; . and .. are ours.
type openDir struct {
	s *nodeFS
	n *inode

	mu     sync.Mutex
	ref    agent.NodeRef
	epoch  uint64
	begun  bool
	read   int // entries that were taken from the guest since the beginning
	now    *batch
	coming *batch // being fetched: what follows now
}

// batch is one answer of the guest.
type batch struct {
	from    uint64 // the guest's offset
	done    chan struct{}
	at      time.Time
	entries []agent.NodeDirEntry
	err     error
}

// The offsets that the kernel sees are the guest's, except that 1 and 2 are what
// follows . and ..: the guest's own 1 and 2 trade places with two numbers that
// no file system uses.
const (
	afterDot    = 1
	afterDotDot = 2
	spare       = math.MaxInt64 - 2
)

func cookie(offset uint64) uint64 {
	switch offset {
	case 1, 2:
		return spare - offset
	case spare - 1, spare - 2:
		return spare - offset
	}
	return offset
}

// OpenDir opens a directory and asks for its first entries on the way.
func (s *nodeFS) OpenDir(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	n, errno := s.inodes.get(in.NodeId)
	if errno != 0 {
		return fuse.Status(errno)
	}
	ctx, end := s.nameOp(cancel)
	defer end()
	d := &openDir{s: s, n: n}
	if err := d.open(ctx, 0, listingBytes); err != nil {
		return s.status(ctx, err)
	}
	out.Fh = s.opens.addDir(d)
	return fuse.OK
}

// open opens the directory in the guest and reads from an offset.
func (d *openDir) open(ctx context.Context, offset uint64, size uint32) error {
	p, err := d.s.plan()
	if err != nil {
		return err
	}
	ref, err := p.named(ctx, d.n)
	if err != nil {
		return err
	}
	at := time.Now()
	h := p.add(&agent.NodeOpen{Node: ref, Flags: agent.NodeDirectory})
	i := p.add(&agent.NodeReadDir{Handle: h, Offset: offset, Size: size, Flags: agent.NodeDirAttr})
	results, err := p.run(ctx, nil)
	if err != nil {
		if int(h) < len(results) {
			d.s.farewell.close(results[h].(*agent.NodeHandleResult).Handle, p.c.epoch)
		}
		return err
	}
	d.ref, d.epoch = results[h].(*agent.NodeHandleResult).Handle, p.c.epoch
	d.now = &batch{from: offset, at: at, entries: results[i].(*agent.NodeListResult).Entries, done: make(chan struct{})}
	close(d.now.done)
	d.read = len(d.now.entries)
	d.follow()
	return nil
}

// follow begins to fetch what comes after the batch at hand.
func (d *openDir) follow() {
	d.coming = nil
	n := len(d.now.entries)
	if n == 0 {
		return
	}
	d.coming = d.fetch(d.now.entries[n-1].Offset)
}

func (d *openDir) fetch(offset uint64) *batch {
	b := &batch{from: offset, done: make(chan struct{}), at: time.Now()}
	ref, epoch := d.ref, d.epoch
	read := func() {
		defer close(b.done)
		c, err := d.s.conn()
		if err == nil && c.epoch != epoch {
			err = errLostHandle
		}
		if err != nil {
			b.err = err
			return
		}
		ctx, stop := context.WithTimeout(d.s.ctx, d.s.opts.NameTimeout)
		defer stop()
		results, err := d.s.do(ctx, c, &agent.NodeReadDir{Handle: ref, Offset: offset, Size: listingStep, Flags: agent.NodeDirAttr})
		if err != nil {
			b.err = err
			return
		}
		b.entries = results[0].(*agent.NodeListResult).Entries
	}
	if !d.s.spawn(read) {
		b.err = syscall.ENOTCONN
		close(b.done)
	}
	return b
}

// seek makes d.now begin at or contain the guest's offset and returns the place
// in it. An empty batch is the end.
func (d *openDir) seek(ctx context.Context, offset uint64) (int, error) {
	for range 3 {
		if d.now != nil {
			if offset == d.now.from && (offset != 0 || !d.begun) {
				return 0, nil
			}
			if i := d.now.find(offset); i >= 0 && offset != 0 {
				if i < len(d.now.entries) {
					return i, nil
				}
				b := d.coming
				if b == nil || b.from != offset {
					b = d.fetch(offset)
				}
				if err := d.take(ctx, b); err != nil && err != errLostHandle {
					return 0, err
				} else if err == nil {
					return 0, nil
				}
			}
		}
		var err error
		if d.lost() {
			err = d.open(ctx, offset, listingStep)
		} else {
			d.read = 0
			err = d.take(ctx, d.fetch(offset))
		}
		if err == nil {
			return 0, nil
		}
		if err != errLostHandle {
			return 0, err
		}
		d.ref = 0
	}
	return 0, syscall.EIO
}

func (d *openDir) lost() bool { return d.ref == 0 || d.epoch != d.s.epoch() }

// take waits for a batch and makes it the one at hand.
func (d *openDir) take(ctx context.Context, b *batch) error {
	select {
	case <-b.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	if b.err != nil {
		d.coming = nil
		return b.err
	}
	d.read += len(b.entries)
	stuck := len(b.entries) > 0 && b.entries[len(b.entries)-1].Offset == b.from
	if d.read > maxEntries || stuck {
		d.s.log.Warn("a directory of the guest has no end", "inode", d.n.ino)
		return syscall.EIO
	}
	d.now = b
	d.follow()
	return nil
}

// find returns the index of the entry after the offset, -1 when it is not here.
func (b *batch) find(offset uint64) int {
	for i := len(b.entries) - 1; i >= 0; i-- {
		if b.entries[i].Offset == offset {
			return i + 1
		}
	}
	return -1
}

// ReadDir lists names.
func (s *nodeFS) ReadDir(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return s.readDir(cancel, in, func(e fuse.DirEntry, _ *agent.NodeDirEntry, _ *openDir) bool {
		return out.AddDirEntry(e)
	})
}

// ReadDirPlus lists names with what a lookup of each would answer.
func (s *nodeFS) ReadDirPlus(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return s.readDir(cancel, in, func(e fuse.DirEntry, d *agent.NodeDirEntry, o *openDir) bool {
		slot := out.AddDirLookupEntry(e)
		if slot == nil {
			return false
		}
		if d != nil && d.Attr.Ino != 0 && checkAttr(&d.Attr) == 0 {
			age := time.Since(o.now.at)
			if age < s.opts.AttrTimeout && o.n.names.steady(e.Name, o.now.at) && s.inodes.unchanged(&d.Attr, o.n, e.Name, o.now.at) {
				n, _ := s.inodes.place(o.n, e.Name, &d.Attr, 0, 0)
				n.learnListed(&d.Attr, o.now.at)
				s.fillEntry(slot, o.n, n, &d.Attr, o.now.at)
			}
		}
		return true
	})
}

// learnListed is learn for attributes of a listing that was asked for at a time.
func (n *inode) learnListed(a *agent.NodeAttr, at time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.changedAt.Before(at) && n.at.Before(at) {
		n.learnLocked(a, at)
	}
}

func (s *nodeFS) readDir(cancel <-chan struct{}, in *fuse.ReadIn, add func(fuse.DirEntry, *agent.NodeDirEntry, *openDir) bool) fuse.Status {
	d, errno := s.opens.dir(in.Fh)
	if errno != 0 {
		return fuse.Status(errno)
	}
	ctx, end := s.nameOp(cancel)
	defer end()
	d.mu.Lock()
	defer d.mu.Unlock()
	offset := in.Offset
	if offset == 0 {
		if !add(fuse.DirEntry{Name: ".", Mode: syscall.S_IFDIR, Ino: d.n.ino, Off: afterDot}, nil, d) {
			return fuse.OK
		}
		offset = afterDot
	}
	if offset == afterDot {
		if !add(fuse.DirEntry{Name: "..", Mode: syscall.S_IFDIR, Off: afterDotDot}, nil, d) {
			return fuse.OK
		}
		offset = afterDotDot
	}
	var at uint64 // the guest's
	if offset != afterDotDot {
		at = cookie(offset)
	}
	i, err := d.seek(ctx, at)
	if err != nil {
		return s.status(ctx, err)
	}
	d.begun = true
	added := false
	for {
		if i == len(d.now.entries) {
			if i == 0 || added && !d.ready() {
				return fuse.OK // the end, or give what there is before waiting
			}
			if i, err = d.seek(ctx, d.now.entries[i-1].Offset); err != nil {
				if added {
					return fuse.OK // the next call will tell
				}
				return s.status(ctx, err)
			}
			continue
		}
		e := &d.now.entries[i]
		i++
		name := string(e.Name)
		if !validName(name) {
			s.log.Warn("the guest listed an impossible name", "name", name)
			continue
		}
		if e.Type == syscall.S_IFLNK && s.opts.Symlinks == Hide {
			continue
		}
		if !add(fuse.DirEntry{Name: name, Mode: e.Type, Ino: e.Ino, Off: cookie(e.Offset)}, e, d) {
			return fuse.OK
		}
		added = true
	}
}

// ready tells whether what follows has arrived.
func (d *openDir) ready() bool {
	if d.coming == nil {
		return true
	}
	select {
	case <-d.coming.done:
		return true
	default:
		return false
	}
}

// ReleaseDir closes a directory.
func (s *nodeFS) ReleaseDir(in *fuse.ReleaseIn) {
	d := s.opens.dropDir(in.Fh)
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ref != 0 {
		s.farewell.close(d.ref, d.epoch)
	}
}

// FsyncDir returns when a directory is on the guest's disk.
func (s *nodeFS) FsyncDir(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	n, errno := s.inodes.get(in.NodeId)
	if errno != 0 {
		return fuse.Status(errno)
	}
	ctx, end := s.dataOp(cancel)
	defer end()
	return s.status(ctx, s.syncNode(ctx, n, in.FsyncFlags&1 != 0))
}

func (s *nodeFS) syncNode(ctx context.Context, n *inode, dataOnly bool) error {
	p, err := s.plan()
	if err != nil {
		return err
	}
	ref, err := p.sure(ctx, n)
	if err != nil {
		return err
	}
	p.add(&agent.NodeSync{Target: ref, DataOnly: dataOnly})
	_, err = p.run(ctx, nil)
	return err
}

package fusefs

import (
	"context"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"msb/agentclient"
	"msb/protocol/agent"
)

// batchBytes is what one answer of the guest may be long, below the protocol's
// frame limit.
const batchBytes = 3 << 20

// maxEntries bounds one listing: a directory in the guest may never end.
var maxEntries = 1 << 21

// listing is one open directory. It keeps what was read, so that an offset
// always stands for the same entry, and fetches more when the reader gets there.
type listing struct {
	n *node

	mu      sync.Mutex
	dir     *agentclient.Dir
	path    string
	begun   bool
	end     bool
	fault   error
	entries []dirEntry
	index   map[string]int // where a name is; a second one is dropped

	staleMu sync.Mutex
	stale   map[string]struct{} // names that changed here since they were fetched
}

type dirEntry struct {
	name string
	f    facts
	good bool // f can be trusted
	at   time.Time
}

// outdated notes that an entry that was fetched may be wrong by now.
func (l *listing) outdated(name string) {
	l.staleMu.Lock()
	defer l.staleMu.Unlock()
	if l.stale == nil {
		l.stale = map[string]struct{}{}
	}
	l.stale[name] = struct{}{}
}

func (l *listing) isOutdated(name string) bool {
	l.staleMu.Lock()
	defer l.staleMu.Unlock()
	_, ok := l.stale[name]
	return ok
}

// OpenDir opens a directory.
func (s *pathFS) OpenDir(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	n, errno := s.tree.get(in.NodeId)
	if errno != 0 {
		return fuse.Status(errno)
	}
	ctx, end := s.nameOp(cancel)
	defer end()
	l := &listing{n: n}
	if err := s.openListing(ctx, l); err != nil {
		return s.status(ctx, err)
	}
	n.mu.Lock()
	if n.listings == nil {
		n.listings = map[*listing]struct{}{}
	}
	n.listings[l] = struct{}{}
	n.mu.Unlock()
	t := s.handles
	t.mu.Lock()
	t.last++
	out.Fh = t.last
	t.listings[t.last] = l
	t.mu.Unlock()
	return fuse.OK
}

func (s *pathFS) openListing(ctx context.Context, l *listing) error {
	c, err := s.link.get()
	if err != nil {
		return err
	}
	unlock, err := s.sharePaths(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	path, errno := s.tree.path(l.n)
	if errno != 0 {
		return errno
	}
	dir, err := c.FS().OpenDir(ctx, path)
	if err != nil {
		return err
	}
	l.dir, l.path = dir, path
	l.begun, l.end, l.fault = false, false, nil
	l.entries, l.index = nil, map[string]int{}
	l.staleMu.Lock()
	l.stale = nil
	l.staleMu.Unlock()
	return nil
}

// ReleaseDir closes a directory.
func (s *pathFS) ReleaseDir(in *fuse.ReleaseIn) {
	l, errno := s.handles.listing(in.Fh)
	if errno != 0 {
		return
	}
	s.handles.mu.Lock()
	delete(s.handles.listings, in.Fh)
	s.handles.mu.Unlock()
	l.n.mu.Lock()
	delete(l.n.listings, l)
	l.n.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	ctx, end := s.nameOp(nil)
	defer end()
	l.closeRemote(ctx)
}

func (l *listing) closeRemote(ctx context.Context) {
	if l.dir != nil {
		l.dir.Close(ctx)
		l.dir = nil
	}
}

// ReadDir lists names.
func (s *pathFS) ReadDir(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return s.readDir(cancel, in, func(e fuse.DirEntry, _ *dirEntry, _ *listing) bool {
		return out.AddDirEntry(e)
	})
}

// ReadDirPlus lists names with what a lookup of each would answer.
func (s *pathFS) ReadDirPlus(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return s.readDir(cancel, in, func(e fuse.DirEntry, d *dirEntry, l *listing) bool {
		slot := out.AddDirLookupEntry(e)
		if slot == nil {
			return false
		}
		if d != nil && s.presentable(d, l) {
			n := s.tree.place(l.n, d.name, d.f.kind())
			n.learn(d.f)
			s.fillEntry(slot, n, d.f)
		}
		return true
	})
}

// presentable tells whether the attributes that came with an entry are still
// good. If not, the kernel asks when it needs them.
func (s *pathFS) presentable(d *dirEntry, l *listing) bool {
	if !d.good || time.Since(d.at) > s.opts.AttrTimeout || l.isOutdated(d.name) {
		return false
	}
	known := s.tree.child(l.n, d.name)
	return known == nil || known.kind == d.f.kind() && known.queue.idle() && !known.isOpen()
}

// readDir walks the listing from in.Offset. Offset 0 is ".", 1 is "..", and
// every later one the entry of the same number, less two.
func (s *pathFS) readDir(cancel <-chan struct{}, in *fuse.ReadIn, add func(fuse.DirEntry, *dirEntry, *listing) bool) fuse.Status {
	l, errno := s.handles.listing(in.Fh)
	if errno != 0 {
		return fuse.Status(errno)
	}
	ctx, end := s.nameOp(cancel)
	defer end()
	l.mu.Lock()
	defer l.mu.Unlock()
	if in.Offset == 0 && l.begun { // rewinddir
		l.closeRemote(ctx)
		if err := s.openListing(ctx, l); err != nil {
			return s.status(ctx, err)
		}
	}
	l.begun = true
	for at := in.Offset; ; at++ {
		entry := fuse.DirEntry{Name: ".", Mode: syscall.S_IFDIR, Ino: l.n.ino, Off: at + 1}
		var d *dirEntry
		switch {
		case at == 1:
			entry.Name, entry.Ino = "..", 0
		case at > 1:
			if at-2 >= uint64(len(l.entries)) {
				if at > in.Offset && at > 2 && !l.ready() {
					return fuse.OK // give what there is before waiting
				}
				if err := s.fetch(ctx, l, at-2); err != nil {
					return s.status(ctx, err)
				}
			}
			if at-2 >= uint64(len(l.entries)) {
				return fuse.OK
			}
			d = &l.entries[at-2]
			entry.Name, entry.Mode, entry.Ino = d.name, d.f.kind(), 0
			if known := s.tree.child(l.n, d.name); known != nil {
				entry.Ino = known.ino
			}
		}
		if !add(entry, d, l) {
			return fuse.OK
		}
	}
}

// ready tells whether asking for more takes no round trip.
func (l *listing) ready() bool { return l.end }

// fetch reads until there is an entry number want or the directory ends. Two
// questions are always under way: the order of entries does not matter, and a
// small directory then takes one round trip.
func (s *pathFS) fetch(ctx context.Context, l *listing, want uint64) error {
	type answer struct {
		entries []agent.Entry
		at      time.Time
		err     error
	}
	limit := uint32(min(max(batchBytes/(len(l.path)+maxName+160), 64), 4096))
	for !l.end && l.fault == nil && uint64(len(l.entries)) <= want {
		answers := make(chan answer, 2)
		for range 2 {
			go func() {
				at := time.Now()
				entries, err := l.dir.Read(ctx, limit)
				answers <- answer{entries, at, err}
			}()
		}
		for range 2 {
			a := <-answers
			switch {
			case a.err != nil:
				l.fault = a.err
			case len(a.entries) == 0:
				l.end = true
			default:
				s.take(l, a.entries, a.at)
			}
		}
		if len(l.entries) > maxEntries {
			s.log.Warn("a directory of the guest has no end", "path", l.path)
			l.fault = syscall.EIO
		}
	}
	if l.fault != nil && uint64(len(l.entries)) <= want {
		return l.fault
	}
	return nil
}

// take checks what the guest listed. A name that cannot be one, or comes
// twice, is dropped; an entry with impossible attributes keeps its name and
// fails when it is looked at.
func (s *pathFS) take(l *listing, entries []agent.Entry, at time.Time) {
	for _, e := range entries {
		name, ok := nameOf(l.path, e.Path)
		if _, twice := l.index[name]; !ok || twice {
			s.log.Warn("the guest listed an impossible name", "directory", l.path, "name", e.Path)
			continue
		}
		if e.Kind == agent.KindSymlink && s.opts.Symlinks == Hide {
			continue
		}
		d := dirEntry{name: name, at: at}
		if f, errno := check(e); errno == 0 {
			d.f, d.good = f, true
		}
		l.index[name] = len(l.entries)
		l.entries = append(l.entries, d)
	}
}

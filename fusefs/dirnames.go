package fusefs

import (
	"context"
	"sync"
	"syscall"
	"time"

	"msb/protocol/agent"
)

// names is what is known of a directory's entries for as long as
// Options.EntryTimeout: a listing with attributes that was made because several
// names were asked for, or the knowledge that a directory was empty when it was
// made from here. It saves the round trip of a lookup.
type names struct {
	mu       sync.Mutex
	at       time.Time // when the guest was asked; zero: nothing is known
	complete bool      // what is not in entries is not there
	entries  map[string]listed
	listing  bool // somebody asks

	changes map[string]time.Time // of names from here, lately
	swept   time.Time

	asked int // lookups since first
	first time.Time
	deep  bool // the listing at hand went as far as one may
}

// listed is an entry of a listing. With ask set it has changed from here.
type listed struct {
	attr agent.NodeAttr
	ask  bool
}

// manyLookups in a short time are worth a listing of the directory.
const manyLookups = 6

// veryManyLookups are worth one of more than the beginning.
const veryManyLookups = 64

// deepListing bounds that, in bytes of the guest's measure.
const deepListing = 1 << 20

// listingBytes bounds a listing that takes the place of lookups: a small answer
// by the guest's measure.
const listingBytes = 60 << 10

// guessedFor is for how long a name that nobody has asked for before may be
// answered from a listing when others change files too.
const guessedFor = 100 * time.Millisecond

type verdict int

const (
	unknown verdict = iota
	present
	absent
)

// born notes that the directory was made from here a moment ago.
func (d *names) born(at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.at, d.complete, d.entries = at, true, nil
}

// touched notes that a name has changed from here.
func (d *names) touched(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.noteLocked(name)
	if d.at.IsZero() && !d.listing {
		return
	}
	if d.entries == nil {
		d.entries = map[string]listed{}
	}
	d.entries[name] = listed{ask: true}
}

// changesKept is for how long changes of names are remembered: listings are not
// used for longer.
const changesKept = 2 * time.Second

func (d *names) noteLocked(name string) {
	now := time.Now()
	if d.changes == nil || now.Sub(d.swept) > changesKept {
		kept := map[string]time.Time{}
		for name, at := range d.changes {
			if now.Sub(at) < changesKept {
				kept[name] = at
			}
		}
		d.changes, d.swept = kept, now
	}
	d.changes[name] = now
}

// look returns what is known of name.
func (d *names) look(name string, limit time.Duration) (a agent.NodeAttr, at time.Time, v verdict) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.at.IsZero() || time.Since(d.at) >= limit {
		return a, at, unknown
	}
	e, ok := d.entries[name]
	switch {
	case ok && !e.ask:
		return e.attr, d.at, present
	case !ok && d.complete:
		return a, d.at, absent
	}
	return a, at, unknown
}

// since returns when the guest was asked.
func (d *names) since() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.at
}

// begin tells whether the caller should list the directory now, and whether more
// than its beginning.
func (d *names) begin(limit time.Duration) (list, deep bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	if now.Sub(d.first) > limit {
		d.first, d.asked = now, 0
	}
	d.asked++
	known := !d.at.IsZero() && now.Sub(d.at) < limit
	deep = d.asked >= veryManyLookups
	if d.asked < manyLookups || d.listing || known && (d.complete || d.deep || !deep) {
		return false, false
	}
	d.listing = true
	d.at, d.complete, d.entries = time.Time{}, false, nil
	return true, deep
}

// end takes the listing that begin asked for; all tells that nothing is missing
// in it, and that changes will be told.
func (d *names) end(at time.Time, entries []agent.NodeDirEntry, all, deep bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.listing = false
	if entries == nil {
		return
	}
	changed := d.entries
	d.at, d.complete, d.deep = at, all, deep
	d.entries = make(map[string]listed, len(entries)+len(changed))
	for _, e := range entries {
		if e.Attr.Ino != 0 && checkAttr(&e.Attr) == 0 && validName(string(e.Name)) {
			d.entries[string(e.Name)] = listed{attr: e.Attr}
		} else {
			d.entries[string(e.Name)] = listed{ask: true}
		}
	}
	for name := range changed {
		d.entries[name] = listed{ask: true}
	}
}

// remembered answers a lookup from what is known, listing the directory first
// when many names were asked for.
func (s *nodeFS) remembered(ctx context.Context, dir *inode, name string) (agent.NodeAttr, time.Time, verdict) {
	limit := min(s.opts.EntryTimeout, s.opts.AttrTimeout)
	if limit <= 0 {
		return agent.NodeAttr{}, time.Time{}, unknown
	}
	watched := s.watch.covers(dir, dir.names.since())
	switch {
	case watched:
		limit = s.opts.WatchTimeout
	case !s.opts.Alone:
		limit = min(limit, guessedFor)
	}
	a, at, v := dir.names.look(name, limit)
	if v == unknown {
		if list, deep := dir.names.begin(limit); list {
			began := time.Now()
			entries, all, err := s.listNames(ctx, dir, deep)
			if err != nil {
				entries = nil
			}
			dir.names.end(began, entries, all && s.watch.covers(dir, began), deep)
			a, at, v = dir.names.look(name, limit)
		}
	}
	if v == present {
		if a.Mode&syscall.S_IFMT == syscall.S_IFLNK && s.opts.Symlinks == Hide {
			return a, at, unknown
		}
		if !s.inodes.unchanged(&a, dir, name, at) || s.watch.since(at, stir{a.Ino, false}) {
			return a, at, unknown
		}
		if watched && time.Since(at) > guessedFor && limited(dir, &a) == nil {
			return a, at, unknown
		}
	}
	return a, at, v
}

// listNames reads the beginning of a directory, with deep more of it. all tells
// whether that is the whole directory.
func (s *nodeFS) listNames(ctx context.Context, dir *inode, deep bool) (entries []agent.NodeDirEntry, all bool, err error) {
	p, err := s.plan()
	if err != nil {
		return nil, false, err
	}
	ref, err := p.node(ctx, dir)
	if err != nil {
		return nil, false, err
	}
	h := p.add(&agent.NodeOpen{Node: ref, Flags: agent.NodeDirectory})
	i := p.add(&agent.NodeReadDir{Handle: h, Size: listingBytes, Flags: agent.NodeDirAttr})
	results, err := p.run(ctx, nil)
	if int(h) < len(results) {
		defer s.farewell.close(results[h].(*agent.NodeHandleResult).Handle, p.c.epoch)
	}
	if err != nil {
		return nil, false, err
	}
	handle := results[h].(*agent.NodeHandleResult).Handle
	entries = []agent.NodeDirEntry{}
	page := results[i].(*agent.NodeListResult).Entries
	for size := 0; len(page) > 0; {
		entries = append(entries, page...)
		last := page[len(page)-1].Offset
		for _, e := range page {
			size += len(e.Name) + listedBytes
		}
		if size > listingBytes*3/4 && !deep || size > deepListing || !s.watch.covers(dir, time.Now()) {
			return entries, false, nil
		}
		results, err := s.do(ctx, p.c, &agent.NodeReadDir{Handle: handle, Offset: last, Size: listingStep, Flags: agent.NodeDirAttr})
		if err != nil {
			return nil, false, err
		}
		page = results[0].(*agent.NodeListResult).Entries
	}
	return entries, true, nil
}

// listedBytes is what an entry of a listing with attributes takes in the guest's
// measure, beside its name.
const listedBytes = 176

// unchanged tells whether attributes that were listed at a time still hold, as
// far as this side knows.
func (t *inodes) unchanged(a *agent.NodeAttr, dir *inode, name string, at time.Time) bool {
	t.mu.Lock()
	n := t.births[t.birthOf(a, dir, name)]
	lost := t.lost
	t.mu.Unlock()
	if !lost.Before(at) {
		return false
	}
	if n == nil {
		return true
	}
	if !n.queue.idle() {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.changedAt.Before(at)
}

// steady tells whether a name has not changed from here since a time.
func (d *names) steady(name string, at time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.changes[name].Before(at)
}

// drop forgets everything.
func (d *names) drop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.at, d.entries, d.complete = time.Time{}, nil, false
	d.first, d.asked = time.Time{}, 0
}

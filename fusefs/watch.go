package fusefs

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"time"

	"msb/agentclient"
	"msb/protocol/agent"
)

// watch follows what others change in the guest. While it does, the kernel and
// this side keep what they know for Options.WatchTimeout instead of
// Options.EntryTimeout and Options.AttrTimeout.
//
// An answer of the guest counts as of the moment when it was asked for. An event
// about a file or name makes every answer worthless that was asked for before it
// arrived, also those that are still to come.
type watch struct {
	s      *nodeFS
	notes  notifier
	echoes chan echo

	mu      sync.Mutex
	live    bool
	floor   time.Time // what was asked for before holds for no longer than without a watch
	stirred map[stir]time.Time
	absents map[spotName]time.Time // names that the kernel may take for absent, until then
}

// stir is what an event was about: a file, or the names in a directory.
type stir struct {
	ino   uint64
	names bool
}

// spotName is a name in a directory, both as the kernel knows them.
type spotName struct {
	dir  uint64
	name string
}

const (
	// silence is how long no word of the guest may come before the watch counts
	// as lost.
	silence = 3 * agent.WatchPulse * time.Millisecond
	// watchRetry is the pause before another watch is begun, watchRefused when the
	// guest has refused one.
	watchRetry   = time.Second
	watchRefused = 5 * time.Minute
	// maxStirred and maxAbsents bound what is remembered.
	maxStirred = 64 << 10
	maxAbsents = 64 << 10
)

func (w *watch) init(s *nodeFS) {
	w.s = s
	w.stirred, w.absents = map[stir]time.Time{}, map[spotName]time.Time{}
	w.echoes = make(chan echo, 64)
}

// wanted tells whether a watch is of use.
func (w *watch) wanted() bool { return w.s.opts.WatchTimeout > 0 && !w.s.strict() && !w.s.opts.Alone }

// run keeps a watch up until the mount ends.
func (w *watch) run() {
	s := w.s
	s.spawn(w.repeat)
	defer w.notes.close()
	var feed *agentclient.Watch
	for {
		c, changed := s.link.now()
		next, err := w.begin(c)
		if feed != nil {
			feed.Close() // the other one has begun: nothing is missed in between
		}
		feed = next
		pause := watchRetry
		var missing *agentclient.NotOfferedError
		var refused *agentclient.NodeError
		switch {
		case err == nil:
			err = w.follow(feed, changed)
			if err == nil {
				continue
			}
			s.log.Info("the guest's changes are not told any more: names and attributes are kept for a short time only", "error", err)
			feed.Close()
			feed = nil
		case errors.As(err, &missing), errors.As(err, &refused):
			s.log.Info("the guest does not tell what changes: names and attributes are kept for a short time only", "error", err)
			pause = watchRefused
		}
		w.lose()
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-changed:
		case <-s.ctx.Done():
		}
		timer.Stop()
		if s.ctx.Err() != nil {
			return
		}
	}
}

// begin begins a watch on a connection.
func (w *watch) begin(c *agentclient.Client) (*agentclient.Watch, error) {
	if c == nil || ended(c) {
		return nil, syscall.ENOTCONN
	}
	nodes, err := c.Nodes()
	if err != nil {
		return nil, err
	}
	ref, _, _ := w.s.inodes.known(w.s.inodes.root(), w.s.epoch())
	if ref == 0 {
		return nil, syscall.ESTALE
	}
	ctx, stop := context.WithTimeout(w.s.ctx, w.s.opts.NameTimeout)
	defer stop()
	return nodes.Watch(ctx, ref)
}

// follow acts on events until the watch ends. It returns nil when there is
// another connection to watch on.
func (w *watch) follow(feed *agentclient.Watch, changed <-chan struct{}) error {
	if feed.Dev() != w.s.inodes.device() {
		return syscall.EXDEV
	}
	w.gain()
	ctx, stop := context.WithCancel(w.s.ctx)
	defer stop()
	swapped := make(chan struct{})
	defer func() { stop(); <-swapped }()
	go func() {
		defer close(swapped)
		select {
		case <-changed:
			stop()
		case <-ctx.Done():
		}
	}()
	for {
		patience, done := context.WithTimeout(ctx, silence)
		p, err := feed.Next(patience)
		done()
		switch {
		case err == nil:
		case w.s.ctx.Err() == nil && ctx.Err() != nil && w.s.link.up():
			return nil
		default:
			return err
		}
		if p.Lost {
			w.s.log.Info("the guest changed more than it could tell: everything is asked for again")
			w.forgetAll()
		}
		w.apply(p.Events)
		if err := feed.Seen(ctx, p.Seq); err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// gain begins to trust.
func (w *watch) gain() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.live {
		w.live, w.floor = true, time.Now()
		w.s.log.Info("the guest tells what changes: names and attributes are kept", "for", w.s.opts.WatchTimeout)
	}
}

// lose ends it, and forgets what was trusted.
func (w *watch) lose() {
	w.mu.Lock()
	live := w.live
	w.live = false
	w.mu.Unlock()
	if live {
		w.forgetAll()
	}
}

// covers tells whether changes of a file are told, and were since it was asked
// about.
func (w *watch) covers(n *inode, asked time.Time) bool {
	if n.birth.dev != 0 {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.live && asked.After(w.floor)
}

// since tells whether any of what was stirred was so after a moment.
func (w *watch) since(asked time.Time, what ...stir) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sinceLocked(asked, what)
}

func (w *watch) sinceLocked(asked time.Time, what []stir) bool {
	for _, x := range what {
		if at, ok := w.stirred[x]; ok && !at.Before(asked) {
			return true
		}
	}
	return false
}

// lifetime is how long the kernel may keep an answer that was asked for at a
// time: without a watch for limit, with one for longer, and not at all when an
// event has overtaken it. n is nil when no watch covers it.
func (w *watch) lifetime(n *inode, limit time.Duration, asked time.Time, what ...stir) time.Duration {
	age := time.Since(asked)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case limit <= 0, w.sinceLocked(asked, what):
		return 0
	case w.live && n != nil && n.birth.dev == 0 && asked.After(w.floor):
		limit = w.s.opts.WatchTimeout
	}
	return max(limit-age, 0)
}

// absence is lifetime for the absence of a name.
func (w *watch) absence(dir *inode, name string, limit time.Duration, asked time.Time) time.Duration {
	d := w.lifetime(dir, limit, asked, stir{dir.ino, true})
	if d <= limit {
		return d
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if len(w.absents) >= maxAbsents {
		for at, until := range w.absents {
			if until.Before(now) {
				delete(w.absents, at)
			}
		}
	}
	if len(w.absents) >= maxAbsents {
		return max(limit-now.Sub(asked), 0) // what cannot be found again must not last
	}
	w.absents[spotName{dir.id, name}] = now.Add(d)
	return d
}

// stir notes what events were about. Everything is stirred when there is too
// much to remember.
func (w *watch) stir(what []stir, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.stirred)+len(what) > maxStirred {
		for x, at := range w.stirred {
			if now.Sub(at) > w.s.opts.WatchTimeout {
				delete(w.stirred, x)
			}
		}
		if len(w.stirred)+len(what) > maxStirred {
			w.stirred = map[stir]time.Time{}
			w.floor = now
			w.s.inodes.mistrust()
		}
	}
	for _, x := range what {
		w.stirred[x] = now
	}
}

// takeAbsents returns the names that the kernel may take for absent, and forgets
// them.
func (w *watch) takeAbsents() map[spotName]time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.absents
	w.absents = map[spotName]time.Time{}
	return all
}

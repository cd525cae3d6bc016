package fusefs

import (
	"sync"
	"syscall"
	"time"

	"msb/protocol/agent"
)

const (
	// notifiers is how many calls into the kernel, each of which may wait for a
	// request that is under way, are made at the same time.
	notifiers = 8
	// echoAfter is when the kernel is told again. A thread that has an answer of
	// before the event but has not acted on it yet would keep it otherwise.
	echoAfter = 50 * time.Millisecond
)

const named = agent.WatchCreated | agent.WatchDeleted | agent.WatchMovedAway | agent.WatchMovedHere

// note is something that the kernel has to forget.
type note struct {
	node    uint64 // of the file, or of the directory of name
	name    string
	child   uint64 // the file that was removed, 0 when it is not certain
	content bool
}

// echo are notes to be repeated at a time.
type echo struct {
	at    time.Time
	notes []note
}

// apply acts on events: when it returns, neither this side nor the kernel hands
// out what they make untrue.
func (w *watch) apply(events []agent.WatchEvent) {
	if len(events) == 0 {
		return
	}
	now := time.Now()
	what := make([]stir, 0, 2*len(events))
	for _, e := range events {
		if e.Node != 0 {
			what = append(what, stir{e.Node, false})
		}
		if e.Change&named != 0 {
			what = append(what, stir{e.Dir, true}, stir{e.Dir, false})
		}
	}
	w.stir(what, now)
	seen := map[note]bool{}
	var notes []note
	for i := range events {
		for _, n := range w.one(&events[i]) {
			if !seen[n] {
				seen[n] = true
				notes = append(notes, n)
			}
		}
	}
	w.tell(notes)
	if len(notes) > 0 {
		select {
		case w.echoes <- echo{now.Add(echoAfter), notes}:
		case <-w.s.ctx.Done():
		}
	}
}

// one forgets here what an event makes untrue, and returns what the kernel has
// to forget.
func (w *watch) one(e *agent.WatchEvent) (notes []note) {
	t := w.s.inodes
	name := string(e.Name)
	files := t.numbered(e.Node)
	for _, dir := range t.numbered(e.Dir) {
		if !validName(name) || dir.kind() != syscall.S_IFDIR {
			continue
		}
		dir.names.touched(name)
		if e.Change&named == 0 {
			continue
		}
		dir.touch()
		child := t.child(dir, name)
		mine := child != nil && (e.Node == 0 || child.ino == e.Node)
		if mine && e.Change&(agent.WatchCreated|agent.WatchMovedHere) == 0 {
			t.remove(dir, name)
			child.touch()
		}
		n := note{node: dir.id, name: name}
		if mine && e.Node != 0 && e.Change&named == agent.WatchDeleted {
			if a, _, _ := child.recall(); a.Nlink == 1 || child.kind() == syscall.S_IFDIR {
				n.child = child.id
			}
		}
		notes = append(notes, n, note{node: dir.id})
		w.mu.Lock()
		delete(w.absents, spotName{dir.id, name})
		w.mu.Unlock()
	}
	for _, f := range files {
		content := e.Change&agent.WatchData != 0
		if content {
			f.mu.Lock()
			f.fill.from = time.Time{}
			f.mu.Unlock()
			f.changed()
		} else {
			f.touch()
		}
		notes = append(notes, note{node: f.id, content: content && f.kind() == syscall.S_IFREG})
	}
	return notes
}

// tell makes the kernel forget, and returns when it has.
func (w *watch) tell(notes []note) {
	var wait sync.WaitGroup
	room := make(chan struct{}, notifiers)
	for _, n := range notes {
		switch {
		case n.name != "":
		case n.content:
			w.notes.attr(n.node) // does not wait for anything
		default:
			w.notes.attr(n.node)
			continue
		}
		room <- struct{}{}
		wait.Go(func() {
			defer func() { <-room }()
			w.note(n)
		})
	}
	wait.Wait()
}

func (w *watch) note(n note) {
	switch {
	case n.name == "" && n.content:
		w.notes.content(n.node)
	case n.name == "":
		w.notes.attr(n.node)
	case n.child != 0:
		w.notes.gone(n.node, n.child, n.name)
	default:
		w.notes.expire(n.node, n.name)
	}
}

// repeat tells the kernel again, until the mount ends.
func (w *watch) repeat() {
	for {
		select {
		case e := <-w.echoes:
			timer := time.NewTimer(time.Until(e.at))
			select {
			case <-timer.C:
			case <-w.s.ctx.Done():
				timer.Stop()
				return
			}
			for i := range e.notes {
				e.notes[i].content, e.notes[i].child = false, 0
			}
			w.tell(e.notes)
		case <-w.s.ctx.Done():
			return
		}
	}
}

// forgetAll forgets everything: what has changed is not known.
func (w *watch) forgetAll() {
	w.mu.Lock()
	w.floor = time.Now()
	w.stirred = map[stir]time.Time{}
	w.mu.Unlock()
	w.s.inodes.mistrust()
	var notes []note
	for _, n := range w.s.inodes.snapshot() {
		n.names.drop()
		n.mu.Lock()
		n.fill.from = time.Time{}
		n.mu.Unlock()
		n.changed()
		notes = append(notes, note{node: n.id, content: n.kind() == syscall.S_IFREG})
		if dir, name := w.s.inodes.where(n); dir != nil {
			notes = append(notes, note{node: dir.id, name: name})
		}
	}
	for at := range w.takeAbsents() {
		notes = append(notes, note{node: at.dir, name: at.name})
	}
	w.tell(notes)
}

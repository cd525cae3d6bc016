package fusefs

import "time"

// knowledge is how far the facts of a node can be trusted.
type knowledge struct {
	at    time.Time // when the guest was asked; zero: never
	wrote bool      // changed from here since
}

// learn keeps the facts that the guest told.
func (n *node) learn(f facts) {
	n.mu.Lock()
	n.facts, n.known = f, knowledge{at: time.Now()}
	n.mu.Unlock()
}

// recall returns the last facts, their age and whether they still hold as far
// as this side knows.
func (n *node) recall() (f facts, age time.Duration, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.facts, time.Since(n.known.at), !n.known.at.IsZero() && !n.known.wrote
}

// changed notes that this side changed the file: read-ahead is dropped,
// listings that were fetched before do not tell its attributes any more.
func (s *pathFS) changed(n *node) {
	n.mu.Lock()
	n.known.wrote = true
	open := make([]*handle, 0, len(n.handles))
	for h := range n.handles {
		open = append(open, h)
	}
	n.mu.Unlock()
	for _, h := range open { // not under n.mu: a reader asks for the size under its own lock
		h.ahead.drop()
	}
	s.tree.mu.RLock()
	parent, name := n.parent, n.name
	s.tree.mu.RUnlock()
	if parent != nil {
		parent.changedName(name)
	}
}

// changedName tells the open listings of a directory that they are out of date
// for one name.
func (n *node) changedName(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for l := range n.listings {
		l.outdated(name)
	}
}

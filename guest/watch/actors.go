package watch

import "sync"

// Actors knows which parts of the agent change files, and when, so that a mount is not told of its own changes: the
// kernel says only that a change was the agent's. The zero value is ready for use, and nil knows nobody.
type Actors struct {
	mu       sync.Mutex
	clock    uint64
	acts     map[any]*acting
	watchers int // while there are none, nobody asks who rests
}

// acting is one actor. One that rests is kept for as long as a watcher may ask for it.
type acting struct {
	now  int    // operations under way
	last uint64 // when the last one ended
}

// Enter notes that who, which is comparable, begins to change files. Leave has to follow.
func (a *Actors) Enter(who any) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.acts == nil {
		a.acts = map[any]*acting{}
	}
	x := a.acts[who]
	if x == nil {
		x = &acting{}
		a.acts[who] = x
	}
	x.now++
}

// Leave notes that who is done.
func (a *Actors) Leave(who any) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	x := a.acts[who]
	x.now--
	x.last = a.clock
	if x.now == 0 && a.watchers == 0 {
		delete(a.acts, who)
	}
}

// watch counts a watcher that begins, or with -1 one that has ended.
func (a *Actors) watch(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.watchers += n
}

// mark returns a moment for alone.
func (a *Actors) mark() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.clock++
	return a.clock
}

// alone tells whether who, and nobody else, may have changed files since a moment.
func (a *Actors) alone(who any, since uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for actor, x := range a.acts {
		if actor != who && (x.now > 0 || x.last >= since) {
			return false
		}
	}
	return true
}

// sweep forgets those who have not done anything since a moment.
func (a *Actors) sweep(since uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for actor, x := range a.acts {
		if x.now == 0 && x.last < since {
			delete(a.acts, actor)
		}
	}
}

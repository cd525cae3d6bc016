package approve

import "time"

// Quiet is how long no key may be pressed before keys count.
const Quiet = 500 * time.Millisecond

const (
	// beat is how often the guard looks. A beat that is late says that this
	// process was held up: keys typed meanwhile may not have been read yet.
	beat = 100 * time.Millisecond
	late = 3 * beat
)

// guard tells an answer from a key that was meant for something else: it opens
// after a while in which no key was pressed and this process ran all the time.
type guard struct {
	since, last time.Time
	open        bool
}

func (g *guard) restart(now time.Time) { *g = guard{since: now, last: now} }

// tick is a beat of the clock; it tells whether the guard is open now.
func (g *guard) tick(now time.Time) bool {
	if gap := now.Sub(g.last); gap < 0 || gap > late {
		g.restart(now)
		return false
	}
	g.last = now
	if now.Sub(g.since) >= Quiet {
		g.open = true
	}
	return g.open
}

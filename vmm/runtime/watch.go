package runtime

import "time"

const (
	clockPoll  = 2 * time.Second  // how often the wall clock is compared with the steady one
	clockEvery = 60 * time.Second // how often the guest gets the time anyway
	clockJump  = 6 * time.Second  // a jump of this much is told at once
)

// clockWatch says when the guest has to be told the time.
type clockWatch struct {
	wall   time.Time // last look, wall clock only
	steady time.Duration
	sent   time.Duration
}

// due looks at both clocks. The first look is always due.
func (w *clockWatch) due(wall time.Time, steady time.Duration) bool {
	wall = wall.Round(0)
	first := w.wall.IsZero()
	jump := wall.Sub(w.wall) - (steady - w.steady)
	w.wall, w.steady = wall, steady
	if first || jump.Abs() >= clockJump || steady-w.sent >= clockEvery {
		w.sent = steady
		return true
	}
	return false
}

// idleWatch says when a sandbox has been unused for too long.
type idleWatch struct {
	limit time.Duration // 0 = never
	seen  uint64
	since time.Duration
}

// idle looks at the activity counter and at the number of running commands, which are never idle.
func (w *idleWatch) idle(activity uint64, execs int, steady time.Duration) bool {
	if activity != w.seen || execs > 0 {
		w.seen, w.since = activity, steady
	}
	return w.limit > 0 && steady-w.since >= w.limit
}

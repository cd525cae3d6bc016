package approval

import "context"

// Gate takes every request of one sandbox. It is safe for concurrent use.
type Gate struct{}

// Ask waits for the decision on a request. It returns a denial on every
// failure and when ctx ends.
func (g *Gate) Ask(ctx context.Context, r Request) Outcome { return Outcome{Cause: CauseError} }

// Pending lists the requests that wait, oldest first.
func (g *Gate) Pending() []Request { return nil }

// Answer decides a request. The first valid answer wins, later ones get
// ErrAnswered.
func (g *Gate) Answer(id string, a Answer) error { return ErrUnknownRequest }

// Attach says that there is someone to ask, until release is called.
func (g *Gate) Attach() (release func()) { return func() {} }

package agentclient

import (
	"context"
	"os"
	"time"
)

// until is a context that ends with a channel.
type until struct{ done <-chan struct{} }

var _ context.Context = until{}

func (u until) Done() <-chan struct{}       { return u.done }
func (u until) Deadline() (time.Time, bool) { return time.Time{}, false }
func (u until) Value(any) any               { return nil }
func (u until) Err() error {
	select {
	case <-u.done:
		return os.ErrDeadlineExceeded
	default:
		return nil
	}
}

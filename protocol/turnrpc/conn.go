package turnrpc

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"
)

// WriteTimeout bounds the write of one frame; a write that takes longer ends
// the connection.
const WriteTimeout = 30 * time.Second

// LostError is why a connection is gone. Every call that was under way and
// every later one returns it.
type LostError struct{ Err error }

// Error says that the connection is lost, and why.
func (e *LostError) Error() string { return "turn RPC connection lost: " + e.Err.Error() }

// Unwrap returns the reason.
func (e *LostError) Unwrap() error { return e.Err }

// ErrClosed is the reason of a LostError when this side closed the connection.
var ErrClosed = errors.New("closed by this side")

// Conn is one end of a turn RPC connection over any byte stream. Both ends use
// it: frames without a method are answers and go to the pending call of their
// id; all others, and answers nobody waits for, go to the handler.
//
// It is safe for concurrent use.
type Conn struct {
	rwc    io.ReadWriteCloser
	handle func(*Frame)

	turn chan struct{} // write lock

	mu      sync.Mutex
	pending map[string]*Pending
	lost    *LostError
	done    chan struct{}
	stopped chan struct{} // the read loop has ended
}

// Pending is a call that waits for its answer.
type Pending struct{}

// NewConn returns a connection; Serve must run for it to receive anything.
// handle gets the frames one at a time, in order; while it blocks nothing more
// is read, which is what slows a fast peer down.
func NewConn(rwc io.ReadWriteCloser, handle func(*Frame)) *Conn { return nil }

// Serve reads until the connection is lost and returns the *LostError.
func (c *Conn) Serve() error { return nil }

// Call sends a call and waits for its answer, which is decoded into result
// unless that is nil. A failed call returns *Error.
func (c *Conn) Call(ctx context.Context, id, method string, params, result any) error { return nil }

// Start sends a call and returns without waiting.
func (c *Conn) Start(ctx context.Context, id, method string, params any) (*Pending, error) {
	return nil, nil
}

// Wait waits for the answer.
func (p *Pending) Wait(ctx context.Context, result any) error { return nil }

// Drop forgets the call; a late answer goes to the handler.
func (p *Pending) Drop() {}

// Notify sends a frame that has no answer, cut to fit where it can be.
func (c *Conn) Notify(ctx context.Context, id, method string, params any) error { return nil }

// Respond answers a call. A result that does not fit in a frame is cut, with a
// marker in it, or becomes an error; it never ends the connection.
func (c *Conn) Respond(ctx context.Context, id, code string, result any) error { return nil }

// Fail answers a call with an error.
func (c *Conn) Fail(ctx context.Context, id, code, message string) error { return nil }

// Close ends the connection.
func (c *Conn) Close() error { return nil }

// Done is closed when the connection is lost.
func (c *Conn) Done() <-chan struct{} { return nil }

// Err is the *LostError after Done, else nil.
func (c *Conn) Err() error { return nil }

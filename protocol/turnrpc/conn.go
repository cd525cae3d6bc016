package turnrpc

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// WriteTimeout bounds the write of one frame; a write that takes longer ends
// the connection, since half a frame may be out.
const WriteTimeout = 30 * time.Second

// LostError is why a connection is gone. Every call that was under way and
// every later one returns it.
type LostError struct{ Err error }

// Error says that the connection is lost, and why.
func (e *LostError) Error() string { return "turn RPC connection lost: " + e.Err.Error() }

// Unwrap returns the reason.
func (e *LostError) Unwrap() error { return e.Err }

var (
	// ErrClosed is the reason of a LostError when this side closed the connection.
	ErrClosed = errors.New("closed by this side")
	// ErrWriteTimeout is the reason when the peer did not take a frame within
	// WriteTimeout.
	ErrWriteTimeout = errors.New("the peer takes no data")
)

// Conn is one end of a turn RPC connection over any byte stream. Both ends use
// it: frames without a method are answers and go to the pending call of their
// id; all others, and answers nobody waits for, go to the handler.
//
// Nothing is queued: a frame is written before the method that sends it
// returns, and read only when the one before it has been handled. It is safe
// for concurrent use.
type Conn struct {
	rwc    io.ReadWriteCloser
	handle func(*Frame)

	write chan struct{} // write lock, one token

	mu      sync.Mutex
	pending map[string]*Pending
	lost    *LostError
	done    chan struct{}
}

// NewConn returns a connection; Serve must run for it to receive anything.
// handle gets the frames one at a time, in order; while it blocks nothing more
// is read, which is what slows a fast peer down. Closing rwc must end a Read
// and a Write that are under way.
func NewConn(rwc io.ReadWriteCloser, handle func(*Frame)) *Conn {
	return &Conn{
		rwc:     rwc,
		handle:  handle,
		write:   make(chan struct{}, 1),
		pending: make(map[string]*Pending),
		done:    make(chan struct{}),
	}
}

// Serve reads until the connection is lost and returns the *LostError. It is
// called once; the handler has returned for the last time when it returns.
func (c *Conn) Serve() error {
	in := bufio.NewReaderSize(c.rwc, 64<<10)
	for {
		f, err := Read(in)
		if err != nil {
			c.lose(err)
			return c.Err()
		}
		if f.IsResponse() && c.deliver(f) {
			continue
		}
		c.handle(f)
	}
}

// deliver gives an answer to the call that waits for it.
func (c *Conn) deliver(f *Frame) bool {
	c.mu.Lock()
	p := c.pending[f.ID]
	delete(c.pending, f.ID)
	c.mu.Unlock()
	if p == nil {
		return false
	}
	p.answer <- f // has room for the one answer
	return true
}

// lose ends the connection for a reason; the first one counts.
func (c *Conn) lose(err error) {
	c.mu.Lock()
	if c.lost != nil {
		c.mu.Unlock()
		return
	}
	c.lost = &LostError{Err: err}
	clear(c.pending)
	close(c.done)
	c.mu.Unlock()
	c.rwc.Close()
}

// Close ends the connection. Serve returns soon after.
func (c *Conn) Close() error {
	c.lose(ErrClosed)
	return nil
}

// Done is closed when the connection is lost.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err is the *LostError after Done, else nil.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost == nil {
		return nil
	}
	return c.lost
}

// Send writes one frame. A frame that is too large is ErrFrameSize and not
// sent; the connection lives on. ctx bounds the wait for other writers, not the
// write itself, which WriteTimeout bounds.
func (c *Conn) Send(ctx context.Context, f *Frame) error {
	b, err := Append(nil, f)
	if err != nil {
		return err
	}
	select {
	case c.write <- struct{}{}:
		defer func() { <-c.write }()
	case <-c.done:
		return c.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := c.Err(); err != nil {
		return err
	}
	late := time.AfterFunc(WriteTimeout, func() {
		c.lose(fmt.Errorf("%w: a frame was not written in %v", ErrWriteTimeout, WriteTimeout))
	})
	defer late.Stop()
	if _, err := c.rwc.Write(b); err != nil {
		c.lose(err)
		return c.Err()
	}
	return nil
}

// Pending is a call that waits for its answer.
type Pending struct {
	c      *Conn
	id     string
	method string
	answer chan *Frame
}

// Start sends a call and returns without waiting for the answer. The caller
// must end it with Wait or Drop.
func (c *Conn) Start(ctx context.Context, id, method string, params any) (*Pending, error) {
	f, err := Call(id, method, params)
	if err != nil {
		return nil, err
	}
	p := &Pending{c: c, id: id, method: method, answer: make(chan *Frame, 1)}
	c.mu.Lock()
	switch {
	case c.lost != nil:
		err = c.lost
	case c.pending[id] != nil:
		err = fmt.Errorf("%s: a call with id %q is under way", method, id)
	default:
		c.pending[id] = p
	}
	c.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if err := c.Send(ctx, f); err != nil {
		p.Drop()
		return nil, fmt.Errorf("send %s: %w", method, err)
	}
	return p, nil
}

// Answered delivers the answer of the call, once; see Decode. It delivers
// nothing when the connection is lost.
func (p *Pending) Answered() <-chan *Frame { return p.answer }

// Wait waits for the answer and decodes it into result unless that is nil. A
// failed call returns *Error. When ctx ends the call is dropped.
func (p *Pending) Wait(ctx context.Context, result any) error {
	select {
	case f := <-p.answer:
		return f.Decode(p.method, result)
	case <-ctx.Done():
		p.Drop()
		return fmt.Errorf("%s: %w", p.method, ctx.Err())
	case <-p.c.done:
	}
	select {
	case f := <-p.answer: // it came just before the end
		return f.Decode(p.method, result)
	default:
		return fmt.Errorf("%s: %w", p.method, p.c.Err())
	}
}

// Drop forgets the call; a late answer goes to the handler.
func (p *Pending) Drop() {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	if p.c.pending[p.id] == p {
		delete(p.c.pending, p.id)
	}
}

// Call sends a call and waits for its answer, which is decoded into result
// unless that is nil. A failed call returns *Error.
func (c *Conn) Call(ctx context.Context, id, method string, params, result any) error {
	p, err := c.Start(ctx, id, method, params)
	if err != nil {
		return err
	}
	return p.Wait(ctx, result)
}

// Decode decodes the answer to a call: its *Error, or its result into result
// unless that is nil.
func (f *Frame) Decode(method string, result any) error {
	if f.Error != nil {
		return f.Error
	}
	if result == nil {
		return nil
	}
	if len(f.Result) == 0 {
		return fmt.Errorf("%w: answer to %s has neither result nor error", ErrFrame, method)
	}
	if err := json.Unmarshal(f.Result, result); err != nil {
		return fmt.Errorf("result of %s: %w", method, err)
	}
	return nil
}

// Notify sends a frame that has no answer. Agent and provider events that are
// too large are split or cut first; see FitEvent and FitProviderEvent.
func (c *Conn) Notify(ctx context.Context, id, method string, params any) error {
	var parts []any
	switch e := params.(type) {
	case AgentEvent:
		for _, part := range FitEvent(e) {
			parts = append(parts, part)
		}
	case ProviderEvent:
		for _, part := range FitProviderEvent(e) {
			parts = append(parts, part)
		}
	default:
		parts = []any{params}
	}
	for _, part := range parts {
		f, err := Call(id, method, part)
		if err != nil {
			return err
		}
		if err := c.Send(ctx, f); err != nil {
			return fmt.Errorf("send %s: %w", method, err)
		}
	}
	return nil
}

// Respond answers a call. A result that does not fit in a frame is cut, with a
// marker in it, or becomes an error with the given code; it never ends the
// connection.
func (c *Conn) Respond(ctx context.Context, id, code string, result any) error {
	b, err := FitResult(result, MaxFrame-frameOverhead-encodedLen(id))
	if err != nil {
		return c.Fail(ctx, id, code, err.Error())
	}
	return c.Send(ctx, &Frame{V: Version, ID: id, Result: b})
}

// maxErrorMessage bounds what an error tells the peer, in bytes.
const maxErrorMessage = 8 << 10

// Fail answers a call with an error; a very long message is cut.
func (c *Conn) Fail(ctx context.Context, id, code, message string) error {
	return c.Send(ctx, Fail(id, code, cutEnd(message, maxErrorMessage)))
}

// Package socket is turn.sock: the server that lives in the process running a
// sandbox, and the client that every front end is. It carries JSON lines, a
// request and a response each; events are asked for, a batch at a time, so that
// a slow client is waited for and nothing piles up.
package socket

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"

	"msb/protocol/turnrpc"
	"msb/turn"
	"msb/turn/approval"
)

// Client is a connection to turn.sock, safe for concurrent use. Closing it
// stops nothing but turns started with a lease.
type Client struct {
	c    net.Conn
	out  lineWriter
	done chan struct{}

	mu      sync.Mutex
	next    uint64
	pending map[uint64]chan response
	err     error
}

// ErrClosed is the reason after Client.Close.
var ErrClosed = errors.New("connection to turn.sock closed")

// Dial connects to the socket of a running sandbox.
func Dial(ctx context.Context, path string) (*Client, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("connect to the turn engine: %w", err)
	}
	return NewClient(c), nil
}

// NewClient speaks over a connection, which belongs to it from here on.
func NewClient(conn net.Conn) *Client {
	c := &Client{c: conn, out: lineWriter{w: conn}, done: make(chan struct{}), pending: make(map[uint64]chan response)}
	go c.read()
	return c
}

func (c *Client) read() {
	in := bufio.NewReaderSize(c.c, 64<<10)
	for {
		line, err := readLine(in, maxResponse)
		var r response
		if err == nil {
			err = json.Unmarshal(line, &r)
		}
		if err == nil && r.ID == 0 { // about the connection itself
			if err = errors.New("the server gave up"); r.Error != nil {
				err = r.Error
			}
		}
		if err != nil {
			c.lose(fmt.Errorf("connection to turn.sock lost: %w", err))
			close(c.done)
			return
		}
		c.mu.Lock()
		answer := c.pending[r.ID]
		delete(c.pending, r.ID)
		c.mu.Unlock()
		if answer != nil {
			answer <- r // has room
		}
	}
}

func (c *Client) lose(err error) {
	c.mu.Lock()
	if c.err == nil {
		c.err = err
	}
	c.mu.Unlock()
	c.c.Close()
}

// Close ends the connection.
func (c *Client) Close() error {
	c.lose(ErrClosed)
	<-c.done
	return nil
}

// Done is closed when the connection is gone; Err then says why.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err is the reason after Done, else nil.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// call is a request under way.
type call struct {
	c      *Client
	id     uint64
	method string
	answer chan response
}

func (c *Client) start(method string, params any) (*call, error) {
	b, err := json.Marshal(params)
	if err != nil {
		return nil, err
	}
	if len(b) > maxRequest-1024 {
		return nil, fmt.Errorf("%s: the request has %d bytes, allowed are %d", method, len(b), maxRequest-1024)
	}
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return nil, c.err
	}
	c.next++
	k := &call{c: c, id: c.next, method: method, answer: make(chan response, 1)}
	c.pending[k.id] = k.answer
	c.mu.Unlock()
	if err := c.out.write(request{ID: k.id, Method: method, Params: b}); err != nil {
		c.lose(fmt.Errorf("connection to turn.sock lost: %w", err))
		return nil, c.Err()
	}
	return k, nil
}

// wait waits for the answer; when ctx ends the call stays under way.
func (k *call) wait(ctx context.Context, result any) error {
	var r response
	select {
	case r = <-k.answer:
	case <-ctx.Done():
		return ctx.Err()
	case <-k.c.done:
		select {
		case r = <-k.answer:
		default:
			return k.c.Err()
		}
	}
	if r.Error != nil {
		return r.Error
	}
	if result == nil {
		return nil
	}
	if err := json.Unmarshal(r.Result, result); err != nil {
		return fmt.Errorf("answer to %s: %w", k.method, err)
	}
	return nil
}

// abandon makes the server give up a call.
func (k *call) abandon() {
	k.c.mu.Lock()
	delete(k.c.pending, k.id)
	k.c.mu.Unlock()
	b, _ := json.Marshal(abandonParams{Request: k.id})
	k.c.out.write(request{Method: methodAbandon, Params: b})
}

func (c *Client) call(ctx context.Context, method string, params, result any) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	k, err := c.start(method, params)
	if err != nil {
		return err
	}
	err = k.wait(ctx, result)
	if err != nil && ctx.Err() != nil {
		k.abandon()
	}
	return err
}

// Status asks for the sessions and what waits.
func (c *Client) Status(ctx context.Context) (s Status, err error) {
	return s, c.call(ctx, methodStatus, none{}, &s)
}

// Sessions lists all sessions, last used first.
func (c *Client) Sessions(ctx context.Context) (list []turn.Info, err error) {
	err = c.call(ctx, methodSessions, none{}, &list)
	return list, err
}

// Show returns one session by id, start of an id, or name.
func (c *Client) Show(ctx context.Context, ref string) (i turn.Info, err error) {
	err = c.call(ctx, methodShow, refParams{Session: ref}, &i)
	return i, err
}

// Open opens a new session or resumes one.
func (c *Client) Open(ctx context.Context, p OpenParams) (i turn.Info, err error) {
	err = c.call(ctx, methodOpen, p, &i)
	return i, err
}

// CloseSession ends a session's turn and guest agent; the session can be
// resumed.
func (c *Client) CloseSession(ctx context.Context, ref string) error {
	return c.call(ctx, methodClose, refParams{Session: ref}, nil)
}

// Rename names a session; "" takes its name away.
func (c *Client) Rename(ctx context.Context, ref, name string) error {
	return c.call(ctx, methodRename, refParams{Session: ref, Name: name}, nil)
}

// Remove removes a closed session with its transcript.
func (c *Client) Remove(ctx context.Context, ref string) error {
	return c.call(ctx, methodRemove, refParams{Session: ref}, nil)
}

// StartTurn starts a turn and returns at once.
func (c *Client) StartTurn(ctx context.Context, p TurnParams) (s Started, err error) {
	err = c.call(ctx, methodStart, p, &s)
	return s, err
}

// Cancel cancels the turn under way; it is no error if there is none.
func (c *Client) Cancel(ctx context.Context, ref string) error {
	return c.call(ctx, methodCancel, refParams{Session: ref}, nil)
}

// CancelTurn cancels the turn of that name if it is still under way.
func (c *Client) CancelTurn(ctx context.Context, ref, name string) error {
	return c.call(ctx, methodCancel, refParams{Session: ref, Turn: name}, nil)
}

// SetModel selects the model profile of the next turns.
func (c *Client) SetModel(ctx context.Context, ref, profile string) error {
	return c.call(ctx, methodModel, refParams{Session: ref, Model: profile}, nil)
}

// ExportPatch asks the guest for its patch.
func (c *Client) ExportPatch(ctx context.Context, ref string) (p turnrpc.PatchResult, err error) {
	err = c.call(ctx, methodPatch, refParams{Session: ref}, &p)
	return p, err
}

// Pending lists the requests that wait, oldest first.
func (c *Client) Pending(ctx context.Context) (list []approval.Request, err error) {
	err = c.call(ctx, methodPending, none{}, &list)
	return list, err
}

// Answer answers a request; a late one gets approval.ErrAnswered. The server
// adds to By who the client is.
func (c *Client) Answer(ctx context.Context, id string, a approval.Answer) error {
	return c.call(ctx, methodAnswer, answerParams{ID: id, Answer: a}, nil)
}

// Rules lists the rules of this workspace and of open sessions.
func (c *Client) Rules(ctx context.Context) (list []approval.Rule, err error) {
	err = c.call(ctx, methodRules, none{}, &list)
	return list, err
}

// RemoveRule removes a rule by its id.
func (c *Client) RemoveRule(ctx context.Context, id string) error {
	return c.call(ctx, methodRemRule, idParams{ID: id}, nil)
}

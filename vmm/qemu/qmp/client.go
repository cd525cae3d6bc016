// Package qmp speaks QEMU's machine protocol over a connected stream: one JSON object a line, commands with ids,
// events in between. What the peer sends is bounded and never trusted: a QEMU that a guest broke out of is a liar.
package qmp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// MaxMessage is the longest line accepted, in bytes.
const MaxMessage = 1 << 20

// ErrClosed says that the connection has ended, usually because QEMU has.
var ErrClosed = errors.New("QEMU's control connection is closed")

// Error is QEMU's refusal of a command.
type Error struct {
	Command string
	Class   string `json:"class"`
	Desc    string `json:"desc"`
}

func (e *Error) Error() string { return fmt.Sprintf("QEMU refused %s: %s", e.Command, e.Desc) }

// Event is something QEMU tells unasked.
type Event struct {
	Name string
	Data json.RawMessage
}

// Client is one QMP connection. Its methods may be called concurrently.
type Client struct {
	conn  net.Conn
	event func(Event)

	mu      sync.Mutex
	next    uint64
	pending map[uint64]chan message
	err     error // why it ended
	writing sync.Mutex
	done    chan struct{}
}

type message struct {
	QMP    json.RawMessage `json:"QMP"`
	ID     *uint64         `json:"id"`
	Return json.RawMessage `json:"return"`
	Error  *Error          `json:"error"`
	Event  string          `json:"event"`
	Data   json.RawMessage `json:"data"`
}

// New takes over conn, waits for QEMU's greeting and negotiates. event is called for each event, in order, by one
// goroutine that lives until the connection ends; it must not block. On error conn is closed.
func New(ctx context.Context, conn net.Conn, event func(Event)) (*Client, error) {
	c := &Client{conn: conn, event: event, pending: map[uint64]chan message{}, done: make(chan struct{})}
	greeted := make(chan struct{})
	go c.read(greeted)
	err := func() error {
		select {
		case <-greeted:
		case <-c.done:
			return fmt.Errorf("no greeting from QEMU: %w", c.Err())
		case <-ctx.Done():
			return fmt.Errorf("wait for QEMU's greeting: %w", ctx.Err())
		}
		return c.Do(ctx, "qmp_capabilities", nil, nil)
	}()
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Do runs a command. args (nil = none) is marshalled, the answer is unmarshalled into out unless that is nil.
func (c *Client) Do(ctx context.Context, command string, args, out any) error {
	answer := make(chan message, 1)
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return fmt.Errorf("%s: %w", command, c.err)
	}
	c.next++
	id := c.next
	c.pending[id] = answer
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.pending, id)
		c.mu.Unlock()
	}()

	if err := c.send(ctx, command, args, id); err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	select {
	case m := <-answer:
		if m.Error != nil {
			m.Error.Command = command
			return m.Error
		}
		if out == nil {
			return nil
		}
		if err := json.Unmarshal(m.Return, out); err != nil {
			return fmt.Errorf("%s: QEMU's answer: %w", command, err)
		}
		return nil
	case <-c.done:
		return fmt.Errorf("%s: %w", command, c.Err())
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", command, ctx.Err())
	}
}

func (c *Client) send(ctx context.Context, command string, args any, id uint64) error {
	line, err := json.Marshal(struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
		ID        uint64 `json:"id"`
	}{command, args, id})
	if err != nil {
		return err
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	deadline, ok := ctx.Deadline()
	if limit := time.Now().Add(10 * time.Second); !ok || deadline.After(limit) {
		deadline = limit
	}
	if err := c.conn.SetWriteDeadline(deadline); err != nil {
		return ErrClosed
	}
	if _, err := c.conn.Write(append(line, '\n')); err != nil {
		// A half-written command leaves nothing that the next one could follow.
		c.conn.Close()
		return fmt.Errorf("%w (%v)", ErrClosed, err)
	}
	return nil
}

func (c *Client) read(greeted chan struct{}) {
	err := c.readLines(greeted)
	c.conn.Close()
	c.mu.Lock()
	c.err = ErrClosed
	if err != nil {
		c.err = fmt.Errorf("%w: %w", ErrClosed, err)
	}
	c.mu.Unlock()
	close(c.done)
}

func (c *Client) readLines(greeted chan struct{}) error {
	lines := bufio.NewScanner(c.conn)
	lines.Buffer(make([]byte, 0, 4<<10), MaxMessage)
	greeting := true
	for lines.Scan() {
		var m message
		if len(lines.Bytes()) == 0 {
			continue
		}
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			return fmt.Errorf("QEMU sent what is no QMP: %w", err)
		}
		switch {
		case greeting:
			if m.QMP == nil {
				return errors.New("QEMU's first message is no greeting")
			}
			greeting = false
			close(greeted)
		case m.Event != "":
			c.event(Event{m.Event, m.Data})
		case m.ID != nil:
			c.mu.Lock()
			answer := c.pending[*m.ID]
			delete(c.pending, *m.ID)
			c.mu.Unlock()
			if answer != nil {
				answer <- m // holds one
			}
		case m.Error != nil:
			return fmt.Errorf("QEMU did not understand: %s", m.Error.Desc)
		}
	}
	if err := lines.Err(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// Done is closed when the connection has ended and no event follows.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err is why the connection ended: ErrClosed, with more where there is more to say. Nil while it lives.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the connection and waits for its goroutine.
func (c *Client) Close() {
	c.conn.Close()
	<-c.done
}

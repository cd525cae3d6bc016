package agentclient

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Pool keeps connections to one sandbox for a user that outlives them, such
// as a mount. A connection that is lost is dialled again by the next Get, and
// one that has used up most of its correlation ids is replaced by a fresh one
// before they run out. Safe for concurrent use.
type Pool struct {
	o    PoolOptions
	ctx  context.Context // ends with Close
	stop context.CancelFunc
	work sync.WaitGroup

	mu     sync.Mutex
	closed bool
	next   int
	slots  []slot
	old    map[*Client]struct{} // replaced, still in use by open handles
}

// PoolOptions describe a Pool.
type PoolOptions struct {
	// Dial opens one connection. Required.
	Dial func(ctx context.Context) (*Client, error)
	// Size is how many connections are used in turn; 1 when zero. They are
	// dialled when they are first needed.
	Size int
	// Renew is how many ids a connection must have left to be handed out; half
	// of its range when zero. The other half is for handles that stay open on it.
	Renew uint64
	// DialTimeout bounds one Dial; 10 s when zero.
	DialTimeout time.Duration
	// Linger is how long a replaced connection without work and handles is
	// kept for users who got it a moment ago; 30 s when zero.
	Linger time.Duration
}

// slot is one of the pool's connections.
type slot struct {
	c        *Client
	dialling *dialling
	failed   time.Time // of the last dial, when that failed
}

// dialling is a dial under way that several callers wait for.
type dialling struct {
	done chan struct{}
	c    *Client
	err  error
}

// ErrPoolClosed is returned by Get after Close.
var ErrPoolClosed = errors.New("connection pool closed")

// NewPool returns a pool that has dialled nothing yet.
func NewPool(o PoolOptions) *Pool {
	o.Size = max(o.Size, 1)
	if o.DialTimeout <= 0 {
		o.DialTimeout = 10 * time.Second
	}
	if o.Linger <= 0 {
		o.Linger = 30 * time.Second
	}
	ctx, stop := context.WithCancel(context.Background())
	return &Pool{o: o, ctx: ctx, stop: stop, slots: make([]slot, o.Size), old: map[*Client]struct{}{}}
}

// Get returns a live connection, dialling if there is none; it does not retry
// a dial that fails. Use the connection for the operation at hand and call Get
// again for the next one: a connection that was replaced is closed some time
// after its last operation ended and its last handle was closed. Handles stay
// with the connection that opened them; File.Client tells which.
func (p *Pool) Get(ctx context.Context) (*Client, error) {
	d, c, err := p.pick()
	if d == nil {
		return c, err
	}
	select {
	case <-d.done:
		if d.err != nil && c != nil {
			return c, nil
		}
		return d.c, d.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// pick takes the next slot: its connection, or the dial to wait for and the
// worn connection that may be used if that fails.
func (p *Pool) pick() (*dialling, *Client, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, nil, ErrPoolClosed
	}
	s := &p.slots[p.next]
	p.next = (p.next + 1) % len(p.slots)
	if s.c != nil && s.c.Err() != nil {
		s.c = nil
	}
	left := uint64(0)
	if s.c != nil {
		left = s.c.engine.IDsLeft()
	}
	renew := p.renew(s.c)
	if left >= renew || left > 0 && time.Since(s.failed) < time.Second {
		return nil, s.c, nil // a dial that failed a moment ago is not repeated yet
	}
	if s.dialling == nil {
		s.dialling = &dialling{done: make(chan struct{})}
		p.work.Add(1)
		go p.dial(s, s.dialling)
	}
	switch {
	case left > renew/2:
		return nil, s.c, nil // good enough until the fresh one is there
	case left > 0:
		return s.dialling, s.c, nil
	}
	return s.dialling, nil, nil
}

// renew returns how many ids c must have left to be handed out.
func (p *Pool) renew(c *Client) uint64 {
	switch {
	case c == nil:
		return 1
	case p.o.Renew > 0:
		return p.o.Renew
	}
	return max(uint64(c.ready.IDEnd-c.ready.IDStart)/2, 1)
}

func (p *Pool) dial(s *slot, d *dialling) {
	defer p.work.Done()
	ctx, cancel := context.WithTimeout(p.ctx, p.o.DialTimeout)
	defer cancel()
	c, err := p.o.Dial(ctx)

	p.mu.Lock()
	defer close(d.done)
	defer p.mu.Unlock()
	s.dialling = nil
	if p.closed && err == nil {
		_ = c.Close()
		c, err = nil, ErrPoolClosed
	}
	if err != nil {
		s.failed = time.Now()
		d.err = fmt.Errorf("connect to the sandbox: %w", err)
		return
	}
	d.c = c
	if s.c != nil {
		p.retire(s.c)
	}
	s.c = c
}

// retire waits for the end of a replaced connection's work and closes it.
func (p *Pool) retire(c *Client) {
	p.old[c] = struct{}{}
	p.work.Add(1)
	go func() {
		defer p.work.Done()
		p.waitIdle(c)
		_ = c.Close()
		p.mu.Lock()
		delete(p.old, c)
		p.mu.Unlock()
	}()
}

// waitIdle returns when c has had nothing to do at two looks in a row, or is
// lost, or the pool ends.
func (p *Pool) waitIdle(c *Client) {
	t := time.NewTicker(p.o.Linger / 2)
	defer t.Stop()
	left, idle := c.engine.IDsLeft(), 0
	for idle < 2 {
		select {
		case <-t.C:
		case <-c.Done():
			return
		case <-p.ctx.Done():
			return
		}
		now := c.engine.IDsLeft()
		if c.busy() || now != left {
			idle = 0
		} else {
			idle++
		}
		left = now
	}
}

// Close closes every connection of the pool, those in use included, and waits
// until nothing of it runs any more.
func (p *Pool) Close() error {
	p.mu.Lock()
	p.closed = true
	var open []*Client
	for i := range p.slots {
		if c := p.slots[i].c; c != nil {
			open = append(open, c)
		}
	}
	for c := range p.old {
		open = append(open, c)
	}
	p.mu.Unlock()
	p.stop()
	for _, c := range open {
		_ = c.Close()
	}
	p.work.Wait()
	return nil
}

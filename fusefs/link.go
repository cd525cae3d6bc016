package fusefs

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"msb/agentclient"
)

const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = time.Second
	swapLimit  = 100 * time.Millisecond
	lookEvery  = 10 * time.Millisecond // a connection has ids left for much longer than this
)

// DialFunc opens a connection to the sandbox. It is called again, with back-off
// and in the background, whenever the connection is lost, and when a connection
// has used up its correlation ids.
type DialFunc func(ctx context.Context) (*agentclient.Client, error)

// link holds the connection. While there is none it says so at once.
type link struct {
	pool *agentclient.Pool
	log  *slog.Logger

	mu      sync.Mutex
	client  *agentclient.Client // nil: none
	swapped chan struct{}       // closed when client was replaced by a fresher one
	join    joinFunc            // may be nil

	looked atomic.Int64 // when the pool was asked last whether to renew the connection
}

// joinFunc makes a fresh connection usable.
type joinFunc func(ctx context.Context, c *agentclient.Client) error

// setJoin says what to do with connections from now on.
func (l *link) setJoin(join joinFunc) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.join = join
}

// connect dials for the first time.
func connect(ctx context.Context, dial DialFunc, log *slog.Logger) (*link, error) {
	l := &link{log: log}
	l.pool = agentclient.NewPool(agentclient.PoolOptions{Dial: func(ctx context.Context) (*agentclient.Client, error) {
		c, err := dial(ctx)
		l.mu.Lock()
		join := l.join
		l.mu.Unlock()
		if err == nil && join != nil {
			if err = join(ctx, c); err != nil {
				c.Close()
			}
		}
		if err != nil {
			return nil, err
		}
		return c, nil
	}})
	c, err := l.pool.Get(ctx)
	if err != nil {
		l.pool.Close()
		return nil, err
	}
	l.set(c)
	return l, nil
}

// get returns the connection or ENOTCONN.
func (l *link) get() (*agentclient.Client, error) {
	c := l.current()
	if c == nil || ended(c) {
		return nil, syscall.ENOTCONN
	}
	now := time.Now().UnixNano()
	if at := l.looked.Load(); now-at < int64(lookEvery) || !l.looked.CompareAndSwap(at, now) {
		return c, nil
	}
	ctx, stop := context.WithTimeout(context.Background(), swapLimit)
	defer stop()
	fresh, err := l.pool.Get(ctx)
	if err != nil {
		return nil, syscall.ENOTCONN
	}
	if fresh != c {
		l.set(fresh)
	}
	return fresh, nil
}

func (l *link) up() bool {
	c := l.current()
	return c != nil && !ended(c)
}

func (l *link) current() *agentclient.Client {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.client
}

// now returns the connection, which may be nil, and what is closed when there is
// another one.
func (l *link) now() (*agentclient.Client, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.client, l.swapped
}

func (l *link) set(c *agentclient.Client) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.swapped != nil {
		close(l.swapped)
	}
	l.client, l.swapped = c, make(chan struct{})
}

// run keeps the link up until ctx ends, then closes it.
func (l *link) run(ctx context.Context) {
	defer l.pool.Close()
	for {
		l.mu.Lock()
		c, swapped := l.client, l.swapped
		l.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-swapped:
			continue
		case <-c.Done():
		}
		if l.current() != c {
			continue
		}
		l.set(nil)
		l.log.Warn("connection to the sandbox lost: files answer ENOTCONN until it is back", "error", c.Err())
		if c = l.redial(ctx); c == nil {
			return
		}
		l.set(c)
		l.log.Info("connection to the sandbox is back")
	}
}

// redial tries until it has a connection or ctx ends.
func (l *link) redial(ctx context.Context) *agentclient.Client {
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		c, err := l.pool.Get(ctx)
		if err == nil {
			return c
		}
		l.log.Debug("sandbox not reachable", "error", err)
	}
}

// ended tells that c is of no more use. Its streams fail before Done is closed.
func ended(c *agentclient.Client) bool { return c.Err() != nil }

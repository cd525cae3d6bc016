package fusefs

import (
	"context"
	"log/slog"
	"sync"
	"syscall"
	"time"

	"msb/agentclient"
)

const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = time.Second
	dialLimit  = 10 * time.Second
)

// DialFunc opens a connection to the sandbox. It is called again, with back-off
// and in the background, whenever the connection is lost.
type DialFunc func(ctx context.Context) (*agentclient.Client, error)

// link holds the connection. While there is none it says so at once.
type link struct {
	dial DialFunc
	log  *slog.Logger

	mu     sync.Mutex
	client *agentclient.Client
}

// connect dials for the first time.
func (l *link) connect(ctx context.Context) error {
	c, err := l.dial(ctx)
	if err != nil {
		return err
	}
	l.set(c)
	return nil
}

// get returns the connection or ENOTCONN.
func (l *link) get() (*agentclient.Client, error) {
	l.mu.Lock()
	c := l.client
	l.mu.Unlock()
	if c == nil || ended(c) {
		return nil, syscall.ENOTCONN
	}
	return c, nil
}

func (l *link) up() bool {
	_, err := l.get()
	return err == nil
}

func (l *link) set(c *agentclient.Client) {
	l.mu.Lock()
	l.client = c
	l.mu.Unlock()
}

// run keeps the link up until ctx ends, then closes it.
func (l *link) run(ctx context.Context) {
	for {
		l.mu.Lock()
		c := l.client
		l.mu.Unlock()
		select {
		case <-ctx.Done():
			c.Close()
			return
		case <-c.Done():
		}
		l.set(nil)
		c.Close()
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
		bounded, stop := context.WithTimeout(ctx, dialLimit)
		c, err := l.dial(bounded)
		stop()
		if err == nil {
			if ctx.Err() != nil {
				c.Close()
				return nil
			}
			return c
		}
		l.log.Debug("sandbox not reachable", "error", err)
	}
}

// ended tells that c is of no more use. Its streams fail before Done is closed.
func ended(c *agentclient.Client) bool { return c.Err() != nil }

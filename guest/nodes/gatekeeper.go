package nodes

import (
	"net"
	"sync"

	"msb/protocol/blocking"
)

// maxDirect bounds the direct connections.
const maxDirect = 128

// gatekeeper knows the direct connections, and lets their requests pass or not.
type gatekeeper struct {
	mu       sync.Mutex
	changed  sync.Cond
	listener net.Listener
	conns    map[*blocking.Conn]struct{}
	running  int // requests under way
	held     bool
	closed   bool
}

func (g *gatekeeper) init() {
	g.changed.L = &g.mu
	g.conns = make(map[*blocking.Conn]struct{})
}

// open takes the listener; false means that the service is closed.
func (g *gatekeeper) open(l net.Listener) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.listener = l
	return !g.closed
}

func (g *gatekeeper) add(c *blocking.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed || len(g.conns) >= maxDirect {
		return false
	}
	g.conns[c] = struct{}{}
	return true
}

func (g *gatekeeper) remove(c *blocking.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.conns, c)
	c.Close()
}

// enter waits until a request may begin; false means that none may any more.
func (g *gatekeeper) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.held && !g.closed {
		g.changed.Wait()
	}
	if g.closed {
		return false
	}
	g.running++
	return true
}

func (g *gatekeeper) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running--
	if g.running == 0 && g.held {
		g.changed.Broadcast()
	}
}

func (g *gatekeeper) hold() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held = true
	for g.running > 0 && g.held && !g.closed {
		g.changed.Wait()
	}
}

func (g *gatekeeper) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held = false
	g.changed.Broadcast()
}

func (g *gatekeeper) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	if g.listener != nil {
		g.listener.Close()
	}
	for c := range g.conns {
		c.Shutdown() // its goroutine closes it
	}
	g.changed.Broadcast()
}

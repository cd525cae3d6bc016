package agentclient

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"msb/protocol/agent"
	"msb/protocol/client"
)

const (
	// maxDirects is how many requests of one connection may be under way on
	// direct connections; more take the way through the relay.
	maxDirects = 16
	// directDial bounds the opening of a direct connection.
	directDial = time.Second
	// directRetry is how long none is opened after one could not be.
	directRetry = time.Second
	// directTouch is how often the relay hears of the use of direct
	// connections, which it does not see.
	directTouch = time.Second
)

// directs are the direct connections of a client, opened as they are needed.
type directs struct {
	c       *Client
	dial    func(ctx context.Context) (net.Conn, error)
	session []byte
	touched atomic.Int64

	mu     sync.Mutex
	idle   []*direct // the one used last at the end
	all    map[*direct]struct{}
	coming int // being opened
	failed time.Time
	closed bool
	work   sync.WaitGroup
}

// UseDirect makes further requests go to the guest on connections of their own
// where they can: those without streams and without waits. dial opens such a
// connection, session names the table that this client uses (agent.NodeSession).
// What cannot be had that way, for a time or at all, goes through the relay. The
// connections end with the client.
func (n *Nodes) UseDirect(session []byte, dial func(ctx context.Context) (net.Conn, error)) {
	ds := &directs{c: n.c, dial: dial, session: session, all: map[*direct]struct{}{}}
	if !n.c.directs.CompareAndSwap(nil, ds) {
		return
	}
	ds.work.Add(1)
	go func() {
		defer ds.work.Done()
		<-n.c.Done()
		ds.close()
	}()
}

// close ends all connections.
func (ds *directs) close() {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	ds.closed = true
	for d := range ds.all {
		d.conn.Shutdown() // who uses it closes it
	}
	for _, d := range ds.idle {
		d.conn.Close()
	}
	ds.idle = nil
}

// wait returns when nothing of the connections runs any more, after close.
func (ds *directs) wait() {
	if ds != nil {
		ds.work.Wait()
	}
}

// take returns a connection for one request, nil when there is none to be had.
func (ds *directs) take(ctx context.Context) *direct {
	if ds == nil || ctx.Err() != nil {
		return nil
	}
	ds.mu.Lock()
	if n := len(ds.idle); n > 0 {
		d := ds.idle[n-1]
		ds.idle = ds.idle[:n-1]
		ds.mu.Unlock()
		ds.touch()
		return d
	}
	if ds.closed || len(ds.all)+ds.coming >= maxDirects || time.Since(ds.failed) < directRetry {
		ds.mu.Unlock()
		return nil
	}
	ds.coming++
	ds.work.Add(1)
	ds.mu.Unlock()
	defer ds.work.Done()
	return ds.open(ctx)
}

// usable tells whether take may find a connection.
func (ds *directs) usable() bool {
	if ds == nil {
		return false
	}
	ds.mu.Lock()
	defer ds.mu.Unlock()
	return !ds.closed && (len(ds.all) > 0 || time.Since(ds.failed) >= directRetry)
}

// open makes a connection.
func (ds *directs) open(ctx context.Context) *direct {
	ctx, stop := context.WithTimeout(ctx, directDial)
	defer stop()
	var d *direct
	conn, err := ds.dial(ctx)
	if err == nil {
		d, err = newDirect(ds, conn)
	}
	ds.mu.Lock()
	ds.coming--
	if err != nil || ds.closed {
		ds.failed = time.Now()
		ds.mu.Unlock()
		if err == nil {
			d.conn.Close()
		}
		return nil
	}
	ds.all[d] = struct{}{}
	ds.mu.Unlock()
	if err := d.join(ctx, ds.session); err != nil {
		ds.mu.Lock()
		ds.failed = time.Now()
		ds.mu.Unlock()
		return nil
	}
	ds.touch()
	return d
}

// put takes a connection back whose answer has been read.
func (ds *directs) put(d *direct) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	if ds.closed {
		d.conn.Close()
		return
	}
	ds.idle = append(ds.idle, d)
}

// drop ends a connection.
func (ds *directs) drop(d *direct) {
	d.conn.Close()
	ds.mu.Lock()
	defer ds.mu.Unlock()
	delete(ds.all, d)
}

// touch tells the relay that the sandbox is in use.
func (ds *directs) touch() {
	now := time.Now().UnixNano()
	if at := ds.touched.Load(); now-at < int64(directTouch) || !ds.touched.CompareAndSwap(at, now) {
		return
	}
	if s, err := ds.c.engine.Subscribe(ignore{}); err == nil {
		ds.c.post(s.ID(), client.Control, agent.Touch, agent.Empty{})
		s.Close()
	}
}

// fit tells whether operations may go on a direct connection: not those that
// take their time by design.
func fit(ops []agent.NodeOp) bool {
	for _, op := range ops {
		switch op := op.(type) {
		case *agent.NodeReadStream, *agent.NodeWriteStream, *agent.NodeSync, *agent.NodeSyncFS, *agent.NodeJoin:
			return false
		case *agent.NodeLock:
			if op.Wait {
				return false
			}
		}
	}
	return len(ops) > 0
}

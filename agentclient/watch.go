package agentclient

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"syscall"

	"msb/protocol/agent"
	"msb/protocol/client"
)

// Watch is a feed of the changes of a file system of the guest, the extension msb.fs.watch. Close has to be called.
type Watch struct {
	c       *Client
	s       *client.Stream
	started chan struct{} // closed when the watch has begun or never will
	dev     uint64
	queue   chan agent.WatchEventsPayload
	done    chan struct{} // closed when no more will come

	mu    sync.Mutex
	begun bool
	over  bool
	err   error
}

// errWatchClosed is what Next returns after Close.
var errWatchClosed = fmt.Errorf("watch: %w", syscall.ECANCELED)

// Watch begins to watch the file system that a node of this connection, a directory, is on. Every change after its
// return is told, but for those that this connection's own table made. The error is a *NotOfferedError when the guest
// does not serve it, and has an errno when it cannot.
func (n *Nodes) Watch(ctx context.Context, node agent.NodeRef) (*Watch, error) {
	c := n.c
	if err := c.ready.EnsureVersionCompat(agent.WatchRequest); err != nil {
		return nil, err
	}
	w := &Watch{
		c:       c,
		started: make(chan struct{}),
		queue:   make(chan agent.WatchEventsPayload, agent.WatchWindow),
		done:    make(chan struct{}),
	}
	s, err := c.engine.Subscribe(w)
	if err != nil {
		return nil, err
	}
	w.s = s
	if err := c.send(ctx, s, client.Control, agent.WatchRequest, agent.WatchRequestPayload{Node: node}); err != nil {
		s.Close()
		return nil, err
	}
	select {
	case <-w.started:
	case <-ctx.Done():
		w.Close()
		return nil, context.Cause(ctx)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.begun {
		return nil, w.err
	}
	return w, nil
}

// Dev is the device number in the attributes of the files that are watched.
func (w *Watch) Dev() uint64 { return w.dev }

// Next returns the next message. One comes every agent.WatchPulse at least, so ctx should not be shorter than several
// of them. Seen has to follow.
func (w *Watch) Next(ctx context.Context) (agent.WatchEventsPayload, error) {
	select {
	case p := <-w.queue:
		return p, nil
	default:
	}
	select {
	case p := <-w.queue:
		return p, nil
	case <-w.done:
		select { // what came before the end
		case p := <-w.queue:
			return p, nil
		default:
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		return agent.WatchEventsPayload{}, w.err
	case <-ctx.Done():
		return agent.WatchEventsPayload{}, context.Cause(ctx)
	}
}

// Seen tells the guest that everything up to a message has been acted on.
func (w *Watch) Seen(ctx context.Context, seq uint64) error {
	return w.c.send(ctx, w.s, client.Control, agent.WatchSeen, agent.WatchSeenPayload{Seq: seq})
}

// Close ends the watch. It does not wait for the guest.
func (w *Watch) Close() {
	if w.finish(errWatchClosed) {
		w.c.post(w.s.ID(), client.Control, agent.WatchCancel, agent.WatchCancelPayload{})
	}
}

// finish ends the watch here; false when it has ended.
func (w *Watch) finish(err error) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return false
	}
	w.over, w.err = true, err
	if !w.begun {
		close(w.started)
	}
	close(w.done)
	return true
}

func (w *Watch) Lost(err *client.LostError) { w.finish(err) }

// Frame takes what the guest sends, on the connection's reader.
func (w *Watch) Frame(h client.Header, body *client.Body) {
	m, err := w.c.open(h, body)
	if err == nil {
		err = w.take(h.ID, m)
	}
	if err != nil && w.finish(err) && !h.Terminal() {
		w.c.post(h.ID, client.Control, agent.WatchCancel, agent.WatchCancelPayload{})
	}
}

// take returns the error that ends the watch.
func (w *Watch) take(id uint32, m received) error {
	switch m.t {
	case agent.WatchStarted:
		var p agent.WatchStartedPayload
		if err := agent.DecodePayload(m.p, &p); err != nil {
			return &ProtocolError{ID: id, Problem: err.Error()}
		}
		return w.begin(id, m, p.Dev)
	case agent.WatchEvents:
		var p agent.WatchEventsPayload
		if err := agent.DecodePayload(bytes.Clone(m.p), &p); err != nil {
			return &ProtocolError{ID: id, Problem: err.Error()}
		}
		select {
		case w.queue <- p:
			return nil
		default:
			return &ProtocolError{ID: id, Problem: "more events than the window allows"}
		}
	case agent.WatchEnded:
		var p agent.WatchEndedPayload
		if err := agent.DecodePayload(m.p, &p); err != nil {
			return &ProtocolError{ID: id, Problem: err.Error()}
		}
		errno := syscall.Errno(p.Errno)
		if errno == 0 || errno > 4095 {
			errno = syscall.EIO
		}
		return &NodeError{Op: "watch", Errno: errno, Message: p.Message}
	case agent.Error:
		return agentError(id, m.p)
	}
	return unexpected(id, m)
}

func (w *Watch) begin(id uint32, m received, dev uint64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.begun || w.over {
		return unexpected(id, m)
	}
	w.begun, w.dev = true, dev
	close(w.started)
	return nil
}

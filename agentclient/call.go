package agentclient

import (
	"bytes"
	"context"
	"sync"

	"msb/protocol/agent"
	"msb/protocol/client"
)

// call sends one message and waits for the terminal answer, whose payload it
// returns. orphan, if any, is called on the connection's reader with the
// payload of an answer that came after the caller had gone.
func (c *Client) call(ctx context.Context, t agent.Type, payload any, want agent.Type, orphan func([]byte)) ([]byte, error) {
	k := &call{c: c, want: want, orphan: orphan, done: make(chan struct{})}
	s, err := c.engine.Subscribe(k)
	if err != nil {
		return nil, err
	}
	if err := c.send(ctx, s, client.Control, t, payload); err != nil {
		s.Close()
		return nil, err
	}
	select {
	case <-k.done:
		return k.answer, k.err
	case <-ctx.Done():
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.over {
		return k.answer, k.err
	}
	if orphan == nil {
		s.Close()
	}
	k.left = true
	return nil, context.Cause(ctx)
}

type call struct {
	c      *Client
	want   agent.Type
	orphan func([]byte)
	done   chan struct{}

	mu     sync.Mutex
	left   bool // the caller has gone
	over   bool
	answer []byte
	err    error
}

func (k *call) Frame(h client.Header, body *client.Body) {
	if !h.Terminal() {
		return
	}
	m, err := k.c.open(h, body)
	switch {
	case err != nil:
	case m.t == agent.Error:
		err = agentError(h.ID, m.p)
	case m.t != k.want:
		err = unexpected(h.ID, m)
	}
	if err != nil {
		k.finish(nil, err)
		return
	}
	k.finish(bytes.Clone(m.p), nil)
}

func (k *call) Lost(err *client.LostError) { k.finish(nil, err) }

func (k *call) finish(answer []byte, err error) {
	k.mu.Lock()
	left := k.left
	k.over, k.answer, k.err = true, answer, err
	k.mu.Unlock()
	close(k.done)
	if left && err == nil && k.orphan != nil {
		k.orphan(answer)
	}
}

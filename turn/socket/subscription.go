package socket

import (
	"context"
	"errors"
	"io"
	"sync/atomic"

	"msb/turn"
	"msb/turn/approval"
)

// subscription asks the server for batches, one ahead of what is used.
type subscription struct {
	c     *Client
	id    uint64
	next  *call
	err   error
	ended atomic.Bool
}

func (c *Client) subscribe(ctx context.Context, method string, params any) (*subscription, error) {
	var s subParams
	if err := c.call(ctx, method, params, &s); err != nil {
		return nil, err
	}
	return &subscription{c: c, id: s.Sub}, nil
}

// batch waits for the next batch. When ctx ends nothing is lost: the batch is
// for the next call.
func (s *subscription) batch(ctx context.Context, ahead bool) (b batch, err error) {
	if s.err != nil {
		return b, s.err
	}
	if s.next == nil {
		if s.next, s.err = s.c.start(methodNext, subParams{Sub: s.id}); s.err != nil {
			return b, s.err
		}
	}
	if err := s.next.wait(ctx, &b); err != nil {
		if ctx.Err() != nil {
			return b, err
		}
		if s.err = err; s.ended.Load() {
			s.err = io.EOF
		}
		return b, s.err
	}
	s.next = nil
	if b.End {
		s.err = io.EOF
		if b.Err != "" {
			s.err = errors.New(b.Err)
		}
		return b, s.err
	}
	if ahead {
		s.next, s.err = s.c.start(methodNext, subParams{Sub: s.id})
	}
	return b, nil
}

func (s *subscription) close() error {
	if s.ended.Swap(true) {
		return nil
	}
	if k, err := s.c.start(methodEnd, subParams{Sub: s.id}); err == nil {
		k.wait(context.Background(), nil)
	}
	return nil
}

// Events is a subscription. It is used by one goroutine; Close may be called by
// another one.
type Events struct {
	s    *subscription
	have []turn.Event
}

// Subscribe delivers the events after seq from: those of the past from the
// transcript, then live ones, also of later resumes. A client that is slow is
// waited for; nothing is lost and nothing piles up.
func (c *Client) Subscribe(ctx context.Context, ref string, from uint64) (*Events, error) {
	s, err := c.subscribe(ctx, methodEvents, refParams{Session: ref, From: from})
	if err != nil {
		return nil, err
	}
	return &Events{s: s}, nil
}

// Next waits for the next event; io.EOF after Close and when the session was
// removed.
func (e *Events) Next(ctx context.Context) (turn.Event, error) {
	for len(e.have) == 0 {
		b, err := e.s.batch(ctx, true)
		if err != nil {
			return turn.Event{}, err
		}
		e.have = b.Events
	}
	first := e.have[0]
	e.have = e.have[1:]
	return first, nil
}

// Close ends the subscription.
func (e *Events) Close() error { return e.s.close() }

// Approvals is a watch over the gate, used by one goroutine like Events.
type Approvals struct{ s *subscription }

// Approvals watches the requests that wait. A client that may answer
// (approver) counts as someone to ask for as long as the watch is open.
func (c *Client) Approvals(ctx context.Context, approver bool) (*Approvals, error) {
	s, err := c.subscribe(ctx, methodApprovals, watchParams{Approver: approver})
	if err != nil {
		return nil, err
	}
	return &Approvals{s: s}, nil
}

// Next waits until the requests that wait have changed and returns them, oldest
// first. The first call returns at once.
func (a *Approvals) Next(ctx context.Context) ([]approval.Request, error) {
	b, err := a.s.batch(ctx, false)
	return b.Requests, err
}

// Close ends the watch.
func (a *Approvals) Close() error { return a.s.close() }

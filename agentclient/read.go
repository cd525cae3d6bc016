package agentclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"

	"msb/protocol/agent"
	"msb/protocol/client"
	"msb/protocol/frame"
)

// streamed is a file that a transfer reads or writes, by core.fs or msb.fs.
type streamed interface {
	// request builds the message that begins the transfer op, "read" or "write".
	request(op string, off uint64, length *uint64, offer *agent.BulkOffer) (agent.Type, any)
	// answer is the type of the message that ends it and result reads that.
	answer() agent.Type
	result(id uint32, op string, p []byte) error
}

// transfer is the common part of file reads and writes: one request that ends
// with one response, in raw bulk when it was offered and accepted.
type transfer struct {
	c       *Client
	f       streamed
	op      string
	s       *client.Stream
	offered bool // holds one of the connection's bulk operations until the end
	wake    chan struct{}

	mu       sync.Mutex
	accepted bool
	dead     bool  // the caller has gone or the guest broke the rules
	over     bool  // the terminal answer, or the loss of the connection, is here
	err      error // of the answer, or what the guest did wrong
}

func (t *transfer) signal() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// start sends the request.
func (t *transfer) start(ctx context.Context, h client.Handler, off int64, length *uint64, offer *agent.BulkOffer) error {
	if err := t.subscribe(h); err != nil {
		return err
	}
	typ, payload := t.f.request(t.op, uint64(off), length, offer)
	err := t.c.send(ctx, t.s, client.Control, typ, payload)
	if err != nil {
		t.unsubscribe()
	}
	return err
}

func (t *transfer) subscribe(h client.Handler) (err error) {
	if t.s, err = t.c.engine.Subscribe(h); err != nil {
		t.release()
	}
	return err
}

// unsubscribe takes a transfer back whose request was not sent.
func (t *transfer) unsubscribe() {
	t.s.Close()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.release()
}

// release gives the bulk operation back, once.
func (t *transfer) release() {
	if t.offered {
		t.offered = false
		t.c.freeBulk()
	}
}

// fail notes what the guest did wrong. The caller hears of it and gives up.
func (t *transfer) fail(id uint32, err error) {
	t.dead, t.err = true, broken(id, t.op, err)
	t.signal()
}

// end takes the terminal answer.
func (t *transfer) end(h client.Header, m received, err error) {
	if err == nil {
		switch m.t {
		case t.f.answer():
			err = t.f.result(h.ID, t.op, m.p)
		case agent.Error:
			err = agentError(h.ID, m.p)
		default:
			err = unexpected(h.ID, m)
		}
	}
	if !t.dead {
		t.err = err
	}
	t.over = true
	t.release()
	t.signal()
}

// Lost ends the transfer with the connection.
func (t *transfer) Lost(err *client.LostError) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.dead {
		t.err = err
	}
	t.over = true
	t.release()
	t.signal()
}

// leave is called by a caller who does not wait for the end. A bulk operation
// is cancelled and keeps its route until the guest has answered, as the relay
// counts it until then. ln is the lane of the last thing sent.
func (t *transfer) leave(ln client.Lane, reason uint8, message string) {
	t.mu.Lock()
	t.dead = true
	over, offered := t.over, t.offered
	t.mu.Unlock()
	switch {
	case over:
	case offered:
		t.c.post(t.s.ID(), ln, agent.BulkCancel, agent.BulkCancelPayload{Kind: frame.BulkFilesystem, Reason: reason, Message: message})
	default:
		t.s.Close()
	}
}

// read reads len(p) bytes at off.
func (c *Client) read(ctx context.Context, f streamed, p []byte, off int64, bulk bool) (n int, accepted bool, err error) {
	want := uint64(len(p))
	r := c.newReading(f, bulk, want)
	r.p = p
	err = r.run(ctx, off, &want, func() error { return nil })
	r.mu.Lock()
	defer r.mu.Unlock()
	r.p = nil
	if err != nil {
		return 0, r.accepted, err
	}
	if r.n < len(p) {
		err = io.EOF
	}
	return r.n, r.accepted, err
}

// download streams to w in raw bulk.
func (c *Client) download(ctx context.Context, f streamed, w io.Writer, off int64, length *uint64) (n int64, accepted bool, err error) {
	want := uint64(math.MaxUint64)
	if length != nil {
		want = *length
	}
	r := c.newReading(f, true, want)
	r.in = newInbox(c.cfg, 0)
	err = r.run(ctx, off, length, func() error {
		for {
			m, err := r.in.view(func(p []byte) error {
				m, err := w.Write(p)
				n += int64(m)
				if err == nil && m < len(p) {
					err = io.ErrShortWrite
				}
				return err
			})
			if err != nil && !errors.Is(err, io.EOF) {
				return &writerError{err}
			}
			if m == 0 {
				return nil
			}
			if err := r.consumed(ctx, m); err != nil {
				return err
			}
		}
	})
	if err != nil {
		r.in.abandon(err)
	}
	var failed *writerError
	if errors.As(err, &failed) {
		err = failed.err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return n, r.accepted, err
}

// writerError is an error of the caller's writer.
type writerError struct{ err error }

func (e *writerError) Error() string { return e.err.Error() }

// reading is a file read under way. Its data goes into p, or through in to a
// writer.
type reading struct {
	transfer
	offer agent.BulkOffer
	flow  inflow
	want  uint64 // bytes that may come
	p     []byte
	n     int // bytes in p
	in    *inbox
	data  agent.Data
}

func (c *Client) newReading(f streamed, bulk bool, want uint64) *reading {
	return &reading{
		transfer: transfer{c: c, f: f, op: "read", offered: bulk, wake: make(chan struct{}, 1)},
		want:     want,
		offer: agent.BulkOffer{
			Format:                 frame.BulkFormat,
			MaxRecordPayload:       c.cfg.readRecord,
			GuestToHostCreditLimit: c.cfg.window,
		},
	}
}

// run sends the request and waits for the end. drain is called whenever there
// may be data, and once more after the end.
func (r *reading) run(ctx context.Context, off int64, length *uint64, drain func() error) error {
	var offer *agent.BulkOffer
	if r.offered {
		offer = &r.offer
	}
	if err := r.start(ctx, r, off, length, offer); err != nil {
		return err
	}
	for {
		r.mu.Lock()
		over, dead, err := r.over, r.dead, r.err
		credit, due := agent.BulkCreditPayload{}, false
		if !over && !dead && r.accepted && r.in == nil {
			credit, due = r.flow.credit(r.want)
		}
		r.mu.Unlock()
		if over || dead {
			if err == nil {
				err = drain()
			}
			if !over {
				r.leave(client.Control, agent.CancelProtocol, "protocol violation")
			}
			return err
		}
		if due {
			err = r.c.send(ctx, r.s, client.Control, agent.BulkCredit, credit)
		} else {
			err = drain()
		}
		if err == nil {
			select {
			case <-r.wake:
				continue
			case <-r.arrived():
				continue
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		}
		r.leave(client.Control, agent.CancelCaller, "cancelled by the caller")
		return err
	}
}

// arrived is readable when the inbox has something.
func (r *reading) arrived() <-chan struct{} {
	if r.in == nil {
		return nil
	}
	return r.in.wake
}

// consumed gives credit for what the writer has taken.
func (r *reading) consumed(ctx context.Context, n int) error {
	r.mu.Lock()
	r.flow.consumed += uint64(n)
	credit, due := r.flow.credit(r.want)
	due = due && !r.over
	r.mu.Unlock()
	if !due {
		return nil
	}
	return r.c.send(ctx, r.s, client.Control, agent.BulkCredit, credit)
}

// Frame takes what the guest sends for the read.
func (r *reading) Frame(h client.Header, body *client.Body) {
	if h.Flags == frame.FlagBulk {
		r.record(h.ID, body)
		return
	}
	m, err := r.c.open(h, body)
	r.mu.Lock()
	defer r.mu.Unlock()
	if h.Terminal() {
		r.end(h, m, err)
		if r.err == nil && r.accepted && !r.flow.finished {
			r.err = &ProtocolError{ID: h.ID, Problem: "read: success without a bulk finish"}
		}
		return
	}
	if r.dead {
		return
	}
	if err == nil {
		err = r.message(h, m)
	}
	if err != nil {
		r.fail(h.ID, err)
	}
}

func (r *reading) message(h client.Header, m received) error {
	switch m.t {
	case agent.BulkAccepted:
		if !r.offered || r.accepted || r.n > 0 {
			return unexpected(h.ID, m)
		}
		a, err := accept(m.p, frame.BulkFilesystem, agent.MaskGuestToHost, r.offer)
		if err != nil {
			return err
		}
		r.accepted = true
		r.flow = inflow{kind: a.Kind, max: a.MaxRecordPayload, window: r.c.cfg.window, limit: a.GuestToHostCreditLimit}
	case agent.FSData:
		if r.accepted || r.in != nil {
			return unexpected(h.ID, m)
		}
		if err := agent.DecodePayload(m.p, &r.data); err != nil {
			return err
		}
		if len(r.data.Data) > len(r.p)-r.n {
			return fmt.Errorf("more than the %d bytes that were asked for", len(r.p))
		}
		r.n += copy(r.p[r.n:], r.data.Data)
		r.data.Data = nil
	case agent.BulkFinish:
		if !r.accepted {
			return unexpected(h.ID, m)
		}
		return r.flow.finish(m.p)
	case agent.BulkCancel, 0: // the answer that follows says why
	default:
		return unexpected(h.ID, m)
	}
	return nil
}

// record takes a raw record.
func (r *reading) record(id uint32, body *client.Body) {
	r.mu.Lock()
	if r.dead {
		r.mu.Unlock()
		return
	}
	err := r.admit(body)
	if err != nil {
		r.fail(id, err)
	}
	at := r.n
	r.mu.Unlock()
	if err != nil {
		return
	}
	if r.in != nil {
		r.in.fill(body)
		return
	}
	for body.Len() > 0 {
		p, err := body.Chunk()
		if err != nil {
			return
		}
		r.mu.Lock()
		if r.p == nil || r.dead {
			r.mu.Unlock()
			return
		}
		at += copy(r.p[at:], p)
		r.mu.Unlock()
	}
	r.mu.Lock()
	r.n = at
	r.flow.consumed = r.flow.next
	if r.flow.limit-r.flow.consumed <= r.flow.window/2 {
		r.signal()
	}
	r.mu.Unlock()
}

func (r *reading) admit(body *client.Body) error {
	if !r.accepted {
		return errors.New("raw record without an acceptance")
	}
	if n := body.Len() - frame.BulkHeaderSize; n > 0 && uint64(n) > r.want-r.flow.next {
		return fmt.Errorf("more than the %d bytes that were asked for", r.want)
	}
	return r.flow.record(body)
}

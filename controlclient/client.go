// Package controlclient talks to the runtime of a sandbox over its control.sock.
//
// Client is the framed protocol and nothing else. Connection finds out which
// protocol a runtime speaks and uses that; it is what most callers want.
package controlclient

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"msb/protocol/client"
	"msb/protocol/control"
	"msb/protocol/frame"
	"msb/protocol/record"
)

// Bounds of waiting.
const (
	SetupTimeout   = 10 * time.Second
	RequestTimeout = 30 * time.Second // default; see WithRequestTimeout
)

// Client is one framed connection. It never speaks JSON. Safe for concurrent
// use. Its requests end with a *control.Error when the runtime refused, an
// *OutcomeUnknownError when the reply is lost, and another error when nothing
// was sent.
type Client struct {
	engine  *client.Client[*Protocol]
	welcome control.Welcome
	flight  chan struct{}
	timeout time.Duration
}

// Option changes a Client or a Connection.
type Option func(*config)

type config struct {
	timeout  time.Duration
	verify   func(ctx context.Context) (Identity, error)
	identify func(net.Conn) (Identity, error) // who listens at the other end
}

// WithRequestTimeout bounds the wait for a reply. A timeout never means that the
// request was not carried out.
func WithRequestTimeout(d time.Duration) Option { return func(c *config) { c.timeout = d } }

func configure(opts []Option) config {
	c := config{timeout: RequestTimeout, identify: peer}
	for _, o := range opts {
		o(&c)
	}
	return c
}

// Dial connects to a control socket whose runtime is known to speak the framed
// protocol.
func Dial(ctx context.Context, path string, opts ...Option) (*Client, error) {
	ctx, cancel := context.WithTimeout(ctx, SetupTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	return New(ctx, conn, opts...)
}

// New runs the handshake on rwc and takes it over.
func New(ctx context.Context, rwc io.ReadWriteCloser, opts ...Option) (*Client, error) {
	ctx, cancel := context.WithTimeout(ctx, SetupTimeout)
	defer cancel()
	p := &Protocol{offer: control.DefaultHello()}
	engine, err := client.New(ctx, rwc, p)
	if err != nil {
		return nil, err
	}
	return &Client{engine: engine, welcome: p.welcome, flight: make(chan struct{}, p.welcome.MaxInFlight), timeout: configure(opts).timeout}, nil
}

// Welcome is what was agreed on.
func (c *Client) Welcome() control.Welcome { return c.welcome }

// Close ends the connection. Requests that are under way end with an unknown
// outcome.
func (c *Client) Close() error { return c.engine.Close() }

// Done is closed when the connection is gone.
func (c *Client) Done() <-chan struct{} { return c.engine.Done() }

// Err returns nil while the connection lives.
func (c *Client) Err() error { return c.engine.Err() }

// Raw sends a payload that is encoded already, under any name, and returns the
// whole frame of the reply as it came: fields that this package does not know
// survive. It interprets nothing, errors of the runtime included.
func (c *Client) Raw(ctx context.Context, name string, payload []byte) ([]byte, error) {
	h, body, err := c.exchange(ctx, name, payload)
	if err != nil {
		return nil, err
	}
	return frame.Append(nil, h.ID, h.Flags, body)
}

// exchange sends one request and waits for its reply.
func (c *Client) exchange(ctx context.Context, name string, payload []byte) (client.Header, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	select {
	case c.flight <- struct{}{}:
	case <-c.engine.Done():
		return client.Header{}, nil, fmt.Errorf("%s: not sent: %w", name, c.engine.Err())
	case <-ctx.Done():
		return client.Header{}, nil, fmt.Errorf("%s: not sent, too many requests are in flight: %w", name, context.Cause(ctx))
	}
	w := &waiter{flight: c.flight, reply: make(chan result, 1)}
	s, err := c.engine.Subscribe(w)
	if err != nil {
		<-c.flight
		return client.Header{}, nil, fmt.Errorf("%s: not sent: %w", name, err)
	}
	if err := s.SendEncoded(ctx, name, payload); err != nil {
		s.Close()
		w.leave()
		return client.Header{}, nil, fmt.Errorf("%s: not sent: %w", name, err)
	}
	select {
	case r := <-w.reply:
		if r.err == nil && r.h.Flags != frame.FlagTerminal {
			c.engine.Close()
			r.err = fmt.Errorf("a reply with flags 0x%02x", r.h.Flags)
		}
		if r.err != nil {
			return r.h, nil, &OutcomeUnknownError{Op: name, Cause: r.err}
		}
		return r.h, r.body, nil
	case <-ctx.Done():
		// The request stays in flight, here as on the other side, until its reply comes or the connection ends.
		return client.Header{}, nil, &OutcomeUnknownError{Op: name, Cause: context.Cause(ctx)}
	}
}

// waiter gets the reply of one request, whether somebody still waits or not.
type waiter struct {
	flight chan struct{}
	reply  chan result // holds one
	once   sync.Once
}

type result struct {
	h    client.Header
	body []byte
	err  error
}

// leave gives the request's place in flight back.
func (w *waiter) leave() { w.once.Do(func() { <-w.flight }) }

// Frame takes the reply.
func (w *waiter) Frame(h client.Header, body *client.Body) {
	b, err := body.Bytes()
	if err != nil {
		return // Lost follows
	}
	w.deliver(result{h: h, body: bytes.Clone(b)})
}

// Lost tells that there will be none.
func (w *waiter) Lost(err *client.LostError) { w.deliver(result{err: err}) }

func (w *waiter) deliver(r result) {
	select {
	case w.reply <- r:
	default: // more than one frame: the first, which was not terminal, ends the connection
	}
	w.leave()
}

// call is exchange for typed payloads.
func call[R any](ctx context.Context, c *Client, name string, payload any) (R, error) {
	var r R
	p, err := record.Encode(payload)
	if err != nil {
		return r, err
	}
	_, body, err := c.exchange(ctx, name, p)
	if err != nil {
		return r, err
	}
	err = c.decode(name, body, &r)
	var refused *control.Error
	if err != nil && !errors.As(err, &refused) {
		c.engine.Close() // who does not keep to the rules is not asked again
		return r, &OutcomeUnknownError{Op: name, Cause: err}
	}
	return r, err
}

func (c *Client) decode(name string, body []byte, into any) error {
	e, err := control.ParseEnvelope(body)
	if err != nil {
		return err
	}
	if e.V != c.welcome.Generation {
		return fmt.Errorf("a reply of generation %d", e.V)
	}
	switch e.T {
	case control.TypeError:
		var refused control.Error
		if err := record.DecodeStrict(e.P, &refused); err != nil {
			return err
		}
		return &refused
	case control.ReplyType(name):
		if err := record.DecodeStrict(e.P, into); err != nil {
			return err
		}
		if c, ok := into.(interface{ Check() error }); ok {
			return c.Check()
		}
		return nil
	}
	return fmt.Errorf("a reply of type %.60q", e.T)
}

// Capabilities asks what the runtime can change.
func (c *Client) Capabilities(ctx context.Context) (control.Capabilities, error) {
	return call[control.Capabilities](ctx, c, control.TypeCapabilities, control.Empty{})
}

// MemoryState asks for the memory of the sandbox.
func (c *Client) MemoryState(ctx context.Context) (control.MemoryState, error) {
	return call[control.MemoryState](ctx, c, control.TypeMemoryState, control.Empty{})
}

// SetMemoryTarget asks for a total in MiB. The reply tells the target from what
// is there; it promises no convergence.
func (c *Client) SetMemoryTarget(ctx context.Context, totalMiB uint64) (control.MemoryState, error) {
	return call[control.MemoryState](ctx, c, control.TypeMemoryTarget, control.MemoryTarget{TotalMiB: totalMiB})
}

// CPUState asks for the CPUs of the sandbox.
func (c *Client) CPUState(ctx context.Context) (control.CPUState, error) {
	return call[control.CPUState](ctx, c, control.TypeCPUState, control.Empty{})
}

// SetCPUTarget asks for a number of CPUs.
func (c *Client) SetCPUTarget(ctx context.Context, online uint32) (control.CPUState, error) {
	return call[control.CPUState](ctx, c, control.TypeCPUTarget, control.CPUTarget{Online: online})
}

// UpdateSecrets applies changes in order up to the first failure, which the
// result describes: it is no error of the call. Those before it stay.
func (c *Client) UpdateSecrets(ctx context.Context, changes []control.Change) (control.SecretsResult, error) {
	r, err := call[control.SecretsResult](ctx, c, control.TypeSecretsUpdate, control.SecretsUpdate{Changes: changes})
	if err == nil && int64(r.AppliedCount) > int64(len(changes)) {
		return r, &OutcomeUnknownError{Op: control.TypeSecretsUpdate, Cause: fmt.Errorf("%d of %d changes applied", r.AppliedCount, len(changes))}
	}
	return r, err
}

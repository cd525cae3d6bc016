package agentclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"msb/protocol/agent"
	"msb/protocol/client"
	"msb/protocol/frame"
)

// Client is one connection to the agent of a sandbox. Safe for concurrent use.
type Client struct {
	engine  *client.Client[*Protocol]
	ready   *Ready
	cfg     config
	bulk    atomic.Int32 // open bulk operations
	handles atomic.Int64 // open file and directory handles
	directs atomic.Pointer[directs]
}

// Dial connects to the agent socket at socketPath and runs the handshake.
func Dial(ctx context.Context, socketPath string, opts ...Option) (*Client, error) {
	cfg := configure(opts)
	ctx, cancel := context.WithTimeout(ctx, cfg.handshake)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socketPath)
	if err != nil {
		return nil, fmt.Errorf("connect to the sandbox's agent: %w", err)
	}
	c, err := open(ctx, conn, cfg)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", socketPath, err)
	}
	return c, nil
}

// New runs the handshake on rwc and takes rwc over: it is closed when New
// fails. Closing rwc must make its pending reads and writes return.
func New(ctx context.Context, rwc io.ReadWriteCloser, opts ...Option) (*Client, error) {
	cfg := configure(opts)
	ctx, cancel := context.WithTimeout(ctx, cfg.handshake)
	defer cancel()
	return open(ctx, rwc, cfg)
}

func configure(opts []Option) config {
	cfg := defaults()
	for _, o := range opts {
		o(&cfg)
	}
	return cfg
}

func open(ctx context.Context, rwc io.ReadWriteCloser, cfg config) (*Client, error) {
	engine, err := client.New(ctx, rwc, &Protocol{})
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			err = &HandshakeError{Err: fmt.Errorf("no answer in time: %w", err)}
		}
		return nil, err
	}
	return &Client{engine: engine, ready: engine.Protocol().Ready(), cfg: cfg}, nil
}

// Engine returns the client engine below, for messages that this package has
// no function for.
func (c *Client) Engine() *client.Client[*Protocol] { return c.engine }

// Ready returns what the handshake brought.
func (c *Client) Ready() *Ready { return c.ready }

// Close ends the connection. Commands that it started are killed by the relay
// and its file handles are closed. Nothing of the client runs afterwards.
func (c *Client) Close() error {
	err := c.engine.Close()
	c.directs.Load().wait()
	return err
}

// Done is closed when the connection is gone.
func (c *Client) Done() <-chan struct{} { return c.engine.Done() }

// Err returns nil while the connection lives, then a *client.LostError.
func (c *Client) Err() error { return c.engine.Err() }

// Ping asks the agent for a sign of life and returns the round trip.
func (c *Client) Ping(ctx context.Context) (time.Duration, error) {
	start := time.Now()
	_, err := c.call(ctx, agent.Ping, agent.Empty{}, agent.Pong, nil)
	return time.Since(start), err
}

// Touch counts as activity for the idle timeout. It returns the guest's
// activity counter.
func (c *Client) Touch(ctx context.Context) (uint64, error) {
	p, err := c.call(ctx, agent.Touch, agent.Empty{}, agent.Touched, nil)
	if err != nil {
		return 0, err
	}
	var t agent.TouchedPayload
	if err := agent.DecodePayload(p, &t); err != nil {
		return 0, &ProtocolError{Problem: err.Error()}
	}
	return t.ActivitySeq, nil
}

// Shutdown asks the guest to sync and power off. It returns when the request
// is written, after everything that was sent before; the connection then ends
// from the other side.
func (c *Client) Shutdown(ctx context.Context) error {
	if err := c.ready.EnsureVersionCompat(agent.Shutdown); err != nil {
		return err
	}
	packet, err := agent.AppendFrame(nil, 0, agent.Shutdown, c.ready.EmittedVersion, nil)
	if err != nil {
		return err
	}
	return c.engine.WritePacket(ctx, packet)
}

// busy tells whether anything on the connection is still in use.
func (c *Client) busy() bool { return c.engine.Active() > 0 || c.handles.Load() > 0 }

// packet builds the frame of a message after asking the gate.
func (c *Client) packet(id uint32, t agent.Type, payload any) (*client.Packet, error) {
	if err := c.ready.EnsureVersionCompat(t); err != nil {
		return nil, err
	}
	p := client.NewPacket(0)
	b, err := agent.AppendFrame(p.B, id, t, c.ready.EmittedVersion, payload)
	if err != nil {
		p.Free()
		return nil, err
	}
	p.B = b
	return p, nil
}

// send sends a message on a stream.
func (c *Client) send(ctx context.Context, s *client.Stream, ln client.Lane, t agent.Type, payload any) error {
	p, err := c.packet(s.ID(), t, payload)
	if err != nil {
		return err
	}
	return s.SendPacket(ctx, ln, p)
}

// post is send without waiting, for the connection's reader and for goodbyes.
// A goodbye that finds the queue full is dropped.
func (c *Client) post(id uint32, ln client.Lane, t agent.Type, payload any) {
	if p, err := c.packet(id, t, payload); err == nil {
		c.engine.Post(ln, p)
	}
}

// sendData sends one CBOR data message with a single copy of data.
func (c *Client) sendData(ctx context.Context, s *client.Stream, t agent.Type, data []byte) error {
	if err := c.ready.EnsureVersionCompat(t); err != nil {
		return err
	}
	p := client.NewPacket(len(data) + agent.DataOverhead)
	b, err := agent.AppendDataFrame(p.B, s.ID(), t, c.ready.EmittedVersion, data)
	if err != nil {
		p.Free()
		return err
	}
	p.B = b
	return s.SendPacket(ctx, client.Data, p)
}

// received is one opened message.
type received struct {
	t    agent.Type // 0: a name that this build does not know
	name string
	p    []byte // valid as long as the frame
}

// open decodes a frame and checks that the guest may send such a message.
func (c *Client) open(h client.Header, body *client.Body) (received, error) {
	raw, err := body.Bytes()
	if err != nil {
		return received{}, err
	}
	if h.Flags&frame.FlagBulk != 0 {
		return received{}, &ProtocolError{ID: h.ID, Problem: fmt.Sprintf("flags 0x%02x", h.Flags)}
	}
	e, err := agent.ParseEnvelope(raw)
	if err != nil {
		return received{}, &ProtocolError{ID: h.ID, Problem: err.Error()}
	}
	t, known := e.Type()
	switch {
	case !known && h.Terminal():
		return received{}, &ProtocolError{ID: h.ID, Problem: "unknown answer " + e.T}
	case !known:
	case t.Direction()&agent.GuestToHost == 0:
		return received{}, &ProtocolError{ID: h.ID, Problem: e.T + " goes to the guest only"}
	case t != agent.Error && !t.AvailableTo(c.ready.GuestVersion, c.ready.Info.Extensions): // a relay may say core.error for any guest
		return received{}, &ProtocolError{ID: h.ID, Problem: fmt.Sprintf("%s from a guest of generation %d", e.T, c.ready.GuestVersion)}
	case (t.Flags()^h.Flags)&frame.FlagTerminal != 0:
		return received{}, &ProtocolError{ID: h.ID, Problem: fmt.Sprintf("%s with flags 0x%02x", e.T, h.Flags)}
	}
	return received{t: t, name: e.T, p: e.P}, nil
}

// unexpected is the error for a message that does not belong on a stream.
func unexpected(id uint32, m received) error {
	return &ProtocolError{ID: id, Problem: "unexpected " + m.name}
}

// agentError decodes core.error.
func agentError(id uint32, p []byte) error {
	var e agent.ErrorPayload
	if err := agent.DecodePayload(p, &e); err != nil {
		return &ProtocolError{ID: id, Problem: err.Error()}
	}
	out := &AgentError{Kind: e.Kind, Message: e.Message}
	if e.OffendingType != nil {
		out.Offending = *e.OffendingType
	}
	return out
}

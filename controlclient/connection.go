package controlclient

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"

	"msb/protocol/client"
	"msb/protocol/control"
)

// Mode is how a runtime is spoken to.
type Mode uint8

// The modes.
const (
	ModeUnknown Mode = iota
	ModeJSON         // one connection for each request
	ModeFramed
)

func (m Mode) String() string { return [...]string{"unknown", "json", "framed"}[min(m, ModeFramed)] }

// WithRuntime says which process is the sandbox's runtime, each time a
// connection is made: whoever else serves the socket is sent nothing.
func WithRuntime(expect func(ctx context.Context) (Identity, error)) Option {
	return func(c *config) { c.verify = expect }
}

// Connection talks to the runtime behind a control socket in the protocol that
// it advertises. Callers share one session. It is set up when first needed,
// again after the runtime was replaced or the transport failed, and never for
// the sake of a request that was sent: that one's outcome is unknown. Safe for
// concurrent use.
type Connection struct {
	path string
	opts []Option
	cfg  config

	life context.Context // ends with Close
	end  context.CancelFunc
	work sync.WaitGroup

	mu      sync.Mutex
	setup   *setup // under way
	current session
	closed  bool
}

// session is what was learnt about a runtime.
type session struct {
	mode    Mode
	client  *Client  // framed
	runtime Identity // zero when it could not be told
}

// setup is one discovery that several callers wait for.
type setup struct {
	done    chan struct{}
	session session
	err     error
}

// Connect returns a Connection to the socket at path. It does not connect yet.
func Connect(path string, opts ...Option) *Connection {
	c := &Connection{path: path, opts: opts, cfg: configure(opts)}
	c.life, c.end = context.WithCancel(context.Background())
	return c
}

// Close ends the session, requests that are under way with it, and waits.
func (c *Connection) Close() error {
	c.mu.Lock()
	c.retire(c.current.client)
	c.current, c.closed = session{}, true
	c.mu.Unlock()
	c.end()
	c.work.Wait()
	return nil
}

// Mode returns how the runtime is spoken to, and finds out first.
func (c *Connection) Mode(ctx context.Context) (Mode, error) {
	s, err := c.session(ctx)
	return s.mode, err
}

// dial connects and checks who listens.
func (c *Connection) dial(ctx context.Context) (net.Conn, Identity, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", c.path)
	if err != nil {
		return nil, Identity{}, err
	}
	who, err := c.cfg.identify(conn)
	if c.cfg.verify != nil {
		var want Identity
		if err == nil {
			want, err = c.cfg.verify(ctx)
		}
		if err == nil && who != want {
			err = ErrRuntimeChanged
		}
		if err != nil {
			conn.Close()
			return nil, Identity{}, err
		}
	}
	if err != nil {
		who = Identity{}
	}
	return conn, who, nil
}

// session returns the present session, or sets one up together with whoever
// else needs it.
func (c *Connection) session(ctx context.Context) (session, error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return session{}, ErrClosed
	}
	if c.current.alive() {
		s := c.current
		c.mu.Unlock()
		return s, nil
	}
	c.retire(c.current.client)
	c.current = session{}
	s := c.setup
	if s == nil {
		s = &setup{done: make(chan struct{})}
		c.setup = s
		// Not with ctx: others wait for it too.
		c.work.Go(func() { c.discover(s) })
	}
	c.mu.Unlock()
	select {
	case <-s.done:
	case <-ctx.Done():
		return session{}, context.Cause(ctx)
	}
	return s.session, s.err
}

// retire closes a client that is not used any more. The caller holds mu.
func (c *Connection) retire(old *Client) {
	if old != nil {
		c.work.Go(func() { old.Close() })
	}
}

// alive tells whether a session can be used for another request.
func (s session) alive() bool {
	switch s.mode {
	case ModeFramed:
		if s.client.Err() != nil {
			return false
		}
	case ModeJSON:
		if s.runtime == (Identity{}) {
			return false // nothing tells whether it is still the same
		}
	default:
		return false
	}
	if s.runtime == (Identity{}) {
		return true
	}
	start, err := startOf(s.runtime.PID)
	return err == nil && start == s.runtime.Start
}

// discover is the one setup.
func (c *Connection) discover(s *setup) {
	ctx, cancel := context.WithTimeout(c.life, SetupTimeout)
	defer cancel()
	s.session, s.err = c.negotiate(ctx)
	c.mu.Lock()
	c.setup = nil
	switch {
	case s.err != nil:
	case c.closed:
		c.retire(s.session.client)
		s.session, s.err = session{}, ErrClosed
	default:
		c.current = s.session
	}
	c.mu.Unlock()
	close(s.done)
}

// negotiate asks for the capabilities in JSON and takes what they advertise:
// framed only if that is named, JSON only if the reply is a valid one that names
// nothing. All else is an error.
func (c *Connection) negotiate(ctx context.Context) (session, error) {
	conn, who, err := c.dial(ctx)
	if err != nil {
		return session{}, err
	}
	reply, err := exchangeLine(ctx, conn, control.Request{Op: control.OpCapabilities}, control.MaxDiscoveryReply)
	if err != nil {
		return session{}, &DiscoveryError{err}
	}
	if reply.Capabilities == nil {
		return session{}, &DiscoveryError{errors.New("a reply without capabilities")}
	}
	if !slices.Contains(reply.ControlProtocols, control.ProtocolCBOR) {
		return session{mode: ModeJSON, runtime: who}, nil
	}
	conn, again, err := c.dial(ctx)
	if err != nil {
		return session{}, err
	}
	if again != who {
		conn.Close()
		return session{}, ErrRuntimeChanged
	}
	framed, err := New(ctx, conn, c.opts...)
	if err != nil {
		return session{}, err
	}
	return session{mode: ModeFramed, client: framed, runtime: who}, nil
}

// do carries out a request in the runtime's protocol. A request that could not
// be sent because its session had just ended is sent on a new one, once.
func do[R any](ctx context.Context, c *Connection, framed func(context.Context, *Client) (R, error), request control.Request, take func(LineReply) (R, error)) (R, error) {
	var none R
	for again := true; ; again = false {
		s, err := c.session(ctx)
		if err != nil {
			return none, err
		}
		if s.mode == ModeFramed {
			r, err := framed(ctx, s.client)
			var unknown *OutcomeUnknownError
			if again && client.IsLost(err) && !errors.As(err, &unknown) {
				continue
			}
			return r, err
		}
		reply, changed, err := c.line(ctx, request, s.runtime)
		if changed && again {
			c.forget(s)
			continue
		}
		if err != nil {
			return none, err
		}
		return take(reply)
	}
}

// forget drops a session that has turned out to be of another runtime.
func (c *Connection) forget(s session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current == s {
		c.retire(s.client)
		c.current = session{}
	}
}

// line sends a JSON request to the runtime that was discovered. changed says
// that it is another one, and that nothing was sent.
func (c *Connection) line(ctx context.Context, request control.Request, want Identity) (reply LineReply, changed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.timeout)
	defer cancel()
	conn, who, err := c.dial(ctx)
	if err != nil {
		return reply, false, err
	}
	if who != want {
		conn.Close()
		return reply, true, ErrRuntimeChanged
	}
	reply, err = exchangeLine(ctx, conn, request, maxReply)
	return reply, false, err
}

// Line sends a JSON request whatever the mode is and returns the reply as it
// came, a negative one with a *ReplyError. It discovers nothing: older runtimes
// and newer operations are the caller's concern.
func (c *Connection) Line(ctx context.Context, request control.Request) (LineReply, error) {
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return LineReply{}, ErrClosed
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.timeout)
	defer cancel()
	conn, _, err := c.dial(ctx)
	if err != nil {
		return LineReply{}, err
	}
	return exchangeLine(ctx, conn, request, maxReply)
}

// incomplete is a positive reply that lacks what was asked for.
func incomplete(op string, raw []byte) error {
	return &OutcomeUnknownError{Op: op, Cause: fmt.Errorf("a reply of %d bytes without the state", len(raw))}
}

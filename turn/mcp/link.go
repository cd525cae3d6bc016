package mcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"msb/turn/creds"
)

// link is a connection to a server.
type link struct {
	session *sdk.ClientSession
	stop    func() // ends the transport below, whatever it is busy with
	note    func() string
	secrets *secrets
	watched bool
	once    sync.Once
}

// closeTimeout is how long a server has for a polite end.
const closeTimeout = 3 * time.Second

// close ends the session and the transport.
func (l *link) close() {
	l.once.Do(func() {
		late := time.AfterFunc(closeTimeout, l.stop)
		_ = l.session.Close() // it is over either way
		late.Stop()
		l.stop()
	})
}

// held is a transport whose connection can be closed from outside of the SDK.
type held struct {
	sdk.Transport
	mu   sync.Mutex
	conn sdk.Connection
}

// Connect implements sdk.Transport.
func (h *held) Connect(ctx context.Context) (sdk.Connection, error) {
	c, err := h.Transport.Connect(ctx)
	if err == nil {
		h.mu.Lock()
		h.conn = c
		h.mu.Unlock()
	}
	return c, err
}

func (h *held) close() {
	h.mu.Lock()
	c := h.conn
	h.mu.Unlock()
	if c != nil {
		_ = c.Close() // it may be closed already
	}
}

// secrets are the texts that must not be in any error of a connection.
type secrets struct {
	mu   sync.Mutex
	list []creds.Secret
}

func (s *secrets) add(secret creds.Secret) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, known := range s.list {
		if known == secret {
			return
		}
	}
	if len(s.list) > 16 { // tokens that were refreshed long ago
		s.list = s.list[1:]
	}
	s.list = append(s.list, secret)
}

func (s *secrets) redact(text string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, secret := range s.list {
		text = secret.Redact(text)
	}
	return text
}

// connect makes a connection and says hello, within ctx.
func (s *server) connect(ctx context.Context) (*link, error) {
	known := &secrets{}
	transport, stop, note, err := s.transport(ctx, known)
	if err != nil {
		return nil, err
	}
	client := sdk.NewClient(&sdk.Implementation{Name: "msb", Version: "1"}, &sdk.ClientOptions{
		Logger:       s.log,
		Capabilities: &sdk.ClientCapabilities{}, // no roots, no sampling, no questions to the user
		ToolListChangedHandler: func(context.Context, *sdk.ToolListChangedRequest) {
			s.mu.Lock()
			s.stale = true
			s.mu.Unlock()
		},
		MultiRoundTrip: &sdk.MultiRoundTripOptions{Disabled: true},
	})
	held := &held{Transport: transport}
	end := stop
	stop = func() { end(); held.close() }
	l := &link{stop: stop, note: note, secrets: known}
	// The SDK may wait for what has no context; the end of the connection ends that.
	done := make(chan error, 1)
	s.b.work.Go(func() {
		session, err := client.Connect(ctx, held, nil)
		l.session = session
		done <- err
	})
	select {
	case err = <-done:
	case <-ctx.Done():
		stop()
		if err = <-done; err == nil {
			_ = l.session.Close()
			err = ctx.Err()
		}
	}
	if err != nil {
		stop()
		return nil, l.explain(ctx, err)
	}
	return l, nil
}

// explain turns an error of the SDK into one for the user of the host.
func (l *link) explain(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	text := l.secrets.redact(cut(err.Error(), 1024))
	if l.note != nil {
		if n := l.note(); n != "" {
			text += "; it wrote: " + l.secrets.redact(n)
		}
	}
	return &linkError{text: text, err: err}
}

// linkError is an error of a connection with the secrets taken out.
type linkError struct {
	text string
	err  error
}

func (e *linkError) Error() string { return e.text }
func (e *linkError) Unwrap() error { return e.err }

// LoginError reports a server that wants a login.
type LoginError struct{ Server string }

// Error says what to do.
func (e *LoginError) Error() string {
	return fmt.Sprintf("MCP server %q wants a login: run `msb mcp login %s` on the host", e.Server, e.Server)
}

// broken tells whether an error means that the connection is of no more use.
func broken(err error) bool {
	var login *LoginError
	return isClosed(err) || errors.Is(err, sdk.ErrSessionMissing) || errors.As(err, &login)
}

// isClosed tells whether the other end is gone.
func isClosed(err error) bool {
	return errors.Is(err, sdk.ErrConnectionClosed) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe) || errors.Is(err, syscall.EPIPE)
}

// codeRejected is the SDK's own code for a request that its transport did not
// send; the server said nothing.
const codeRejected = -32005

// tell is an error as the guest may see it: no address, and nothing of the host
// but what to do.
func (s *server) tell(ctx context.Context, l *link, err error) error {
	var login *LoginError
	var answer *jsonrpc.Error
	name := s.conf.Name
	if l == nil {
		l = &link{secrets: &secrets{}}
	}
	switch {
	case errors.Is(err, errClosed):
		return err
	case errors.As(err, &login):
		return login
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("MCP server %q did not answer in %v", name, CallTimeout)
	case ctx.Err() != nil:
		return fmt.Errorf("MCP call canceled: %w", ctx.Err())
	case errors.Is(err, errRedirect):
		return fmt.Errorf("MCP server %q redirects to another address, which is not followed", name)
	case errors.Is(err, errTooLarge):
		return fmt.Errorf("the answer of MCP server %q is too large", name)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("MCP server %q cannot be reached (connection refused)", name)
	case isDNS(err):
		return fmt.Errorf("MCP server %q cannot be reached (its name is not known)", name)
	case errors.As(err, &answer) && answer.Code != codeRejected:
		return fmt.Errorf("MCP server %q refused the call: %s", name, l.secrets.redact(cut(answer.Message, 1024)))
	case isClosed(err):
		return fmt.Errorf("MCP server %q closed the connection", name)
	}
	return fmt.Errorf("MCP server %q failed: see the log on the host", name)
}

func isDNS(err error) bool {
	var dns *net.DNSError
	return errors.As(err, &dns)
}

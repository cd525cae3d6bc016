package mcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"msb/turn/creds"
)

// maxMessage bounds one message of a server, in bytes.
const maxMessage = 8 << 20

var (
	errRedirect = errors.New("redirect to another address")
	errOrigin   = errors.New("request to another address")
	errTooLarge = fmt.Errorf("an answer of more than %d MiB", maxMessage>>20)
)

// transport makes the transport to the server. stop ends it; note is what the
// server wrote for its user.
func (s *server) transport(ctx context.Context, known *secrets) (t sdk.Transport, stop func(), note func() string, err error) {
	if s.conf.URL == "" {
		p, err := s.start(ctx, known)
		if err != nil {
			return nil, nil, nil, err
		}
		return &sdk.IOTransport{Reader: p.out, Writer: p.in, MaxLineLength: maxMessage}, p.stop, p.stderr.String, nil
	}
	u, err := url.Parse(s.conf.URL)
	if err != nil {
		return nil, nil, nil, err
	}
	life, end := context.WithCancel(s.b.ctx)
	base := newTransport()
	p := &pinned{origin: origin(u), base: base, life: life, bearer: s.bearer(known), refused: &LoginError{Server: s.conf.Name}}
	stop = func() { end(); base.CloseIdleConnections() }
	return &sdk.StreamableClientTransport{Endpoint: s.conf.URL, HTTPClient: p.client(), MaxEventSize: maxMessage, MaxRetries: 2}, stop, nil, nil
}

func newTransport() *http.Transport {
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 20 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		ForceAttemptHTTP2:   true,
		TLSHandshakeTimeout: 20 * time.Second,
		IdleConnTimeout:     90 * time.Second,
	}
}

// origin is scheme, host and port of a URL.
func origin(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return u.Scheme + "://" + net.JoinHostPort(strings.ToLower(u.Hostname()), port)
}

// bearer gives the token of a request. With one that was refused it gives
// another, or fails if there is no other.
type bearer func(ctx context.Context, refused *creds.Secret) (creds.Secret, error)

// bearer returns where the tokens of the server come from.
func (s *server) bearer(known *secrets) bearer {
	return func(ctx context.Context, refused *creds.Secret) (creds.Secret, error) {
		var secret creds.Secret
		var err error
		switch {
		case s.conf.Credential == nil:
			secret, err = s.loginToken(ctx, refused)
		case refused != nil:
			err = &LoginError{Server: s.conf.Name}
		default:
			secret, err = s.b.o.Credentials.Resolve(ctx, s.conf.Credential.For(s.conf.Host()))
		}
		if err == nil && !secret.Empty() {
			known.add(secret)
		}
		return secret, err
	}
}

// pinned sends requests to one origin and nowhere else, and is the only one who
// sees the token.
type pinned struct {
	origin  string
	base    http.RoundTripper
	life    context.Context // of the connection
	bearer  bearer
	refused error // when no token is accepted
}

const maxRedirects = 10

func (p *pinned) client() *http.Client {
	return &http.Client{Transport: p, CheckRedirect: func(req *http.Request, via []*http.Request) error {
		if origin(req.URL) != p.origin {
			return errRedirect
		}
		if len(via) > maxRedirects {
			return fmt.Errorf("more than %d redirects", maxRedirects)
		}
		return nil
	}}
}

// RoundTrip implements http.RoundTripper.
func (p *pinned) RoundTrip(req *http.Request) (*http.Response, error) {
	if origin(req.URL) != p.origin {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, errOrigin
	}
	ctx, cancel := context.WithCancel(req.Context())
	release := context.AfterFunc(p.life, cancel)
	finish := func() { release(); cancel() }
	res, err := p.send(ctx, req)
	if err != nil {
		finish()
		return nil, err
	}
	res.Request = req // not the one with the token
	res.Body = &bounded{body: res.Body, left: maxMessage, endless: req.Method == http.MethodGet, finish: finish}
	return res, nil
}

// send adds the token, and tries once more with another when it is refused.
func (p *pinned) send(ctx context.Context, req *http.Request) (*http.Response, error) {
	var refused *creds.Secret
	for {
		token, err := p.bearer(ctx, refused)
		if err != nil {
			if req.Body != nil {
				req.Body.Close()
			}
			return nil, err
		}
		sent := req.Clone(ctx)
		sent.Header.Del("Authorization")
		if !token.Empty() {
			sent.Header.Set("Authorization", "Bearer "+token.Reveal())
		}
		if refused != nil && req.GetBody != nil {
			if sent.Body, err = req.GetBody(); err != nil {
				return nil, err
			}
		}
		res, err := p.base.RoundTrip(sent)
		if err != nil || res.StatusCode != http.StatusUnauthorized {
			return res, err
		}
		res.Body.Close()
		if refused != nil || req.Body != nil && req.GetBody == nil {
			return nil, p.refused
		}
		refused = &token
	}
}

// bounded is the body of an answer: not too large, unless it is the stream of
// notifications, whose events the SDK bounds.
type bounded struct {
	body    io.ReadCloser
	left    int
	endless bool
	finish  func()
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.endless {
		return b.body.Read(p)
	}
	if b.left < 0 {
		return 0, errTooLarge
	}
	if len(p) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.body.Read(p)
	if b.left -= n; b.left < 0 {
		return 0, errTooLarge
	}
	return n, err
}

func (b *bounded) Close() error {
	err := b.body.Close()
	b.finish()
	return err
}

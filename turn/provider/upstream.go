package provider

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"msb/turn/config"
	"msb/turn/creds"
)

// Bounds of an answer, in bytes.
const (
	maxAnswer  = 64 << 20
	maxEvent   = 1 << 20 // one event of the stream, as it came
	maxRefusal = 4 << 10 // what is looked at of an error's body
)

// upstream is one request to a model server. It is the only one who sees the
// key, and it puts it into a request only after it looked where that goes.
type upstream struct {
	model  config.Model
	secret creds.Secret
	base   http.RoundTripper
	log    *slog.Logger
	cancel context.CancelCauseFunc // ends the request

	mu   sync.Mutex
	last *Failure // of the last attempt
	done bool     // the stream said [DONE]
}

// client is for the vendors' SDKs.
func (u *upstream) client() *http.Client {
	return &http.Client{Transport: u, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// stop ends the request for good, so that it is not tried again.
func (u *upstream) stop(f *Failure) error {
	u.cancel(f)
	return f
}

// RoundTrip implements http.RoundTripper.
func (u *upstream) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		defer req.Body.Close()
	}
	if !u.model.AllowsHost(req.URL) {
		return nil, u.stop(&Failure{Class: classHost, Detail: req.URL.Host})
	}
	t := u.model.Timeouts
	first := time.AfterFunc(t.Connect+t.FirstByte, func() { u.stop(silent(t.FirstByte)) })
	res, err := u.base.RoundTrip(u.withKey(req))
	first.Stop()
	if err != nil {
		f := unreachable(err, u.secret.Redact(err.Error()))
		u.fail(f)
		return nil, err
	}
	res.Request = req // not the one with the key
	switch {
	case res.StatusCode >= 400:
		return u.refuse(res)
	case res.StatusCode >= 300:
		res.Body.Close()
		return nil, u.stop(&Failure{Class: classRedirect, Detail: u.secret.Redact(res.Header.Get("Location"))})
	case res.StatusCode != http.StatusOK || !isStream(res.Header.Get("Content-Type")):
		res.Body.Close()
		return nil, u.stop(&Failure{Class: "the provider's answer is no event stream", Detail: fmt.Sprintf("status %d, type %q", res.StatusCode, res.Header.Get("Content-Type"))})
	}
	u.fail(nil)
	res.Body = &answer{u: u, body: res.Body, wait: t.FirstByte}
	return res, nil
}

// withKey is the request as it is sent.
func (u *upstream) withKey(req *http.Request) *http.Request {
	sent := req.Clone(context.WithValue(req.Context(), connectKey{}, u.model.Timeouts.Connect))
	sent.Header.Del("Authorization")
	sent.Header.Del("X-Api-Key")
	for name := range sent.Header { // what is built with is nobody's business
		if strings.HasPrefix(name, "X-Stainless-") {
			sent.Header.Del(name)
		}
	}
	sent.Header.Set("User-Agent", "msb")
	switch {
	case u.secret.Empty():
	case u.model.API == config.APIMessages:
		sent.Header.Set("X-Api-Key", u.secret.Reveal())
	default:
		sent.Header.Set("Authorization", "Bearer "+u.secret.Reveal())
	}
	return sent
}

// refuse notes what an error's body says for the user of the host, and gives
// the SDK an empty one.
func (u *upstream) refuse(res *http.Response) (*http.Response, error) {
	late := time.AfterFunc(10*time.Second, func() { res.Body.Close() })
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxRefusal)) // as much as there is
	late.Stop()
	res.Body.Close()
	detail := u.secret.Redact(strings.ToValidUTF8(string(body), "\uFFFD"))
	u.fail(refused(res.StatusCode, body, detail))
	u.log.Warn("model request refused", "model", u.model.Name, "status", res.StatusCode, "body", detail)
	res.Body = io.NopCloser(strings.NewReader(`{"error":{}}`))
	res.ContentLength = -1
	return res, nil
}

func (u *upstream) fail(f *Failure) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.last = f
}

// failure is what to tell of an error that came out of the SDK.
func (u *upstream) failure(ctx context.Context, err error) error {
	var f *Failure
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	u.mu.Lock()
	last := u.last
	u.mu.Unlock()
	switch {
	case errors.As(err, &f):
		return f
	case last != nil:
		return last
	}
	return broken(err, u.secret.Redact(err.Error()))
}

func (u *upstream) sawDone() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.done
}

func isStream(contentType string) bool {
	kind, _, _ := strings.Cut(contentType, ";")
	switch strings.ToLower(strings.TrimSpace(kind)) {
	case "text/event-stream", "text/plain", "application/octet-stream", "": // some servers are careless
		return true
	}
	return false
}

// answer is the body of an answer: it bounds the time between two bytes, the
// size of one event and of everything, and notices the end mark of a chat
// stream, which the SDK swallows.
type answer struct {
	u     *upstream
	body  io.ReadCloser
	wait  time.Duration // for the next byte
	total int
	event int    // bytes since the last empty line
	line  []byte // beginning of the line under way
}

const doneMark = "data:[DONE]"

// Read implements io.Reader.
func (a *answer) Read(p []byte) (int, error) {
	wait := a.wait
	late := time.AfterFunc(wait, func() { a.u.stop(silent(wait)) })
	n, err := a.body.Read(p)
	late.Stop()
	if n > 0 {
		a.wait = a.u.model.Timeouts.Idle
	}
	if a.total += n; a.total > maxAnswer {
		return 0, a.u.stop(fail(classTooLarge))
	}
	if !a.scan(p[:n]) {
		return 0, a.u.stop(fail(classTooLarge))
	}
	return n, err
}

// scan follows lines and events; it is false when an event is too large.
func (a *answer) scan(p []byte) bool {
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		part, ended := p, i < 0
		if i >= 0 {
			part = p[:i]
		}
		if room := len(doneMark) + 4 - len(a.line); room > 0 {
			a.line = append(a.line, part[:min(room, len(part))]...)
		}
		a.event += len(part) + 1
		if a.event > maxEvent {
			return false
		}
		if ended {
			return true
		}
		line := bytes.TrimRight(a.line, "\r")
		if len(line) == 0 {
			a.event = 0
		}
		if bytes.HasPrefix(bytes.Replace(line, []byte(": "), []byte(":"), 1), []byte(doneMark)) {
			a.u.mu.Lock()
			a.u.done = true
			a.u.mu.Unlock()
		}
		a.line, p = a.line[:0], p[i+1:]
	}
	return true
}

// Close implements io.Closer.
func (a *answer) Close() error { return a.body.Close() }

type connectKey struct{}

// newTransport is the transport below all requests of a broker.
func newTransport() *http.Transport {
	dialer := &net.Dialer{KeepAlive: 30 * time.Second}
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if d, ok := ctx.Value(connectKey{}).(time.Duration); ok && d > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, d)
				defer cancel()
			}
			return dialer.DialContext(ctx, network, addr)
		},
		ForceAttemptHTTP2:     true,
		MaxIdleConns:          8,
		IdleConnTimeout:       90 * time.Second,
		TLSHandshakeTimeout:   config.DefaultConnect,
		ExpectContinueTimeout: time.Second,
	}
}

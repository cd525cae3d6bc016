package mcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"syscall"
	"time"

	"msb/turn/config"
)

// guard carries the requests of a login. Their addresses come from the server,
// so that they must not lead to services that only this host can reach: only
// https, to public addresses, unless the server itself is a private one.
type guard struct {
	base     http.RoundTripper
	loopback bool
}

// maxMetadata bounds an answer during a login, in bytes.
const maxMetadata = 1 << 20

// guarded is a client for the login at a server. It follows no redirects.
func guarded(ctx context.Context, s config.Server) *http.Client {
	t := newTransport()
	if !private(ctx, s) && !proxied(t) {
		t.DialContext = (&net.Dialer{Timeout: 20 * time.Second, Control: public}).DialContext
	}
	return &http.Client{
		Transport:     &guard{base: t, loopback: s.Loopback},
		Timeout:       30 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// proxied tells whether connections go to a proxy, whose address is the user's
// business.
func proxied(t *http.Transport) bool {
	u, err := t.Proxy(&http.Request{URL: &url.URL{Scheme: "https", Host: "public.example"}})
	return err == nil && u != nil
}

// private tells whether the server itself is not on the public network.
func private(ctx context.Context, s config.Server) bool {
	u, err := url.Parse(s.URL)
	if err != nil {
		return false
	}
	if s.Loopback {
		return true
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", u.Hostname())
	if err != nil {
		return false
	}
	for _, ip := range ips {
		if !isPublic(ip) {
			return true
		}
	}
	return false
}

// public refuses a connection to an address that is not public.
func public(_, address string, _ syscall.RawConn) error {
	a, err := netip.ParseAddrPort(address)
	if err != nil || !isPublic(a.Addr()) {
		return fmt.Errorf("%s is not a public address", address)
	}
	return nil
}

var special = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("240.0.0.0/4"), netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("2002::/16"),
}

func isPublic(ip netip.Addr) bool {
	ip = ip.Unmap()
	for _, p := range special {
		if p.Contains(ip) {
			return false
		}
	}
	return ip.IsGlobalUnicast() && !ip.IsPrivate()
}

// RoundTrip implements http.RoundTripper.
func (g *guard) RoundTrip(req *http.Request) (*http.Response, error) {
	u := req.URL
	if u.Scheme != "https" && !(u.Scheme == "http" && g.loopback && config.IsLoopback(u.Hostname())) || u.User != nil {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, errors.New("a login goes over https only")
	}
	res, err := g.base.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	res.Body = struct {
		io.Reader
		io.Closer
	}{io.LimitReader(res.Body, maxMetadata), res.Body}
	return res, nil
}

// CloseIdleConnections lets http.Client close those of the transport below.
func (g *guard) CloseIdleConnections() {
	if t, ok := g.base.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
}

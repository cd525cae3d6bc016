package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"msb/guest/port"
)

// maxHost is the longest host name there is, in bytes.
const maxHost = 253

// dialFunc opens a connection.
type dialFunc func(ctx context.Context, host string, port uint16) (*net.TCPConn, error)

// dial resolves host with the guest's own configuration and connects to the first address that answers.
func dial(ctx context.Context, host string, p uint16) (*net.TCPConn, error) {
	d := net.Dialer{Resolver: &net.Resolver{PreferGo: true}}
	nc, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(p))))
	if err != nil {
		return nil, err
	}
	return nc.(*net.TCPConn), nil
}

// checkHost refuses what is no name and no address. Go would take an empty host for this machine.
func checkHost(host string) error {
	switch {
	case host == "":
		return errors.New("the host is empty")
	case len(host) > maxHost:
		return fmt.Errorf("the host has %d bytes, %d is the longest name", len(host), maxHost)
	case strings.ContainsFunc(host, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return errors.New("the host contains blanks or control characters")
	}
	return nil
}

// connectError prints why a connection could not be made.
func connectError(host string, p uint16, err error) string {
	if len(host) > maxHost {
		host = strings.ToValidUTF8(host[:maxHost], "") + "…"
	}
	to := fmt.Sprintf("connect %s:%d", host, p)
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns) && !dns.IsTimeout:
		return to + ": failed to lookup address information: " + dns.Err
	case errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		return to + " timed out"
	}
	var op *net.OpError
	if errors.As(err, &op) {
		err = op.Err // without Go's "dial tcp"
	}
	return to + ": " + port.OSError(err)
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

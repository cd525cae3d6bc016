package agentclient

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"msb/protocol/agent"
	"msb/protocol/client"
	"msb/protocol/frame"
)

// TCPError says that the guest could not connect, or that the stream broke.
type TCPError struct {
	Addr    string
	Message string // the guest's own words; not safe for a terminal as they are
}

func (e *TCPError) Error() string {
	return fmt.Sprintf("connect from the sandbox to %s: %s", e.Addr, printable(e.Message))
}

// DialTCP connects to host and port as seen from inside the sandbox.
func (c *Client) DialTCP(ctx context.Context, host string, port uint16) (*TCPConn, error) {
	bulk := c.takeBulk()
	t, err := c.dialTCP(ctx, host, port, bulk)
	var refused *TCPError
	if bulk && errors.As(err, &refused) && strings.Contains(strings.ToLower(refused.Message), "bulk") {
		return c.dialTCP(ctx, host, port, false)
	}
	return t, err
}

func (c *Client) dialTCP(ctx context.Context, host string, port uint16, bulk bool) (*TCPConn, error) {
	t := &TCPConn{
		c:       c,
		addr:    tcpAddr(net.JoinHostPort(host, strconv.Itoa(int(port)))),
		in:      newInbox(c.cfg, c.cfg.memory),
		opened:  make(chan struct{}),
		readBy:  newDeadline(),
		writBy:  newDeadline(),
		wake:    make(chan struct{}, 1),
		offered: bulk,
	}
	req := agent.TCPConnectPayload{Host: host, Port: port}
	if bulk {
		t.offer = agent.BulkOffer{Format: frame.BulkFormat, MaxRecordPayload: frame.DefaultBulkRecord, GuestToHostCreditLimit: c.cfg.window}
		req.Bulk = &t.offer
	}
	s, err := c.engine.Subscribe(t)
	if err != nil {
		t.release()
		return nil, err
	}
	t.s = s
	if err := c.send(ctx, s, client.Control, agent.TCPConnect, req); err != nil {
		s.Close()
		t.mu.Lock()
		defer t.mu.Unlock()
		t.release()
		return nil, err
	}
	select {
	case <-t.opened:
	case <-ctx.Done():
		t.mu.Lock()
		defer t.mu.Unlock()
		t.abort(context.Cause(ctx))
		return nil, context.Cause(ctx)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over && !t.connected {
		return nil, t.err
	}
	return t, nil
}

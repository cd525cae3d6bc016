package tcp

import (
	"io"
	"net"
	"testing"

	"msb/guest/bulk/bulktest"
	"msb/guest/port"
	"msb/protocol/agent"
	"msb/protocol/frame"
)

// client drives a Service the way the agent's main loop does.
type client struct {
	t    testing.TB
	s    *Service
	out  *bulktest.Recorder
	slot uint32
	last uint32
}

func newClient(t testing.TB, opts ...Option) *client {
	out := bulktest.New()
	c := &client{t: t, s: New(out, opts...), out: out}
	t.Cleanup(c.s.Close)
	return c
}

func noRelease() {}

func (c *client) connect(host string, p uint16, offer *agent.BulkOffer) uint32 {
	c.t.Helper()
	c.last++
	id := c.slot*frame.RangeStep + c.last
	c.send(id, 9, agent.TCPConnectPayload{Host: host, Port: p, Bulk: offer})
	return id
}

func (c *client) send(id uint32, v uint8, req agent.TCPConnectPayload) {
	c.t.Helper()
	p, err := agent.EncodePayload(req)
	if err != nil {
		c.t.Fatal(err)
	}
	c.s.Connect(c.slot, id, v, p, noRelease)
}

func (c *client) data(id uint32, data string) {
	c.s.Data(port.Input{ID: id, Data: []byte(data), Release: noRelease})
}

func (c *client) record(id uint32, offset uint64, payload []byte) {
	c.s.Bulk(frame.Bulk{ID: id, Kind: frame.BulkTCP, Flow: frame.FlowHostToGuest, Offset: offset, Payload: payload}, noRelease)
}

func (c *client) finish(id uint32, final uint64) {
	c.s.Finish(id, agent.BulkFinishPayload{Kind: frame.BulkTCP, Flow: frame.FlowHostToGuest, FinalOffset: final})
}

func (c *client) credit(id uint32, consumed, limit uint64) {
	c.s.Credit(id, agent.BulkCreditPayload{Kind: frame.BulkTCP, Flow: frame.FlowGuestToHost, ConsumedOffset: consumed, CreditLimit: limit})
}

func (c *client) message(id uint32, want agent.Type) []byte {
	c.t.Helper()
	f := c.out.Next(c.t, id)
	if f.Type != want {
		c.t.Fatalf("got %v, want %v", f, want)
	}
	return f.Payload
}

func (c *client) failed(id uint32, text string) {
	c.t.Helper()
	m := bulktest.Decode[agent.TCPFailedPayload](c.t, c.out.Next(c.t, id), agent.TCPFailed)
	if m.Error != text {
		c.t.Errorf("failed with %q, want %q", m.Error, text)
	}
}

func (c *client) violated(id uint32, text string) {
	c.t.Helper()
	m := bulktest.Decode[agent.BulkCancelPayload](c.t, c.out.Next(c.t, id), agent.BulkCancel)
	if m.Reason != agent.CancelProtocol || m.Message != text || m.Kind != frame.BulkTCP {
		c.t.Errorf("cancel %+v, want the text %q", m, text)
	}
	c.failed(id, text)
}

// opened expects what a good connect is answered with.
func (c *client) opened(id uint32, bulk bool) {
	c.t.Helper()
	c.message(id, agent.TCPConnected)
	if bulk {
		c.message(id, agent.BulkAccepted)
	}
}

// receive collects n bytes that the guest sends, giving credit like a client.
func (c *client) receive(id uint32, n int, bulk bool) []byte {
	c.t.Helper()
	var got []byte
	for len(got) < n {
		f := c.out.Next(c.t, id)
		switch {
		case f.Type == agent.BulkCredit:
		case bulk && f.Type == 0:
			if f.Bulk.Offset != uint64(len(got)) || f.Bulk.Flow != frame.FlowGuestToHost {
				c.t.Fatalf("got %v at %d", f, len(got))
			}
			got = append(got, f.Bulk.Payload...)
			c.credit(id, uint64(len(got)), uint64(len(got))+frame.DefaultBulkWindow)
		case !bulk && f.Type == agent.TCPData:
			got = append(got, bulktest.Decode[agent.Data](c.t, f, agent.TCPData).Data...)
		default:
			c.t.Fatalf("got %v after %d bytes", f, len(got))
		}
	}
	return got
}

func (c *client) quiet() {
	c.t.Helper()
	for _, f := range c.out.Pending() {
		c.t.Errorf("unexpected %v", f)
	}
}

func offer() *agent.BulkOffer {
	return &agent.BulkOffer{Format: 1, MaxRecordPayload: frame.DefaultBulkRecord, GuestToHostCreditLimit: frame.DefaultBulkWindow}
}

// listen serves connections on a free port until the test ends.
func listen(t testing.TB, serve func(*net.TCPConn)) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer nc.Close()
				serve(nc.(*net.TCPConn))
			}()
		}
	}()
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

func echo(nc *net.TCPConn) {
	_, _ = io.Copy(nc, nc)
	_ = nc.CloseWrite()
}

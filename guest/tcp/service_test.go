package tcp

import (
	"bytes"
	"context"
	"io"
	"net"
	"strings"
	"testing"

	"msb/guest/bulk/bulktest"
	"msb/protocol/agent"
	"msb/protocol/frame"
)

func both(t *testing.T, test func(t *testing.T, bulk bool)) {
	t.Run("cbor", func(t *testing.T) { test(t, false) })
	t.Run("bulk", func(t *testing.T) { test(t, true) })
}

func offerIf(bulk bool) *agent.BulkOffer {
	if bulk {
		return offer()
	}
	return nil
}

// put sends data to the destination in either form.
func (c *client) put(id uint32, bulk bool, offset int, p []byte) {
	if bulk {
		c.record(id, uint64(offset), p)
	} else {
		c.data(id, string(p))
	}
}

// finished ends the host's half in either form.
func (c *client) finished(id uint32, bulk bool, final int) {
	if bulk {
		c.finish(id, uint64(final))
	} else {
		c.s.EOF(id, noRelease)
	}
}

func TestEcho(t *testing.T) {
	both(t, func(t *testing.T, bulk bool) {
		c := newClient(t)
		id := c.connect("127.0.0.1", listen(t, echo), offerIf(bulk))
		c.opened(id, bulk)
		sent := bytes.Repeat([]byte("0123456789abcdef"), 20<<16/16) // 1.25 MiB
		for off := 0; off < len(sent); off += 128 << 10 {
			c.put(id, bulk, off, sent[off:off+128<<10])
		}
		if got := c.receive(id, len(sent), bulk); !bytes.Equal(got, sent) {
			t.Error("what came back differs")
		}
		c.finished(id, bulk, len(sent))
		if bulk {
			m := bulktest.Decode[agent.BulkFinishPayload](t, c.out.Next(t, id), agent.BulkFinish)
			if m.FinalOffset != uint64(len(sent)) || m.Flow != frame.FlowGuestToHost || m.Kind != frame.BulkTCP {
				t.Errorf("finish %+v", m)
			}
		} else {
			c.message(id, agent.TCPEOF)
		}
		c.message(id, agent.TCPClosed)
		c.quiet()
	})
}

// A destination that has finished still gets what the host sends.
func TestHalfClose(t *testing.T) {
	both(t, func(t *testing.T, bulk bool) {
		got := make(chan string, 1)
		p := listen(t, func(nc *net.TCPConn) {
			_, _ = nc.Write([]byte("bye"))
			_ = nc.CloseWrite()
			b, _ := io.ReadAll(nc)
			got <- string(b)
		})
		c := newClient(t)
		id := c.connect("localhost", p, offerIf(bulk))
		c.opened(id, bulk)
		if b := c.receive(id, 3, bulk); string(b) != "bye" {
			t.Errorf("got %q", b)
		}
		if bulk {
			c.message(id, agent.BulkFinish)
		} else {
			c.message(id, agent.TCPEOF)
		}
		c.put(id, bulk, 0, []byte("still"))
		c.put(id, bulk, 5, []byte(" here"))
		c.finished(id, bulk, 10)
		c.message(id, agent.TCPClosed)
		if s := <-got; s != "still here" {
			t.Errorf("the destination got %q", s)
		}
		c.quiet()
	})
}

func TestConnectFailures(t *testing.T) {
	c := newClient(t)
	for _, tc := range []struct {
		name, host string
		port       uint16
		want       string // prefix
	}{
		{"refused", "127.0.0.1", 1, "connect 127.0.0.1:1: Connection refused (os error 111)"},
		{"refused by IPv6", "::1", 1, "connect ::1:1: "},
		{"empty", "", 80, "connect :80: the host is empty"},
		{"blank", " ", 80, "connect  :80: the host contains blanks or control characters"},
		{"newline", "a\nb", 80, "connect a\nb:80: the host contains blanks or control characters"},
		{"NUL", "a\x00b", 80, "connect a\x00b:80: the host contains blanks or control characters"},
		{"too long", strings.Repeat("a", 254), 80, "connect " + strings.Repeat("a", 253) + "…:80: the host has 254 bytes"},
		{"with a port", "127.0.0.1:22", 80, "connect 127.0.0.1:22:80: failed to lookup address information: "},
		{"dots", "a..b", 80, "connect a..b:80: failed to lookup address information: no such host"},
		{"brackets", "[::1]", 80, "connect [::1]:80: address [[::1]]:80: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			id := c.connect(tc.host, tc.port, nil)
			m := bulktest.Decode[agent.TCPFailedPayload](t, c.out.Next(t, id), agent.TCPFailed)
			if !strings.HasPrefix(m.Error, tc.want) {
				t.Errorf("got %q, want %q", m.Error, tc.want)
			}
		})
	}
}

func TestConnectTimesOut(t *testing.T) {
	c := newClient(t)
	c.s.dial = func(context.Context, string, uint16) (*net.TCPConn, error) { return nil, context.DeadlineExceeded }
	id := c.connect("10.0.0.1", 9, nil)
	c.failed(id, "connect 10.0.0.1:9 timed out")
}

func TestAbort(t *testing.T) {
	both(t, func(t *testing.T, bulk bool) {
		gone := make(chan struct{})
		p := listen(t, func(nc *net.TCPConn) {
			_, _ = io.Copy(io.Discard, nc)
			close(gone)
		})
		c := newClient(t)
		id := c.connect("127.0.0.1", p, offerIf(bulk))
		c.opened(id, bulk)
		c.s.Abort(id)
		<-gone
		for c.s.Has(id) {
		}
		// What was on its way when the stream was aborted is dropped.
		c.put(id, bulk, 0, []byte("late"))
		c.finished(id, bulk, 4)
		c.credit(id, 0, 1)
		c.quiet()
	})
}

func TestAbortWhileConnecting(t *testing.T) {
	c := newClient(t)
	dialing := make(chan struct{})
	c.s.dial = func(ctx context.Context, _ string, _ uint16) (*net.TCPConn, error) {
		close(dialing)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	id := c.connect("10.0.0.1", 9, nil)
	<-dialing
	c.data(id, "early")
	c.s.Abort(id)
	for c.s.Has(id) {
	}
	c.quiet()
}

func TestResetIsReported(t *testing.T) {
	p := listen(t, func(nc *net.TCPConn) {
		var b [1]byte
		_, _ = nc.Read(b[:])
		_ = nc.SetLinger(0)
	})
	c := newClient(t)
	id := c.connect("127.0.0.1", p, nil)
	c.opened(id, false)
	c.data(id, "x")
	c.failed(id, "read TCP stream: Connection reset by peer (os error 104)")
	c.quiet()
}

func TestHostViolations(t *testing.T) {
	for _, tc := range []struct {
		name string
		bulk bool
		do   func(c *client, id uint32)
		want string
		soft bool // no cancel goes first
	}{
		{"CBOR data", true, func(c *client, id uint32) { c.data(id, "q") }, "CBOR TCP data is invalid after raw bulk acceptance", true},
		{"CBOR EOF", true, func(c *client, id uint32) { c.s.EOF(id, noRelease) }, "CBOR TCP EOF is invalid after raw bulk acceptance", true},
		{"data after EOF", false, func(c *client, id uint32) { c.s.EOF(id, noRelease); c.data(id, "q") }, "TCP data after the end of the stream", true},
		{"record without bulk", false, func(c *client, id uint32) { c.record(id, 0, []byte("q")) }, "raw bulk record sent to a TCP stream without raw bulk", false},
		{"finish without bulk", false, func(c *client, id uint32) { c.finish(id, 0) }, "bulk finish sent to a TCP stream without raw bulk", false},
		{"credit without bulk", false, func(c *client, id uint32) { c.credit(id, 0, 1) }, "bulk credit sent to a TCP stream without raw bulk", false},
		{"gap", true, func(c *client, id uint32) { c.record(id, 3, []byte("q")) }, "invalid TCP bulk record: bulk record offset 3 does not match expected 0", false},
		{"record too large", true, func(c *client, id uint32) { c.record(id, 0, make([]byte, 256<<10+1)) },
			"invalid TCP bulk record: invalid bulk record payload length 262145 (max 262144)", false},
		{"finish above", true, func(c *client, id uint32) { c.finish(id, 1) }, "invalid TCP bulk finish: bulk finish offset 1 does not match expected 0", false},
		{"record after finish", true, func(c *client, id uint32) { c.finish(id, 0); c.record(id, 0, []byte("q")) },
			"invalid TCP bulk record: bulk record at 0: bulk flow is already finished", false},
		{"finish twice", true, func(c *client, id uint32) { c.finish(id, 0); c.finish(id, 0) },
			"invalid TCP bulk finish: bulk finish at 0: bulk flow is already finished", false},
		{"credit above what was sent", true, func(c *client, id uint32) { c.credit(id, 1, 16<<20) },
			"invalid TCP bulk credit: bulk credit consumed offset 1 exceeds sent offset 0", false},
		{"flow of the guest", true, func(c *client, id uint32) {
			c.s.Bulk(frame.Bulk{ID: id, Kind: frame.BulkTCP, Flow: frame.FlowGuestToHost, Payload: []byte("q")}, noRelease)
		}, "invalid TCP bulk record: another kind or flow", false},
		{"cancel", true, func(c *client, id uint32) {
			c.s.Cancel(id, agent.BulkCancelPayload{Kind: frame.BulkTCP, Reason: agent.CancelCaller, Message: "caller dropped"})
		}, "caller dropped", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newClient(t)
			hold := listen(t, func(nc *net.TCPConn) { _, _ = io.Copy(io.Discard, nc); <-t.Context().Done() })
			id := c.connect("127.0.0.1", hold, offerIf(tc.bulk))
			c.opened(id, tc.bulk)
			tc.do(c, id)
			if tc.soft {
				c.failed(id, tc.want)
			} else {
				c.violated(id, tc.want)
			}
			for c.s.Has(id) {
			}
			tc.do(c, id) // what follows the terminal answer is dropped
			c.quiet()
		})
	}
}

// A destination that does not read stops its own stream at the window and no other.
func TestStalledDestination(t *testing.T) {
	release := make(chan struct{})
	stalled := listen(t, func(nc *net.TCPConn) { <-release })
	t.Cleanup(func() { close(release) })
	c := newClient(t)
	id := c.connect("127.0.0.1", stalled, offer())
	c.opened(id, true)
	payload := make([]byte, 256<<10)
	var kept int
	held := make(chan struct{}, 1024)
	for off := 0; off+len(payload) <= frame.DefaultBulkWindow; off += len(payload) {
		c.s.Bulk(frame.Bulk{ID: id, Kind: frame.BulkTCP, Flow: frame.FlowHostToGuest, Offset: uint64(off), Payload: payload},
			func() { held <- struct{}{} })
		kept++
	}

	other := c.connect("127.0.0.1", listen(t, echo), offer())
	c.opened(other, true)
	c.record(other, 0, []byte("hello"))
	if got := c.receive(other, 5, true); string(got) != "hello" {
		t.Errorf("got %q", got)
	}

	// More than the destination's socket takes is never credited, and going past the limit ends the stream at once.
	c.record(id, frame.DefaultBulkWindow, payload)
	if f := c.out.Next(t, id); f.Type == agent.BulkCredit {
		t.Skip("this kernel buffers the whole window")
	} else if f.Type != agent.BulkCancel {
		t.Fatalf("got %v", f)
	}
	c.failed(id, "invalid TCP bulk record: bulk record end 8650752 exceeds credit limit 8388608")
	for range kept {
		<-held // every record gave its transport credit back
	}
}

// Without credit the guest reads no more from the destination than it may send.
func TestNoCredit(t *testing.T) {
	c := newClient(t)
	p := listen(t, func(nc *net.TCPConn) {
		_, _ = nc.Write(make([]byte, 1<<20))
		_ = nc.CloseWrite()
		_, _ = io.Copy(io.Discard, nc)
	})
	id := c.connect("127.0.0.1", p, &agent.BulkOffer{Format: 1, MaxRecordPayload: 16 << 10, GuestToHostCreditLimit: 40 << 10})
	c.opened(id, true)
	got := 0
	for got < 40<<10 {
		f := c.out.Next(t, id)
		if f.Type != 0 || len(f.Bulk.Payload) > 16<<10 {
			t.Fatalf("got %v", f)
		}
		got += len(f.Bulk.Payload)
	}
	if got != 40<<10 {
		t.Fatalf("%d bytes for 40 KiB of credit", got)
	}
	c.quiet()
	c.credit(id, 40<<10, 80<<10)
	for got < 80<<10 {
		got += len(c.out.Next(t, id).Bulk.Payload)
	}
	c.quiet()
}

func TestBadConnects(t *testing.T) {
	c := newClient(t)
	c.s.Connect(0, 50, 9, []byte{0xf6}, noRelease)
	m := bulktest.Decode[agent.ErrorPayload](t, c.out.Next(t, 50), agent.Error)
	if m.Kind != agent.KindInvalidPayload || *m.OffendingType != "core.tcp.connect" {
		t.Errorf("got %+v", m)
	}
	c.s.Connect(0, 51, 4, nil, noRelease)
	c.message(51, agent.TCPFailed)
	c.send(52, 7, agent.TCPConnectPayload{Host: "127.0.0.1", Port: 1, Bulk: offer()})
	c.failed(52, "raw bulk offer requires protocol generation 8")
	c.data(53, "q")
	c.failed(53, "unknown TCP session: 53")
	c.s.EOF(54, noRelease)
	c.failed(54, "unknown TCP session: 54")
	c.record(55, 0, []byte("q"))
	c.violated(55, "unknown TCP session: 55")
	c.finish(56, 0)
	c.violated(56, "unknown TCP session: 56")
	c.credit(57, 0, 0)
	c.s.Abort(58)
	c.s.Cancel(59, agent.BulkCancelPayload{})
	c.quiet()
}

// A second connect with the id of an open stream ends that stream, with one terminal answer.
func TestReusedID(t *testing.T) {
	c := newClient(t)
	p := listen(t, echo)
	id := c.connect("127.0.0.1", p, nil)
	c.opened(id, false)
	c.send(id, 9, agent.TCPConnectPayload{Host: "127.0.0.1", Port: p})
	c.failed(id, "correlation id was used again while its TCP stream was open")
	for c.s.Has(id) {
	}
	c.quiet()
	c.send(id, 9, agent.TCPConnectPayload{Host: "127.0.0.1", Port: p})
	c.opened(id, false)
}

func TestCloseOwner(t *testing.T) {
	both(t, func(t *testing.T, bulk bool) {
		c := newClient(t)
		p := listen(t, echo)
		mine := c.connect("127.0.0.1", p, offerIf(bulk))
		c.opened(mine, bulk)
		theirs := &client{t: t, s: c.s, out: c.out, slot: 1}
		other := theirs.connect("127.0.0.1", p, offerIf(bulk))
		theirs.opened(other, bulk)
		<-c.s.CloseOwner(0)
		if c.s.Has(mine) || !c.s.Has(other) {
			t.Error("the wrong stream was closed")
		}
		c.quiet()
		theirs.put(other, bulk, 0, []byte("x"))
		theirs.receive(other, 1, bulk)
		<-c.s.CloseOwner(5)
	})
}

// With ports of their own for data, a finish may come before the records it counts.
func TestFinishOvertakesRecords(t *testing.T) {
	c := newClient(t, SplitPorts())
	id := c.connect("127.0.0.1", listen(t, echo), offer())
	c.opened(id, true)
	c.finish(id, 4)
	c.record(id, 0, []byte("ab"))
	c.record(id, 2, []byte("cd"))
	if got := c.receive(id, 4, true); string(got) != "abcd" {
		t.Errorf("got %q", got)
	}
	c.message(id, agent.BulkFinish)
	c.message(id, agent.TCPClosed)
}

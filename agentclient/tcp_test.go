package agentclient

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"msb/protocol/agent"
)

func TestTCPRefused(t *testing.T) {
	c, _ := newPeer(t, 9, nil)
	_, err := c.DialTCP(within(t), "refused", 1)
	var failed *TCPError
	if !errors.As(err, &failed) || failed.Addr != "refused:1" {
		t.Errorf("error %v", err)
	}
	if c.busy() || c.bulk.Load() != 0 {
		t.Error("something is left")
	}
}

// Nobody reads a stream: with credit the guest stops, without it the data is
// spooled. Others go on, and nothing is lost.
func TestTCPStalledReader(t *testing.T) {
	for _, gen := range []uint8{7, 9} {
		c, _ := newPeer(t, gen, nil, WithSpool(t.TempDir(), 1<<30))
		const n = 20 << 20
		conn, err := c.DialTCP(within(t), "flood", n>>10)
		if err != nil {
			t.Fatal(err)
		}
		for range 50 {
			if _, err := c.Ping(within(t)); err != nil {
				t.Fatal(err)
			}
		}
		conn.CloseWrite()
		got, err := io.ReadAll(conn)
		if err != nil || !bytes.Equal(got, pattern(n)) {
			t.Errorf("gen %d: %d bytes of %d, %v", gen, len(got), n, err)
		}
		conn.Close()
	}
}

func TestTCPDeadlines(t *testing.T) {
	c, s := newScript(t, 7)
	conn := dialScripted(t, c, s)
	conn.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	var timeout net.Error
	_, err := conn.Read(make([]byte, 1))
	if !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("error %v", err)
	}
	conn.SetDeadline(time.Time{})
	s.send(conn.s.ID(), agent.TCPData, agent.Data{Data: []byte("x")})
	if n, err := conn.Read(make([]byte, 5)); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	conn.SetWriteDeadline(time.Unix(1, 0))
	if _, err := conn.Write(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("error %v", err)
	}
}

func dialScripted(t *testing.T, c *Client, s *scripted) *TCPConn {
	t.Helper()
	type result struct {
		conn *TCPConn
		err  error
	}
	got := make(chan result, 1)
	go func() {
		conn, err := c.DialTCP(within(t), "host", 80)
		got <- result{conn, err}
	}()
	f := s.expect(agent.TCPConnect)
	s.send(f.ID, agent.TCPConnected, agent.Empty{})
	if s.v >= 8 {
		s.send(f.ID, agent.BulkAccepted, agent.BulkAcceptedPayload{Kind: 2, Flows: 3, Format: 1, MaxRecordPayload: 16 << 10,
			HostToGuestCreditLimit: 64 << 10, GuestToHostCreditLimit: c.cfg.window})
	}
	r := <-got
	if r.err != nil {
		t.Fatal(r.err)
	}
	return r.conn
}

// Close wakes readers and writers, ends what was written and gives the stream
// back when the guest has ended it, or after a while.
func TestTCPClose(t *testing.T) {
	c, s := newScript(t, 9, func(c *config) { c.linger = time.Hour })
	conn := dialScripted(t, c, s)
	errs := make(chan error, 2)
	go func() { _, err := conn.Read(make([]byte, 1)); errs <- err }()
	go func() { _, err := conn.Write(make([]byte, 100<<10)); errs <- err }()
	for n := 0; n < 64<<10; { // the writer has used up its credit
		n += len(s.next().Body) - 12
	}
	conn.Close()
	for range 2 {
		if err := <-errs; !errors.Is(err, net.ErrClosed) {
			t.Errorf("error %v", err)
		}
	}
	var fin agent.BulkFinishPayload
	s.decode(s.expect(agent.BulkFinish), &fin)
	if fin.FinalOffset != 64<<10 {
		t.Errorf("finish at %d", fin.FinalOffset)
	}
	s.bulk(conn.s.ID(), 2, 2, 0, []byte("nobody reads this"))
	s.send(conn.s.ID(), agent.TCPClosed, agent.Empty{})
	s.sync(c)
	if c.busy() || c.bulk.Load() != 0 {
		t.Error("the stream is still there")
	}
	if err := conn.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("second Close: %v", err)
	}
}

func TestTCPCloseLingers(t *testing.T) {
	c, s := newScript(t, 7, func(c *config) { c.linger = time.Millisecond })
	conn := dialScripted(t, c, s)
	conn.Close()
	s.expect(agent.TCPEOF)
	s.expect(agent.TCPClose)
	s.sync(c)
	if c.busy() {
		t.Error("the stream is still there")
	}
}

// Unread data makes Close an abort.
func TestTCPCloseUnread(t *testing.T) {
	c, s := newScript(t, 9)
	conn := dialScripted(t, c, s)
	s.bulk(conn.s.ID(), 2, 2, 0, []byte("x"))
	s.sync(c)
	conn.Close()
	s.expect(agent.TCPClose)
	if c.busy() || c.bulk.Load() != 0 {
		t.Error("the stream is still there")
	}
}

func TestTCPBadAnswers(t *testing.T) {
	cases := map[string]func(s *scripted, id uint32){
		"connected twice":       func(s *scripted, id uint32) { s.send(id, agent.TCPConnected, agent.Empty{}) },
		"accepted twice":        func(s *scripted, id uint32) { s.send(id, agent.BulkAccepted, agent.BulkAcceptedPayload{}) },
		"CBOR after acceptance": func(s *scripted, id uint32) { s.send(id, agent.TCPData, agent.Data{Data: []byte("x")}) },
		"eof after acceptance":  func(s *scripted, id uint32) { s.send(id, agent.TCPEOF, agent.Empty{}) },
		"file record":           func(s *scripted, id uint32) { s.bulk(id, 1, 2, 0, []byte("x")) },
		"offset":                func(s *scripted, id uint32) { s.bulk(id, 2, 2, 3, []byte("x")) },
		"record too large":      func(s *scripted, id uint32) { s.bulk(id, 2, 2, 0, make([]byte, 16<<10+1)) },
		"over credit": func(s *scripted, id uint32) {
			s.bulk(id, 2, 2, 0, make([]byte, 16<<10))
			s.bulk(id, 2, 2, 16<<10, []byte("x"))
		},
		"finish above": func(s *scripted, id uint32) {
			s.send(id, agent.BulkFinish, agent.BulkFinishPayload{Kind: 2, Flow: 2, FinalOffset: 1})
		},
		"credit for unsent": func(s *scripted, id uint32) {
			s.send(id, agent.BulkCredit, agent.BulkCreditPayload{Kind: 2, Flow: 1, ConsumedOffset: 1, CreditLimit: 1 << 20})
		},
		"terminal of a file":     func(s *scripted, id uint32) { s.fsOK(id) },
		"stdout":                 func(s *scripted, id uint32) { s.send(id, agent.ExecStdout, agent.Data{}) },
		"failed without a word":  func(s *scripted, id uint32) { s.raw(id, 1, "core.tcp.failed", []byte{0xa0}) },
		"close is for the guest": func(s *scripted, id uint32) { s.send(id, agent.TCPClose, agent.Empty{}) },
	}
	for name, play := range cases {
		t.Run(name, func(t *testing.T) {
			c, s := newScript(t, 9, func(c *config) { c.window = 16 << 10 })
			conn := dialScripted(t, c, s)
			play(s, conn.s.ID())
			s.drain()
			_, err := io.Copy(io.Discard, onlyReader{conn})
			var bad *ProtocolError
			if !errors.As(err, &bad) && name != "over credit" {
				t.Errorf("error %v", err)
			}
			if _, err := c.Ping(within(t)); err != nil {
				t.Error(err)
			}
			if name != "over credit" && (c.busy() || c.bulk.Load() != 0) {
				t.Error("the stream is still there")
			}
			conn.Close()
		})
	}
}

type onlyReader struct{ io.Reader }

func TestTCPDialCancelled(t *testing.T) {
	c, s := newScript(t, 9)
	ctx, cancel := context.WithCancel(within(t))
	failed := make(chan error)
	go func() { _, err := c.DialTCP(ctx, "h", 1); failed <- err }()
	s.expect(agent.TCPConnect)
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	s.expect(agent.TCPClose)
	if c.busy() || c.bulk.Load() != 0 {
		t.Error("the stream is still there")
	}
}

// A guest that ignores the offer talks CBOR.
func TestTCPOfferIgnored(t *testing.T) {
	c, s := newScript(t, 9)
	got := make(chan string, 1)
	go func() {
		conn, err := c.DialTCP(within(t), "h", 1)
		if err != nil {
			got <- err.Error()
			return
		}
		conn.Write([]byte("hi"))
		b, _ := io.ReadAll(conn)
		got <- string(b)
	}()
	id := s.expect(agent.TCPConnect).ID
	s.send(id, agent.TCPConnected, agent.Empty{})
	s.send(id, agent.TCPData, agent.Data{Data: []byte("hello")})
	s.expect(agent.TCPData)
	s.send(id, agent.TCPEOF, agent.Empty{})
	s.send(id, agent.TCPClosed, agent.Empty{})
	if b := <-got; b != "hello" {
		t.Errorf("got %q", b)
	}
}

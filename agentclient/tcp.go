package agentclient

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"sync"
	"time"

	"msb/protocol/agent"
	"msb/protocol/client"
	"msb/protocol/frame"
)

// TCPConn is a TCP stream that starts inside the sandbox. It is a net.Conn
// with half-close. What its user does not read is held back by credit, or
// spooled when the guest knows no credit.
type TCPConn struct {
	c      *Client
	s      *client.Stream
	addr   tcpAddr
	in     *inbox
	offer  agent.BulkOffer
	opened chan struct{} // closed when the stream is usable or has failed
	readBy *deadline
	writBy *deadline
	wake   chan struct{} // cap 1: credit came, or the end
	data   agent.Data    // of the connection's reader

	writing sync.Mutex // one Write or CloseWrite at a time

	mu        sync.Mutex
	offered   bool // holds one of the connection's bulk operations
	connected bool
	bulk      bool // raw records, else CBOR data
	ready     bool // opened was closed
	flowIn    inflow
	flowOut   outflow
	eofIn     bool
	eofOut    bool
	closed    bool // by its user
	over      bool // nothing comes any more
	err       error
	linger    *time.Timer
}

var _ net.Conn = (*TCPConn)(nil)

// Read reads what has come. io.EOF is the other side's end.
func (t *TCPConn) Read(p []byte) (int, error) {
	n, err := t.in.read(p, t.readBy.wait())
	if n > 0 {
		t.consumed(n)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = t.closedOr(err)
	}
	return n, err
}

// consumed gives credit for what has been read.
func (t *TCPConn) consumed(n int) {
	t.mu.Lock()
	if !t.bulk || t.over || t.closed {
		t.mu.Unlock()
		return
	}
	t.flowIn.consumed += uint64(n)
	credit, due := t.flowIn.credit(math.MaxUint64)
	t.mu.Unlock()
	if due {
		// An error means that the connection is lost, which the next Read tells.
		_ = t.c.send(context.Background(), t.s, client.Control, agent.BulkCredit, credit)
	}
}

// Write sends p. It waits while the guest gives no credit.
func (t *TCPConn) Write(p []byte) (n int, err error) {
	t.writing.Lock()
	defer t.writing.Unlock()
	for len(p) > 0 {
		room, offset, err := t.waitRoom()
		if err != nil {
			return n, err
		}
		m := min(len(p), room)
		if err := t.put(p[:m], offset); err != nil {
			return n, t.closedOr(err)
		}
		n += m
		p = p[m:]
	}
	return n, nil
}

// put sends one piece; offset counts for raw records only.
func (t *TCPConn) put(p []byte, offset uint64) error {
	ctx := until{t.writBy.wait()}
	if !t.bulk { // does not change once opened is closed
		return t.c.sendData(ctx, t.s, agent.TCPData, p)
	}
	pkt := client.NewPacket(frame.BulkOverhead + len(p))
	pkt.B = pkt.B[:frame.BulkOverhead]
	frame.PutBulkHeader(pkt.B, t.s.ID(), frame.BulkTCP, frame.FlowHostToGuest, offset, len(p))
	pkt.B = append(pkt.B, p...)
	t.mu.Lock()
	t.flowOut.sent += uint64(len(p))
	t.mu.Unlock()
	err := t.s.SendPacket(ctx, client.Data, pkt)
	if err != nil {
		t.mu.Lock()
		t.flowOut.sent -= uint64(len(p))
		t.mu.Unlock()
	}
	return err
}

// waitRoom waits until something may be sent.
func (t *TCPConn) waitRoom() (room int, offset uint64, err error) {
	const piece = 64 << 10
	for {
		t.mu.Lock()
		switch {
		case t.closed || t.eofOut:
			err = net.ErrClosed
		case t.over:
			err = t.err
			if err == nil || errors.Is(err, io.EOF) {
				err = io.ErrClosedPipe
			}
		case !t.bulk:
			room = piece
		default:
			room, offset = t.flowOut.room(), t.flowOut.sent
		}
		t.mu.Unlock()
		if room > 0 || err != nil {
			return room, offset, err
		}
		select {
		case <-t.wake:
		case <-t.writBy.wait():
			return 0, 0, t.closedOr(until{t.writBy.wait()}.Err())
		}
	}
}

// closedOr prefers what happened to the stream over a deadline that Close
// has moved to wake a reader or a writer.
func (t *TCPConn) closedOr(err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return net.ErrClosed
	}
	return err
}

// CloseWrite ends what is sent; reading goes on.
func (t *TCPConn) CloseWrite() error {
	t.writing.Lock()
	defer t.writing.Unlock()
	t.mu.Lock()
	if t.closed || t.over || t.eofOut {
		defer t.mu.Unlock()
		if t.closed {
			return net.ErrClosed
		}
		return nil
	}
	t.eofOut = true
	t.mu.Unlock()
	typ, payload := t.goodbye()
	return t.c.send(until{t.writBy.wait()}, t.s, client.Data, typ, payload)
}

// goodbye is the message that ends what is sent.
func (t *TCPConn) goodbye() (agent.Type, any) {
	if t.bulk {
		return agent.BulkFinish, t.flowOut.finish()
	}
	return agent.TCPEOF, agent.Empty{}
}

// Close ends the stream. As with a kernel's TCP, what was written is still
// delivered, unless data that came has not been read: then the stream is
// aborted. The guest's end is waited for in the background, for a while.
func (t *TCPConn) Close() error { return t.close(false) }

// Abort ends the stream at once: what was written and is not there yet may be
// lost, and the other side sees a reset.
func (t *TCPConn) Abort() error { return t.close(true) }

func (t *TCPConn) close(abort bool) error {
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return net.ErrClosed
	}
	t.closed = true
	t.mu.Unlock()
	past := time.Unix(1, 0)
	t.readBy.set(past)
	t.writBy.set(past)
	t.writing.Lock()
	defer t.writing.Unlock()

	unread := t.in.unread() > 0
	t.in.abandon(net.ErrClosed)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.over:
	case unread || abort:
		t.abort(net.ErrClosed)
	default:
		if !t.eofOut {
			t.eofOut = true
			typ, payload := t.goodbye()
			t.c.post(t.s.ID(), client.Data, typ, payload)
		}
		t.linger = time.AfterFunc(t.c.cfg.linger, func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.abort(net.ErrClosed)
		})
	}
	return nil
}

// abort tells the guest that nobody is interested any more; no answer is owed.
func (t *TCPConn) abort(err error) {
	if t.over {
		return
	}
	t.c.post(t.s.ID(), client.Data, agent.TCPClose, agent.Empty{})
	t.s.Close()
	t.end(err)
}

// end notes that nothing comes any more.
func (t *TCPConn) end(err error) {
	t.over, t.err = true, err
	if t.linger != nil {
		t.linger.Stop()
	}
	t.in.close(err)
	t.release()
	t.open()
	t.signal()
}

func (t *TCPConn) release() {
	if t.offered {
		t.offered = false
		t.c.freeBulk()
	}
}

// open lets DialTCP return.
func (t *TCPConn) open() {
	if !t.ready {
		t.ready = true
		close(t.opened)
	}
}

func (t *TCPConn) signal() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// LocalAddr is unknown: the stream starts inside the sandbox.
func (t *TCPConn) LocalAddr() net.Addr { return tcpAddr("sandbox") }

// RemoteAddr is the host and port that were asked for.
func (t *TCPConn) RemoteAddr() net.Addr { return t.addr }

// SetDeadline moves both deadlines; the zero time means none.
func (t *TCPConn) SetDeadline(d time.Time) error {
	if err := t.SetReadDeadline(d); err != nil {
		return err
	}
	return t.SetWriteDeadline(d)
}

// SetReadDeadline moves the deadline of Read.
func (t *TCPConn) SetReadDeadline(d time.Time) error { return t.setDeadline(t.readBy, d) }

// SetWriteDeadline moves the deadline of Write.
func (t *TCPConn) SetWriteDeadline(d time.Time) error { return t.setDeadline(t.writBy, d) }

func (t *TCPConn) setDeadline(d *deadline, at time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return net.ErrClosed
	}
	d.set(at)
	return nil
}

type tcpAddr string

func (tcpAddr) Network() string  { return "tcp" }
func (a tcpAddr) String() string { return string(a) }

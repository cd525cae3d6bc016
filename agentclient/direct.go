package agentclient

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"syscall"
	"time"

	"msb/protocol/agent"
	"msb/protocol/blocking"
	"msb/protocol/frame"
)

// direct is a connection that carries requests of msb.fs straight to the guest,
// one at a time: whoever asks writes the request and reads the answer himself,
// so that nobody has to be woken but the guest and he.
type direct struct {
	pool *directs
	conn *blocking.Conn
	id   uint32
	out  agent.Gathered

	buf        []byte // read ahead: buf[start:end]
	start, end int
}

const (
	// directAhead is what is read of a connection at a time: an answer without
	// much data.
	directAhead = 16 << 10
	// directPatience is after what time of waiting it is asked whether anybody
	// still waits.
	directPatience = 10 * time.Millisecond
	// directRest bounds the wait for the rest of an answer that has begun.
	directRest = 10 * time.Second
	// directSocket is the size that a socket's buffer should have, so that a
	// piece of data fits.
	directSocket = 2 << 20
)

func newDirect(pool *directs, c net.Conn) (*direct, error) {
	conn, err := blocking.New(c)
	if err != nil {
		return nil, err
	}
	conn.SetBuffer(directSocket)
	if err := conn.SetTimeout(directPatience, directPatience); err != nil {
		conn.Close()
		return nil, err
	}
	return &direct{pool: pool, conn: conn, buf: make([]byte, directAhead)}, nil
}

// lostDirect says that a direct connection broke under a request: nobody knows
// whether the guest has done it.
type lostDirect struct{ err error }

func (e *lostDirect) Error() string   { return "connection to the sandbox's files: " + e.err.Error() }
func (e *lostDirect) Unwrap() []error { return []error{syscall.ENOTCONN, e.err} }

// reply is the head of an answer whose beginning has been read ahead.
type reply struct{ size int } // of the body

// ask sends a request and waits until its answer begins. When ctx ends first, d
// is closed, and so it is with every error: what the guest has not begun it then
// does not do, and what the request has brought it takes back.
func (d *direct) ask(ctx context.Context, p *agent.NodeRequestPayload) (reply, error) {
	d.id++
	if err := d.out.Request(d.id, p); err != nil {
		d.pool.put(d)
		return reply{}, err
	}
	parts := d.out.Parts()
	for {
		_, err := d.conn.WriteParts(parts)
		if err == nil {
			break
		}
		if err := d.waiting(ctx, err); err != nil {
			return reply{}, err
		}
	}
	for {
		err := d.need(frame.Overhead)
		if err == nil {
			return d.head()
		}
		if err := d.waiting(ctx, err); err != nil {
			return reply{}, err
		}
	}
}

// waiting returns nil when what failed may go on.
func (d *direct) waiting(ctx context.Context, err error) error {
	if err != blocking.ErrTimeout {
		return d.lose(err)
	}
	if ctx.Err() != nil {
		d.pool.drop(d)
		return context.Cause(ctx)
	}
	return nil
}

func (d *direct) lose(err error) error {
	d.pool.drop(d)
	return &lostDirect{err}
}

var errAnswer = errors.New("the guest's answer makes no sense")

// head takes the head of the answer's frame.
func (d *direct) head() (reply, error) {
	b := d.buf[d.start:]
	length := binary.BigEndian.Uint32(b)
	if err := frame.CheckLength(length); err != nil {
		return reply{}, d.lose(err)
	}
	if binary.BigEndian.Uint32(b[4:]) != d.id || b[8]&frame.FlagTerminal == 0 || b[8]&frame.FlagBulk != 0 {
		return reply{}, d.lose(errAnswer)
	}
	d.start += frame.Overhead
	return reply{int(length) - frame.HeaderSize}, nil
}

// need reads until n bytes are read ahead; n is at most directAhead.
func (d *direct) need(n int) error {
	if d.start == d.end {
		d.start, d.end = 0, 0
	} else if d.start+n > len(d.buf) {
		d.end = copy(d.buf, d.buf[d.start:d.end])
		d.start = 0
	}
	for d.end-d.start < n {
		m, err := d.conn.Read(d.buf[d.end:])
		d.end += m
		if err != nil && d.end-d.start < n {
			return err
		}
	}
	return nil
}

// rest fills p with what follows.
func (d *direct) rest(p []byte) error {
	n := copy(p, d.buf[d.start:d.end])
	d.start += n
	if n == len(p) {
		return nil
	}
	for p, waited := p[n:], time.Duration(0); len(p) > 0; {
		n, err := d.conn.Read(p)
		p = p[n:]
		switch {
		case err == nil:
		case err == blocking.ErrTimeout && waited < directRest:
			waited += directPatience
		default:
			return err
		}
	}
	return nil
}

// decode takes the whole answer. The results own their bytes. d is given back.
func (d *direct) decode(a reply, ops []agent.NodeOp) ([]agent.NodeResult, error) {
	body := make([]byte, a.size)
	if err := d.rest(body); err != nil {
		return nil, d.lose(err)
	}
	id := d.id
	e, err := agent.ParseEnvelope(body)
	if err != nil {
		return nil, d.lose(err)
	}
	if t, _ := e.Type(); t != agent.NodeResponse {
		return nil, d.lose(errAnswer)
	}
	d.pool.put(d)
	return nodeResults(id, e.P, ops)
}

// do is Nodes.Do.
func (d *direct) do(ctx context.Context, as *agent.NodeIdentity, ops []agent.NodeOp) ([]agent.NodeResult, error) {
	a, err := d.ask(ctx, &agent.NodeRequestPayload{Ops: ops, As: as})
	if err != nil {
		return nil, err
	}
	return d.decode(a, ops)
}

// readAt reads len(p) bytes, at most agent.MaxNodeInline, straight into p.
func (d *direct) readAt(ctx context.Context, handle agent.NodeRef, p []byte, off int64) (int, error) {
	ops := []agent.NodeOp{&agent.NodeRead{Handle: handle, Offset: uint64(off), Len: uint32(len(p))}}
	a, err := d.ask(ctx, &agent.NodeRequestPayload{Ops: ops})
	if err != nil {
		return 0, err
	}
	if err := d.need(min(a.size, 128)); err != nil {
		return 0, d.lose(err)
	}
	start, n, ok := agent.ReadData(d.buf[d.start:d.end], a.size)
	if !ok {
		results, err := d.decode(a, ops)
		if err != nil {
			return 0, err
		}
		data := results[0].(*agent.NodeBytesResult).Data
		if len(data) > len(p) {
			return 0, &ProtocolError{Problem: "read: more than was asked for"}
		}
		return copy(p, data), short(len(data), len(p))
	}
	if n > len(p) {
		return 0, d.lose(errAnswer)
	}
	d.start += start
	if err := d.rest(p[:n]); err != nil {
		return 0, d.lose(err)
	}
	var tail [agent.ReadTail]byte
	if err := d.rest(tail[:]); err != nil {
		return 0, d.lose(err)
	}
	if !agent.IsReadTail(tail[:]) {
		return 0, d.lose(errAnswer)
	}
	d.pool.put(d)
	return n, short(n, len(p))
}

func short(n, want int) error {
	if n < want {
		return io.EOF
	}
	return nil
}

// join makes the connection share a session of the guest's.
func (d *direct) join(ctx context.Context, session []byte) error {
	ops := []agent.NodeOp{&agent.NodeJoin{Session: bytes.Clone(session)}}
	a, err := d.ask(ctx, &agent.NodeRequestPayload{Ops: ops})
	if err != nil {
		return err
	}
	body := make([]byte, a.size)
	if err := d.rest(body); err != nil {
		return d.lose(err)
	}
	e, err := agent.ParseEnvelope(body)
	if err == nil {
		_, err = nodeResults(d.id, e.P, ops)
	}
	if err != nil {
		return d.lose(err)
	}
	return nil
}

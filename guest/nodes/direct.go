package nodes

import (
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"msb/protocol/agent"
	"msb/protocol/blocking"
	"msb/protocol/frame"
)

const (
	// firstRequest bounds the wait for the request that says whose connection it is.
	firstRequest = 5 * time.Second
	// answerTime bounds the wait for a host that does not take an answer.
	answerTime = 30 * time.Second
	// directSocket is the size that a socket's buffer should have, so that a piece of data fits.
	directSocket = 2 << 20
)

// ServeDirect serves connections that carry nothing but msb.fs, one request after the other: the goroutine that has
// read a request does it and writes the answer, without the queues of the agent's loop. The first operation of such a
// connection is a join, and there is only that one. Streams and waits for locks are refused. A connection that sends
// anything else is closed. ServeDirect returns when the listener is closed, which Close does.
func (s *Service) ServeDirect(l net.Listener) error {
	if !s.direct.open(l) {
		return l.Close()
	}
	for {
		conn, err := l.Accept()
		switch {
		case err == nil:
			s.acceptDirect(conn)
		case errors.Is(err, net.ErrClosed):
			return nil
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ECONNABORTED):
			time.Sleep(50 * time.Millisecond)
		default:
			return err
		}
	}
}

func (s *Service) acceptDirect(accepted net.Conn) {
	conn, err := blocking.New(accepted)
	if err != nil {
		return
	}
	conn.SetBuffer(directSocket)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || !s.direct.add(conn) {
		conn.Close()
		return
	}
	s.wg.Go(func() {
		d := &direct{svc: s, conn: conn, owner: newOwner(), in: reader{src: conn}}
		d.serve()
		s.direct.remove(conn)
		d.owner.cancel()
		s.drop(d.owner)
	})
}

// Hold lets no direct connection begin a request until Release, and returns when none is under way.
func (s *Service) Hold() { s.direct.hold() }

// Release ends Hold.
func (s *Service) Release() { s.direct.release() }

// direct is one direct connection.
type direct struct {
	svc   *Service
	conn  *blocking.Conn
	owner *owner
	in    reader
	body  *buffer // of the request
	data  *buffer // what a read returns; nil: none was used
	out   agent.Gathered

	thread thread
	last   *request // the one answered last, until the next one comes
}

// serve answers requests until the connection ends or what comes is none.
func (d *direct) serve() {
	d.thread.take(&d.svc.root)
	if d.conn.SetTimeout(firstRequest, answerTime) != nil {
		return
	}
	for first := true; ; first = false {
		id, body, err := d.next()
		if err != nil {
			if errors.Is(err, unix.ECONNRESET) { // the last answer has not been read
				d.last.undo()
			}
			return
		}
		err = d.answer(id, body, first)
		d.body.give()
		d.data.give()
		d.body, d.data = nil, nil
		if err != nil {
			return
		}
		if first && d.conn.SetTimeout(0, answerTime) != nil {
			return
		}
	}
}

var errNoRequest = errors.New("not a request of msb.fs")

// next reads a frame.
func (d *direct) next() (id uint32, body []byte, err error) {
	var head [frame.Overhead]byte
	if err := d.in.full(head[:]); err != nil {
		return 0, nil, err
	}
	length := binary.BigEndian.Uint32(head[:])
	if err := frame.CheckLength(length); err != nil {
		return 0, nil, err
	}
	if head[8] != agent.NodeRequest.Flags() {
		return 0, nil, errNoRequest
	}
	size := int(length) - frame.HeaderSize
	d.body = takeBuffer(size)
	body = d.body.b[:size]
	return binary.BigEndian.Uint32(head[4:]), body, d.in.full(body)
}

// answer does a request and writes what became of it.
func (d *direct) answer(id uint32, body []byte, first bool) error {
	env, err := agent.ParseEnvelope(body)
	if err != nil {
		return err
	}
	r := &request{svc: d.svc, own: d.owner, id: id, version: env.V, direct: d}
	if t, _ := env.Type(); t != agent.NodeRequest {
		return errNoRequest
	}
	if err := agent.DecodePayload(env.P, &r.payload); err != nil {
		return err
	}
	if _, joins := r.payload.Ops[0].(*agent.NodeJoin); joins != first {
		return errNoRequest
	}
	if !d.svc.direct.enter() {
		return net.ErrClosed
	}
	if d.conn.Left() { // nobody waits for it any more: it may have stood here for long
		d.svc.direct.leave()
		return net.ErrClosed
	}
	sent := false
	if r.err = r.check(); r.err == nil {
		d.svc.gate <- struct{}{}
		if sent, err = d.send(r); !sent {
			r.run()
		}
		<-d.svc.gate
	}
	d.svc.direct.leave()
	if sent {
		return err
	}
	defer r.free()
	answer := response(r.results, r.err)
	if err := d.out.Response(id, &answer); err != nil {
		return err
	}
	d.last = r
	if _, err = d.conn.WriteParts(d.out.Parts()); err != nil {
		r.undo()
	}
	return err
}

// undo gives back what a request has brought whose answer nobody has read.
func (r *request) undo() {
	if r == nil || r.table == nil {
		return
	}
	done := r.results
	for i, x := range done {
		switch x := x.(type) {
		case *agent.NodeEntryResult:
			r.table.forget(x.Node, 1)
		case *agent.NodeCreatedResult:
			_, _ = r.close(&agent.NodeClose{Handle: x.Handle})
			r.table.forget(x.Node, 1)
		case *agent.NodeHandleResult:
			_, _ = r.close(&agent.NodeClose{Handle: x.Handle})
		case *agent.NodeListResult:
			for _, e := range x.Entries {
				if e.Node != 0 {
					r.table.forget(e.Node, 1)
				}
			}
		}
		if lock, ok := r.payload.Ops[i].(*agent.NodeLock); ok && lock.Type != agent.NodeUnlock {
			drop := *lock
			drop.Type = agent.NodeUnlock
			_, _ = r.lock(&drop)
		}
	}
	r.results = nil
}

// sendFrom is the size of a read from which its data goes from the file to the socket without coming by here.
const sendFrom = 16 << 10

// send answers a request of one read of much data. false means that nothing has been done.
func (d *direct) send(r *request) (sent bool, err error) {
	op, ok := r.payload.Ops[0].(*agent.NodeRead)
	if !ok || len(r.payload.Ops) != 1 || op.Len < sendFrom || op.Len > agent.MaxNodeInline || op.Offset > math.MaxInt64-uint64(op.Len) {
		return false, nil
	}
	if r.table, err = d.svc.tableOf(d.owner, r.payload.Ops); err != nil {
		return false, nil
	}
	h, err := r.file(op.Handle)
	if err != nil {
		return false, nil
	}
	defer func() { _ = h.unref() }()
	var st unix.Stat_t
	if err := unix.Fstat(h.fd, &st); err != nil {
		return false, nil
	}
	n := int(min(int64(op.Len), st.Size-int64(op.Offset)))
	if n < sendFrom {
		return false, nil
	}
	head, tail := d.out.AroundRead(r.id, n)
	if _, err := d.conn.Write(head); err != nil {
		return true, err
	}
	m, err := d.conn.SendFile(h.fd, int64(op.Offset), n)
	if errors.Is(err, io.EOF) { // the file has become shorter: what was cut off reads as zeros once more
		_, err = d.conn.Write(make([]byte, n-m))
	}
	if err == nil {
		_, err = d.conn.Write(tail)
	}
	return true, err // an error ends the connection: the host asks again another way
}

// free gives the permit for a large answer back.
func (r *request) free() {
	if r.permit {
		r.permit = false
		<-r.svc.large
	}
}

// scratch returns memory for n bytes of results, valid until the answer has been sent.
func (r *request) scratch(n int) []byte {
	if r.direct == nil || r.direct.data != nil {
		return make([]byte, n)
	}
	r.direct.data = takeBuffer(n)
	return r.direct.data.b[:n]
}

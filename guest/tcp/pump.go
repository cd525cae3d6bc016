package tcp

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"msb/guest/bulk"
	"msb/guest/port"
	"msb/protocol/agent"
	"msb/protocol/frame"
)

const (
	// bufferSize is the most that is read from a socket at a time, in bytes.
	bufferSize = frame.DefaultBulkRecord

	maxBuffers         = 64 // in use at the same moment, all clients
	maxBuffersPerOwner = 8
)

type buffer [bufferSize]byte

var buffers = sync.Pool{New: func() any { return new(buffer) }}

// serve connects and then carries bytes both ways until both sides have finished, which returns nil.
func (c *conn) serve() *bulk.Ending {
	ctx, cancel := context.WithTimeout(c.ctx, connectTimeout)
	nc, err := c.svc.dial(ctx, c.host, c.port)
	cancel()
	if err != nil {
		if c.ctx.Err() != nil {
			return &bulk.Ending{Silent: true} // run knows better
		}
		return &bulk.Ending{Text: connectError(c.host, c.port, err)}
	}
	defer c.hangUp(nc)
	if !c.attach(nc) {
		return &bulk.Ending{Silent: true}
	}
	if err := c.svc.out.Send(c.id, agent.TCPConnected, agent.Empty{}); err != nil {
		return &bulk.Ending{Silent: true}
	}
	if c.refused != nil {
		return &bulk.Ending{Text: c.refused.Error()}
	}
	if c.bulk {
		if err := c.svc.out.Send(c.id, agent.BulkAccepted, c.accepted); err != nil {
			return &bulk.Ending{Silent: true}
		}
	}
	inbound := make(chan struct{})
	go func() {
		defer close(inbound)
		if e := c.receive(nc); e != nil {
			c.End(*e)
		}
	}()
	if e := c.transmit(nc); e != nil {
		c.End(*e)
	}
	<-inbound
	return nil
}

// hangUp closes the socket. The destination of a stream that did not end in order sees a reset: it must not take what it
// got for everything there was.
func (c *conn) hangUp(nc *net.TCPConn) {
	if c.ended() != nil {
		_ = nc.SetLinger(0)
	}
	_ = nc.Close()
}

// attach makes nc reachable for end. It fails when the stream has ended meanwhile.
func (c *conn) attach(nc *net.TCPConn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over != nil {
		return false
	}
	c.nc = nc
	return true
}

// transmit writes what the host sends until the host has finished.
func (c *conn) transmit(nc *net.TCPConn) *bulk.Ending {
	var batch []chunk
	for {
		c.mu.Lock()
		over, done := c.over, c.done
		batch, c.queue = c.queue, batch[:0]
		c.mu.Unlock()
		if over == nil && len(batch) > 0 {
			for i, w := range batch {
				if e := c.write(nc, w); e != nil {
					drop(batch[i+1:])
					return e
				}
				batch[i] = chunk{}
			}
			continue
		}
		drop(batch)
		switch {
		case over != nil:
			return over
		case done:
			if err := nc.CloseWrite(); err != nil && !closedAlready(err) {
				return &bulk.Ending{Text: "shutdown TCP stream: " + port.OSError(err)}
			}
			return nil
		}
		select {
		case <-c.wake:
		case <-c.ctx.Done():
		}
	}
}

// closedAlready tells whether the other side has reset the connection, which leaves nothing to shut down. The reading
// half reports it.
func closedAlready(err error) bool { return port.OSError(err) == port.OSError(unix.ENOTCONN) }

func drop(cs []chunk) {
	for i := range cs {
		cs[i].release()
		cs[i] = chunk{}
	}
}

// write gives one chunk to the destination and credit back to the host. It always releases the chunk.
func (c *conn) write(nc *net.TCPConn, w chunk) *bulk.Ending {
	n := len(w.data)
	_, err := nc.Write(w.data)
	w.release()
	if err != nil {
		return &bulk.Ending{Text: "write TCP stream: " + port.OSError(err)}
	}
	if !c.bulk {
		return c.ended()
	}
	c.mu.Lock()
	grant, owed := c.recv.Consume(n)
	over := c.over
	c.mu.Unlock()
	if owed && over == nil {
		c.svc.Grant(c.id, grant)
	}
	return over
}

// receive sends what the destination says until it has finished.
func (c *conn) receive(nc *net.TCPConn) *bulk.Ending {
	raw, err := nc.SyscallConn()
	if err != nil {
		return &bulk.Ending{Text: "read TCP stream: " + port.OSError(err)}
	}
	r := reader{c: c, raw: raw}
	r.try = r.attempt
	for {
		limit, over := c.room()
		if over != nil {
			return over
		}
		buf, n, err := r.read(limit)
		if n > 0 {
			err = c.deliver(buf[:n])
			c.put(buf)
			if err != nil {
				return &bulk.Ending{Silent: true}
			}
			continue
		}
		if err == io.EOF {
			return c.sayEOF()
		}
		return &bulk.Ending{Text: "read TCP stream: " + port.OSError(err)}
	}
}

// room waits until the host takes more and returns how much.
func (c *conn) room() (int, *bulk.Ending) {
	for {
		c.mu.Lock()
		over, n := c.over, bufferSize
		if c.bulk {
			n = min(n, c.send.Room())
		}
		c.mu.Unlock()
		if over != nil || n > 0 {
			return n, over
		}
		select {
		case <-c.grant:
		case <-c.ctx.Done():
		}
	}
}

// reader reads from a socket into pooled buffers. It takes a buffer only when there is something to read, so that an
// idle connection has none.
type reader struct {
	c     *conn
	raw   syscall.RawConn
	try   func(fd uintptr) bool
	limit int
	buf   *buffer
	n     int
	err   error
}

// read waits for data and reads up to limit bytes. The caller puts the buffer back if n is not 0.
func (r *reader) read(limit int) (buf *buffer, n int, err error) {
	r.limit = limit
	if err := r.raw.Read(r.try); err != nil {
		return nil, 0, err
	}
	return r.buf, r.n, r.err
}

// attempt reads once. It returns false when there is nothing to read yet.
func (r *reader) attempt(fd uintptr) bool {
	if r.buf = r.c.take(); r.buf == nil {
		r.n, r.err = 0, os.ErrDeadlineExceeded
		return true
	}
	for {
		if r.n, r.err = unix.Read(int(fd), r.buf[:r.limit]); r.err != unix.EINTR {
			break
		}
	}
	if r.n > 0 {
		return true
	}
	r.c.put(r.buf)
	if r.err == nil {
		r.err = io.EOF
	}
	r.n = 0
	return r.err != unix.EAGAIN
}

// take returns a buffer and its permit, nil when the stream ends before there is one.
func (c *conn) take() *buffer {
	select {
	case c.own.io <- struct{}{}:
	case <-c.ctx.Done():
		return nil
	}
	select {
	case c.svc.io <- struct{}{}:
		return buffers.Get().(*buffer)
	case <-c.ctx.Done():
		<-c.own.io
		return nil
	}
}

func (c *conn) put(b *buffer) {
	buffers.Put(b)
	<-c.svc.io
	<-c.own.io
}

// deliver sends data to the host.
func (c *conn) deliver(p []byte) error {
	if !c.bulk {
		return c.svc.out.Send(c.id, agent.TCPData, agent.Data{Data: p})
	}
	c.mu.Lock()
	offset, err := c.send.Take(len(p))
	c.mu.Unlock()
	if err != nil {
		return err
	}
	return c.svc.out.SendBulk(c.id, frame.BulkTCP, frame.FlowGuestToHost, offset, p)
}

// sayEOF tells the host that the destination sends no more.
func (c *conn) sayEOF() *bulk.Ending {
	if !c.bulk {
		if c.svc.out.Send(c.id, agent.TCPEOF, agent.Empty{}) != nil {
			return &bulk.Ending{Silent: true}
		}
		return nil
	}
	c.mu.Lock()
	final, err := c.send.Finish()
	c.mu.Unlock()
	if err == nil {
		err = c.svc.out.Send(c.id, agent.BulkFinish, agent.BulkFinishPayload{
			Kind: frame.BulkTCP, Flow: frame.FlowGuestToHost, FinalOffset: final,
		})
	}
	if err != nil {
		return &bulk.Ending{Silent: true}
	}
	return nil
}

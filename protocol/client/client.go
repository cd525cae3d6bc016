package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"msb/protocol/frame"
)

// Client is one connection that speaks the protocol P. Safe for concurrent
// use.
type Client[P Protocol] struct {
	*Conn
	proto P
}

// New runs the opening exchange of p on rwc and takes rwc over: it is closed
// when New fails or ctx ends before the exchange is done. Closing rwc must make
// its pending reads and writes return.
func New[P Protocol](ctx context.Context, rwc io.ReadWriteCloser, p P) (*Client[P], error) {
	src := newSource(rwc)
	stop := context.AfterFunc(ctx, func() { rwc.Close() })
	ids, err := p.Setup(ctx, &Opening{r: src, w: rwc})
	if !stop() && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err == nil && (ids.First == 0 || ids.First > ids.Last) {
		err = fmt.Errorf("no usable correlation ids: %d to %d", ids.First, ids.Last)
	}
	if err != nil {
		rwc.Close()
		return nil, err
	}
	c := &Conn{
		proto:  p,
		rwc:    rwc,
		w:      newWriter(rwc),
		ids:    allocator{space: ids, next: uint64(ids.First)},
		routes: map[uint32]*Stream{},
		ending: make(chan struct{}),
		done:   make(chan struct{}),
	}
	go c.serve(src)
	return &Client[P]{Conn: c, proto: p}, nil
}

// Protocol returns the plugged-in protocol with what its setup learned.
func (c *Client[P]) Protocol() P { return c.proto }

// Conn is the part of a Client that does not depend on the type of its
// protocol.
type Conn struct {
	proto Protocol
	rwc   io.ReadWriteCloser
	w     *writer

	mu     sync.Mutex
	ids    allocator
	routes map[uint32]*Stream
	lost   *LostError // why the connection ends; set before ending is closed

	ending chan struct{} // the connection is going away
	done   chan struct{} // it is gone and nothing of it runs any more
}

// serve owns the connection's goroutines: it reads, and waits for the writer.
func (c *Conn) serve(src *source) {
	wrote := make(chan struct{})
	go func() {
		defer close(wrote)
		if err := c.w.run(); err != nil {
			c.shut(err)
		}
	}()
	c.shut(c.read(src))
	<-wrote

	c.mu.Lock()
	routes := c.routes
	c.routes = nil
	lost := c.lost
	c.mu.Unlock()
	for _, s := range routes {
		s.h.Lost(lost)
	}
	close(c.done)
}

func (c *Conn) read(src *source) error {
	body := Body{s: src}
	for {
		h, err := src.header()
		if err != nil {
			return err
		}
		body.left, body.err = h.Len, nil
		if err := c.dispatch(h, &body); err != nil {
			return err
		}
	}
}

// dispatch gives a frame to its stream. Frames of ids that nobody owns, such
// as late ones of a finished stream, are skipped.
func (c *Conn) dispatch(h Header, body *Body) error {
	last := h.Terminal()
	if last {
		// The whole frame has to be here before its stream loses its route:
		// else a connection that breaks within it would end the stream with
		// neither an answer nor an error.
		raw, err := body.Bytes()
		if err != nil {
			return body.finish()
		}
		body.last, body.left = raw, len(raw)
	}
	c.mu.Lock()
	s := c.routes[h.ID]
	if last && s != nil {
		delete(c.routes, h.ID)
	}
	c.mu.Unlock()
	if s != nil {
		s.h.Frame(h, body)
	}
	return body.finish()
}

// shut begins the end of the connection; the first cause counts.
func (c *Conn) shut(cause error) {
	c.mu.Lock()
	if c.lost != nil {
		c.mu.Unlock()
		return
	}
	c.lost = &LostError{Cause: cause}
	c.mu.Unlock()
	close(c.ending)
	c.w.close(c.lost)
	c.rwc.Close()
}

// Close ends the connection: every stream ends with a LostError whose cause is
// ErrClosed. It returns when nothing of the connection runs any more. It must
// not be called from a Handler.
func (c *Conn) Close() error {
	c.shut(ErrClosed)
	<-c.done
	return nil
}

// Done is closed when the connection is gone and nothing of it runs any more.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err returns nil while the connection lives, then why it ended.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost == nil {
		return nil
	}
	return c.lost
}

// Active returns how many streams are open.
func (c *Conn) Active() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.routes)
}

// IDsLeft returns how many single-use ids remain; for reusable ids it is the
// size of the space.
func (c *Conn) IDsLeft() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ids.left()
}

// Send hands packet, one or more whole frames, to the writer. It returns when
// the packet is queued, waiting while the lane is full. When ctx ends first,
// nothing of it is sent. The packet is taken over in every case.
func (c *Conn) Send(ctx context.Context, ln Lane, packet *Packet) error {
	return c.w.enqueue(ctx, ln, packet)
}

// Post is Send for callers that may not wait, such as a Handler. It reports
// whether the packet was taken; a full queue or a dying connection refuses it.
func (c *Conn) Post(ln Lane, packet *Packet) bool { return c.w.post(ln, packet) }

// WritePacket writes exactly these bytes after everything queued before them
// and returns when the connection has taken them. It allocates no id and
// subscribes to nothing; contents are the caller's responsibility.
func (c *Conn) WritePacket(ctx context.Context, packet []byte) error {
	p := NewPacket(len(packet))
	p.B = append(p.B, packet...)
	return c.Deliver(ctx, Data, p)
}

// Deliver is Send that returns when the connection has taken the packet. When
// ctx ends first the packet may still be sent.
func (c *Conn) Deliver(ctx context.Context, ln Lane, p *Packet) error {
	written := make(chan error, 1)
	p.written = written
	if err := c.w.enqueue(ctx, ln, p); err != nil {
		return err
	}
	select {
	case err := <-written:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Call sends one message and waits for its terminal answer, which it returns.
// Earlier messages of the same stream are dropped.
func (c *Conn) Call(ctx context.Context, name string, payload any) (Message, error) {
	s, err := c.Open(1)
	if err != nil {
		return Message{}, err
	}
	defer s.Close()
	if err := s.Send(ctx, name, payload); err != nil {
		return Message{}, err
	}
	for {
		m, err := s.Recv(ctx)
		if err != nil || m.Terminal() {
			return m, err
		}
	}
}

// message builds the frame of a message in a packet.
func (c *Conn) message(id uint32, out Outbound, payload []byte) (*Packet, error) {
	if len(payload) > frame.MaxBody {
		return nil, fmt.Errorf("%w: payload of %d bytes", frame.ErrTooLarge, len(payload))
	}
	p := NewPacket(len(payload) + len(out.Name) + 64)
	b, err := c.proto.AppendFrame(p.B, id, out, payload)
	if err != nil {
		p.Free()
		return nil, err
	}
	p.B = b
	return p, nil
}

// register gives s an id and its route.
func (c *Conn) register(s *Stream) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost != nil {
		return c.lost
	}
	id, err := c.ids.take(c.routes)
	if err != nil {
		return err
	}
	s.id = id
	c.routes[id] = s
	return nil
}

// release takes the route of s away. A reusable id that still owes a terminal
// answer stays taken until that came.
func (c *Conn) release(s *Stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.routes[s.id] != s {
		return
	}
	if c.ids.space.Reusable && s.sent.Load() {
		c.routes[s.id] = &Stream{c: c, id: s.id, h: discard{}}
		return
	}
	delete(c.routes, s.id)
}

// IsLost tells whether err says that the connection is gone.
func IsLost(err error) bool {
	var lost *LostError
	return errors.As(err, &lost)
}

// discard swallows what comes for a stream that its owner left.
type discard struct{}

func (discard) Frame(Header, *Body) {}
func (discard) Lost(*LostError)     {}

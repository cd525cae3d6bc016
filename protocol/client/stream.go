package client

import (
	"context"
	"io"
	"sync"
	"sync/atomic"

	"msb/protocol/frame"
)

// Handler receives the frames of one stream, undecoded, on the connection's
// reader: it must not wait for anything but body, as every other stream waits
// for it. Calls come one at a time. After a terminal frame, or after Lost,
// there is no further call; a call that is under way while the stream is closed
// may still finish after it.
type Handler interface {
	Frame(h Header, body *Body)
	// Lost tells that the connection is gone: once, instead of a terminal frame.
	Lost(err *LostError)
}

// Stream is one correlation id and who owns it.
type Stream struct {
	c      *Conn
	id     uint32
	h      Handler
	q      *queue // for Recv
	sent   atomic.Bool
	closed atomic.Bool
}

// Subscribe opens a stream whose frames go to h. It does not send.
func (c *Conn) Subscribe(h Handler) (*Stream, error) {
	s := &Stream{c: c, h: h}
	if err := c.register(s); err != nil {
		return nil, err
	}
	return s, nil
}

// Open opens a stream that is read with Recv or RecvFrame. At most depth
// frames wait for the reader (one more may be on its way); then the whole
// connection waits, so a slow owner of such a stream holds up the others.
func (c *Conn) Open(depth int) (*Stream, error) {
	q := &queue{
		frames: make(chan queued, max(depth, 1)),
		left:   make(chan struct{}),
		ending: c.ending,
	}
	s := &Stream{c: c, h: q, q: q}
	if err := c.register(s); err != nil {
		return nil, err
	}
	return s, nil
}

// ID returns the correlation id.
func (s *Stream) ID() uint32 { return s.id }

// Send encodes payload with the protocol's codec and sends it.
func (s *Stream) Send(ctx context.Context, name string, payload any) error {
	out, err := s.c.proto.Prepare(name)
	if err != nil {
		return err
	}
	p, err := s.c.proto.Encode(payload)
	if err != nil {
		return err
	}
	return s.send(ctx, out, p)
}

// SendEncoded sends a message whose payload is already encoded; its bytes are
// preserved.
func (s *Stream) SendEncoded(ctx context.Context, name string, payload []byte) error {
	out, err := s.c.proto.Prepare(name)
	if err != nil {
		return err
	}
	return s.send(ctx, out, payload)
}

func (s *Stream) send(ctx context.Context, out Outbound, payload []byte) error {
	p, err := s.c.message(s.id, out, payload)
	if err != nil {
		return err
	}
	return s.SendPacket(ctx, Control, p)
}

// SendRaw sends a frame with any flags and body on this stream. No gate looks
// at it.
func (s *Stream) SendRaw(ctx context.Context, flags uint8, body []byte) error {
	p := NewPacket(frame.Overhead + len(body))
	b, err := frame.Append(p.B, s.id, flags, body)
	if err != nil {
		p.Free()
		return err
	}
	p.B = b
	return s.SendPacket(ctx, Control, p)
}

// SendPacket sends whole frames that the caller built for this stream.
func (s *Stream) SendPacket(ctx context.Context, ln Lane, p *Packet) error {
	if s.closed.Load() {
		p.Free()
		return ErrStreamClosed
	}
	s.sent.Store(true)
	return s.c.Send(ctx, ln, p)
}

// Recv returns the next message. After the terminal one comes io.EOF, after
// the loss of the connection a *LostError.
func (s *Stream) Recv(ctx context.Context) (Message, error) {
	h, body, err := s.RecvFrame(ctx)
	if err != nil {
		return Message{}, err
	}
	return s.c.proto.Decode(h, body)
}

// RecvFrame returns the next frame without decoding it; the body belongs to
// the caller. Only for streams of Open.
func (s *Stream) RecvFrame(ctx context.Context) (Header, []byte, error) {
	if s.q == nil {
		return Header{}, nil, ErrStreamClosed
	}
	return s.q.next(ctx)
}

// Close gives the stream up; later frames of its id are dropped.
func (s *Stream) Close() {
	if s.closed.Swap(true) {
		return
	}
	s.c.release(s)
	if s.q != nil {
		close(s.q.left)
	}
}

// queue is the Handler of streams that are read with Recv.
type queue struct {
	frames chan queued
	left   chan struct{} // the owner closed the stream
	ending chan struct{} // the connection ends

	once sync.Once
	end  error // set before frames is closed
}

type queued struct {
	h    Header
	body []byte
}

func (q *queue) Frame(h Header, body *Body) {
	b, err := body.Bytes()
	if err != nil {
		return
	}
	select {
	case q.frames <- queued{h, append([]byte(nil), b...)}:
	case <-q.left:
	case <-q.ending:
		// The owner hears of the loss instead, unless there is room.
		select {
		case q.frames <- queued{h, append([]byte(nil), b...)}:
		default:
		}
	}
	if h.Terminal() {
		q.finish(io.EOF)
	}
}

func (q *queue) Lost(err *LostError) { q.finish(err) }

func (q *queue) finish(err error) {
	q.once.Do(func() {
		q.end = err
		close(q.frames)
	})
}

func (q *queue) next(ctx context.Context) (Header, []byte, error) {
	select {
	case f, ok := <-q.frames:
		if !ok {
			return Header{}, nil, q.end
		}
		return f.h, f.body, nil
	case <-q.left:
		return Header{}, nil, ErrStreamClosed
	case <-ctx.Done():
		return Header{}, nil, context.Cause(ctx)
	}
}

package client

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"msb/protocol/frame"
)

// sourceSize is what one connection holds to read ahead. Small frames are
// taken from it without copying.
const sourceSize = 256 << 10

// source buffers the incoming byte stream.
type source struct {
	src        io.Reader
	buf        []byte
	start, end int
	err        error
}

func newSource(src io.Reader) *source { return &source{src: src, buf: make([]byte, sourceSize)} }

func (s *source) buffered() int { return s.end - s.start }

// fill reads once into the free part of the buffer. It moves what is
// buffered to the front when fewer than need bytes fit behind it.
func (s *source) fill(need int) error {
	if s.err != nil {
		return s.err
	}
	if s.start == s.end {
		s.start, s.end = 0, 0
	} else if len(s.buf)-s.start < need {
		s.end = copy(s.buf, s.buf[s.start:s.end])
		s.start = 0
	}
	for range 100 {
		n, err := s.src.Read(s.buf[s.end:])
		s.end += n
		s.err = err
		if n > 0 {
			return nil
		}
		if err != nil {
			return err
		}
	}
	s.err = io.ErrNoProgress
	return s.err
}

// peek returns the next n bytes without taking them; n is at most sourceSize.
func (s *source) peek(n int) ([]byte, error) {
	for s.buffered() < n {
		if err := s.fill(n); err != nil {
			return nil, err
		}
	}
	return s.buf[s.start : s.start+n], nil
}

// Read takes what is buffered, or reads large pieces past the buffer.
func (s *source) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if s.buffered() == 0 {
		if s.err != nil {
			return 0, s.err
		}
		if len(p) >= sourceSize/4 {
			n, err := s.src.Read(p)
			s.err = err
			if n > 0 {
				err = nil
			}
			return n, err
		}
		if err := s.fill(1); err != nil {
			return 0, err
		}
	}
	n := copy(p, s.buf[s.start:s.end])
	s.start += n
	return n, nil
}

// header takes the next frame header. io.EOF means that the stream ended
// between two frames.
func (s *source) header() (Header, error) {
	p, err := s.peek(frame.PrefixSize)
	if err != nil {
		if s.buffered() > 0 {
			err = unexpectedEOF(err)
		}
		return Header{}, err
	}
	length := binary.BigEndian.Uint32(p)
	if err := frame.CheckLength(length); err != nil {
		return Header{}, err
	}
	if p, err = s.peek(frame.Overhead); err != nil {
		return Header{}, unexpectedEOF(err)
	}
	s.start += frame.Overhead
	return Header{
		ID:    binary.BigEndian.Uint32(p[4:]),
		Flags: p[8],
		Len:   int(length) - frame.HeaderSize,
	}, nil
}

// Body is the body of the frame that a Handler is looking at. It is read from
// the connection on demand; what the handler leaves is skipped. Errors are
// those of the connection; the handler hears of them through Lost.
type Body struct {
	s       *source
	left    int
	last    []byte // the rest, when it has been read ahead
	scratch *Packet
	err     error
}

// Len returns how many bytes have not been read yet.
func (b *Body) Len() int { return b.left }

// Read reads from the body, large pieces straight into p.
func (b *Body) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, io.EOF
	}
	if b.last != nil {
		n := copy(p, b.last[len(b.last)-b.left:])
		b.left -= n
		return n, nil
	}
	n, err := b.s.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, b.keep(err)
}

// Chunk takes the next piece of the body, whatever has arrived of it, valid
// until the next call. It waits only when nothing has arrived.
func (b *Body) Chunk() ([]byte, error) {
	if b.left == 0 {
		return nil, io.EOF
	}
	if b.last != nil {
		return b.ahead(b.left), nil
	}
	if b.s.buffered() == 0 {
		if err := b.s.fill(1); err != nil {
			return nil, b.keep(err)
		}
	}
	n := min(b.left, b.s.buffered())
	p := b.s.buf[b.s.start : b.s.start+n]
	b.s.start += n
	b.left -= n
	return p, nil
}

// Next takes exactly n bytes, at most sourceSize; valid until the next call.
func (b *Body) Next(n int) ([]byte, error) {
	if n > b.left {
		return nil, io.ErrUnexpectedEOF
	}
	if b.last != nil {
		return b.ahead(n), nil
	}
	p, err := b.s.peek(n)
	if err != nil {
		return nil, b.keep(err)
	}
	b.s.start += n
	b.left -= n
	return p, nil
}

// Bytes takes the rest of the body; valid until the handler returns.
func (b *Body) Bytes() ([]byte, error) {
	if b.last != nil {
		return b.ahead(b.left), nil
	}
	if b.left <= sourceSize {
		return b.Next(b.left)
	}
	if b.scratch == nil {
		b.scratch = NewPacket(b.left)
	}
	p := b.scratch.B[:b.left]
	_, err := io.ReadFull(b.s, p)
	b.left = 0
	return p, b.keep(err)
}

// ahead takes n bytes of what was read ahead.
func (b *Body) ahead(n int) []byte {
	at := len(b.last) - b.left
	b.left -= n
	return b.last[at : at+n]
}

func (b *Body) keep(err error) error {
	if err != nil && b.err == nil {
		b.err = unexpectedEOF(err)
	}
	return err
}

// finish skips what is left.
func (b *Body) finish() error {
	for b.left > 0 && b.err == nil {
		_, _ = b.Chunk() // an error ends the loop through b.err
	}
	b.last = nil
	if b.scratch != nil {
		b.scratch.Free()
		b.scratch = nil
	}
	return b.err
}

func checkLength(length uint32, limit int) error {
	if err := frame.CheckLength(length); err != nil {
		return err
	}
	if int(length) > limit {
		return fmt.Errorf("%w: %d bytes, the limit here is %d", frame.ErrTooLarge, length, limit)
	}
	return nil
}

func unexpectedEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

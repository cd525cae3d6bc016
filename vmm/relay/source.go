package relay

import (
	"encoding/binary"
	"io"

	"msb/protocol/frame"
)

// source cuts a byte stream into packets. Large frames are read straight into the packet's memory.
type source struct {
	r          io.Reader
	pool       *pool
	buf        []byte
	start, end int
	// prefix is how many bytes precede every frame (the incarnation on the bulk port); they land in the
	// packet's headroom.
	prefix int
}

const sourceBuffer = 64 << 10

func newSource(r io.Reader, p *pool) *source {
	return &source{r: r, pool: p, buf: make([]byte, sourceBuffer)}
}

// next returns the next frame. io.EOF is a clean end between frames; frame.ErrTooLarge and
// frame.ErrTooShort come as soon as the length word is there.
func (s *source) next() (*packet, error) {
	head := s.prefix + frame.PrefixSize
	if err := s.fill(head); err != nil {
		return nil, err
	}
	length := binary.BigEndian.Uint32(s.buf[s.start+s.prefix:])
	if err := frame.CheckLength(length); err != nil {
		return nil, err
	}
	p := s.pool.get(frame.PrefixSize + int(length))
	dst := p.mem[headroom-s.prefix : headroom+p.size]
	if err := s.full(dst); err != nil {
		p.free()
		return nil, err
	}
	return p, nil
}

// full fills dst, from what was read ahead and then from the stream.
func (s *source) full(dst []byte) error {
	n := copy(dst, s.buf[s.start:s.end])
	s.start += n
	rest := dst[n:]
	if len(rest) == 0 {
		return nil
	}
	if len(rest) < len(s.buf)/2 {
		// Small: read what follows it too.
		if err := s.fill(len(rest)); err != nil {
			return midFrame(err)
		}
		s.start += copy(rest, s.buf[s.start:s.end])
		return nil
	}
	if _, err := io.ReadFull(s.r, rest); err != nil {
		return midFrame(err)
	}
	return nil
}

// fill makes at least n bytes, at most the buffer, available.
func (s *source) fill(n int) error {
	if s.end-s.start >= n {
		return nil
	}
	if s.start > 0 {
		s.end = copy(s.buf, s.buf[s.start:s.end])
		s.start = 0
	}
	m, err := io.ReadAtLeast(s.r, s.buf[s.end:], n-s.end)
	s.end += m
	if err != nil && s.end > 0 {
		return midFrame(err)
	}
	return err
}

func midFrame(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

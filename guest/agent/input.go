package agent

import (
	"encoding/binary"
	"io"

	"msb/protocol/frame"
)

// readAhead is how much is read from a port at a time. Frames that are larger are read straight into a buffer of
// their own, which their consumer keeps: no copy and no allocation.
const readAhead = 64 << 10

// ownedFrom is the size on the wire from which a frame gets a buffer of its own.
const ownedFrom = 8 << 10

// input cuts what a port delivers into frames.
type input struct {
	src        io.Reader
	buf        []byte
	start, end int
}

func newInput(src io.Reader) *input { return &input{src: src, buf: make([]byte, readAhead)} }

// next returns the next frame. With owned set, the frame lives there and the caller gives it back; else it is valid
// until the next call. Errors are final: io.EOF between frames, io.ErrUnexpectedEOF inside one, framing errors.
func (in *input) next() (f frame.Frame, owned *buffer, err error) {
	if err := in.fill(frame.PrefixSize); err != nil {
		return f, nil, err
	}
	length := binary.BigEndian.Uint32(in.buf[in.start:])
	if err := frame.CheckLength(length); err != nil {
		return f, nil, err
	}
	total := frame.PrefixSize + int(length)
	if total < ownedFrom {
		if err := in.fill(total); err != nil {
			return f, nil, unexpected(err)
		}
		f = cut(in.buf[in.start : in.start+total : in.start+total])
		in.start += total
		return f, nil, nil
	}
	owned = takeBuffer(total)
	raw := owned.b[:total:total]
	if err := in.full(raw); err != nil {
		owned.give()
		return f, nil, unexpected(err)
	}
	return cut(raw), owned, nil
}

// full fills p, from what was read ahead first.
func (in *input) full(p []byte) error {
	n := copy(p, in.buf[in.start:in.end])
	in.start += n
	if n == len(p) {
		return nil
	}
	m, err := io.ReadFull(in.src, p[n:])
	if n+m > 0 {
		err = unexpected(err)
	}
	return err
}

// fill makes at least n bytes available at start; n is at most readAhead.
func (in *input) fill(n int) error {
	if in.end-in.start >= n {
		return nil
	}
	if len(in.buf)-in.start < n || in.start == in.end {
		in.end = copy(in.buf, in.buf[in.start:in.end])
		in.start = 0
	}
	m, err := io.ReadAtLeast(in.src, in.buf[in.end:], n-(in.end-in.start))
	in.end += m
	if err != nil && in.end > in.start {
		err = unexpected(err)
	}
	return err
}

func cut(raw []byte) frame.Frame {
	return frame.Frame{ID: binary.BigEndian.Uint32(raw[4:]), Flags: raw[8], Body: raw[frame.Overhead:], Raw: raw}
}

func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

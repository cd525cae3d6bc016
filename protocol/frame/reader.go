package frame

import (
	"encoding/binary"
	"io"
)

// Reader cuts a byte stream into frames. It buffers, so nothing else may read
// from the stream. Not safe for concurrent use.
type Reader struct {
	src   io.Reader
	buf   []byte
	start int // first unread byte
	end   int // first free byte
	err   error
}

// readChunk is what an idle Reader holds. A Reader that met a larger frame
// keeps a buffer of that frame's size.
const readChunk = 64 << 10

// NewReader returns a Reader of src.
func NewReader(src io.Reader) *Reader {
	return &Reader{src: src, buf: make([]byte, readChunk)}
}

// Next returns the next frame. Its bytes are valid until the following call.
// A stream that ends between frames gives io.EOF, one that ends inside a frame
// io.ErrUnexpectedEOF. Framing errors (ErrTooLarge, ErrTooShort) are reported
// as soon as the length word is there and are final, as every error is.
func (r *Reader) Next() (Frame, error) {
	length, err := r.peekLength()
	if err != nil {
		return Frame{}, err
	}
	total := PrefixSize + int(length)
	if err := r.fill(total); err != nil {
		return Frame{}, err
	}
	raw := r.buf[r.start : r.start+total : r.start+total]
	r.start += total
	return Frame{ID: binary.BigEndian.Uint32(raw[4:]), Flags: raw[8], Body: raw[Overhead:], Raw: raw}, nil
}

// ReadFull fills p with the next bytes of the stream, outside any frame: the
// relay's prologue, or the record prefix of the bulk port.
func (r *Reader) ReadFull(p []byte) error {
	n := copy(p, r.buf[r.start:r.end])
	r.start += n
	if n == len(p) {
		return nil
	}
	if r.err != nil {
		return r.err
	}
	m, err := io.ReadFull(r.src, p[n:])
	if err != nil {
		if n+m > 0 {
			err = unexpected(err)
		}
		r.err = err
	}
	return err
}

func (r *Reader) peekLength() (uint32, error) {
	if err := r.fill(PrefixSize); err != nil {
		return 0, err
	}
	length := binary.BigEndian.Uint32(r.buf[r.start:])
	if err := CheckLength(length); err != nil {
		r.err = err
		return 0, err
	}
	return length, nil
}

// fill makes at least n bytes available from r.start.
func (r *Reader) fill(n int) error {
	if r.end-r.start >= n {
		return nil
	}
	if r.err != nil {
		return r.err
	}
	if len(r.buf)-r.start < n || r.start == r.end {
		dst := r.buf
		if len(dst) < n {
			dst = make([]byte, n)
		}
		r.end = copy(dst, r.buf[r.start:r.end])
		r.buf, r.start = dst, 0
	}
	m, err := io.ReadAtLeast(r.src, r.buf[r.end:], n-(r.end-r.start))
	r.end += m
	if err != nil {
		if r.end > r.start {
			err = unexpected(err)
		}
		r.err = err
	}
	return err
}

func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

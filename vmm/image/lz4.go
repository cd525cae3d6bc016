package image

import (
	"encoding/binary"
	"errors"
	"io"
)

// lz4Reader unpacks the legacy LZ4 frame format, which is what kernels are packed in
// (LZ4 frame format description, "Legacy frame"): a magic number, then blocks of a length and that many bytes, each
// unpacking to 8 MiB at most.
type lz4Reader struct {
	r       io.Reader
	started bool
	packed  []byte
	block   []byte // unpacked
	rest    []byte // of block, not yet read
}

const (
	lz4Magic     = 0x184c2102
	lz4BlockSize = 8 << 20
)

var errLZ4 = errors.New("lz4: bad block")

func newLZ4Reader(r io.Reader) *lz4Reader { return &lz4Reader{r: r} }

func (z *lz4Reader) Read(p []byte) (int, error) {
	for len(z.rest) == 0 {
		if err := z.next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, z.rest)
	z.rest = z.rest[n:]
	return n, nil
}

func (z *lz4Reader) next() error {
	var word [4]byte
	for {
		if _, err := io.ReadFull(z.r, word[:]); err != nil {
			if err == io.EOF && !z.started {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		n := binary.LittleEndian.Uint32(word[:])
		if n == lz4Magic { // the start, or the next frame
			z.started = true
			continue
		}
		if !z.started || n == 0 || n > lz4BlockSize+lz4BlockSize/255+16 {
			return errLZ4
		}
		if cap(z.packed) < int(n) {
			z.packed = make([]byte, n)
		}
		z.packed = z.packed[:n]
		if _, err := io.ReadFull(z.r, z.packed); err != nil {
			return io.ErrUnexpectedEOF
		}
		var err error
		z.block, err = unpackLZ4Block(z.block[:0], z.packed, lz4BlockSize)
		z.rest = z.block
		return err
	}
}

// unpackLZ4Block appends the unpacked block src to dst, at most limit bytes.
func unpackLZ4Block(dst, src []byte, limit int) ([]byte, error) {
	length := func(n int) (int, bool) { // of a run, from the 4 bits in the token and the bytes that follow
		if n < 15 {
			return n, true
		}
		for len(src) > 0 {
			b := src[0]
			src = src[1:]
			if n += int(b); n > limit {
				return 0, false
			}
			if b < 255 {
				return n, true
			}
		}
		return 0, false
	}
	for len(src) > 0 {
		token := src[0]
		src = src[1:]
		literals, ok := length(int(token >> 4))
		if !ok || literals > len(src) || len(dst)+literals > limit {
			return dst, errLZ4
		}
		dst = append(dst, src[:literals]...)
		src = src[literals:]
		if len(src) == 0 {
			return dst, nil // the last sequence has literals only
		}
		if len(src) < 2 {
			return dst, errLZ4
		}
		distance := int(src[0]) | int(src[1])<<8
		src = src[2:]
		match, ok := length(int(token & 15))
		match += 4
		if !ok || distance == 0 || distance > len(dst) || len(dst)+match > limit {
			return dst, errLZ4
		}
		for match > 0 { // source and target may overlap: what was just written is then repeated
			from := dst[len(dst)-distance:]
			n := min(match, len(from))
			dst = append(dst, from[:n]...)
			match -= n
		}
	}
	return dst, nil
}

// Package record reads and writes the CBOR of both framed protocols: the
// envelope's heads without copying, and payload structs in the published form.
//
// Encoding is definite, shortest and in declared field order. Decoding comes
// tolerant (agent protocol) and strict (control protocol).
package record

import (
	"errors"
	"fmt"
	"math"
)

// ErrMalformed reports bytes that are not the CBOR that was expected.
var ErrMalformed = errors.New("malformed message")

// Malformed returns an error that wraps ErrMalformed.
func Malformed(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrMalformed}, args...)...)
}

// Cursor walks over CBOR without building values, so that an envelope can be
// opened without copying the payload in it.
type Cursor struct {
	B   []byte
	Pos int // next unread byte
}

// CBOR major types.
const (
	Uint   = 0
	Negint = 1
	Bytes  = 2
	Text   = 3
	Array  = 4
	Map    = 5
	Tag    = 6
	Simple = 7
)

// Indefinite is the argument of a container or string of indefinite length.
const Indefinite = math.MaxUint64

// MaxDepth bounds nesting in skipped items.
const MaxDepth = 64

// Head reads one item head. n is the argument, Indefinite for a container or
// string of indefinite length; a lone break code is an error here.
func (c *Cursor) Head() (major byte, n uint64, err error) {
	if c.Pos >= len(c.B) {
		return 0, 0, Malformed("ends early")
	}
	ib := c.B[c.Pos]
	c.Pos++
	major, info := ib>>5, ib&0x1f
	if info < 24 {
		return major, uint64(info), nil
	}
	if info == 31 {
		switch major {
		case Bytes, Text, Array, Map:
			return major, Indefinite, nil
		}
		return 0, 0, Malformed("unexpected 0x%02x", ib)
	}
	if info > 27 {
		return 0, 0, Malformed("reserved head 0x%02x", ib)
	}
	size := 1 << (info - 24)
	if len(c.B)-c.Pos < size {
		return 0, 0, Malformed("ends early")
	}
	for _, x := range c.B[c.Pos : c.Pos+size] {
		n = n<<8 | uint64(x)
	}
	c.Pos += size
	if n == Indefinite && major >= Bytes && major <= Map {
		// It would be taken for one of indefinite length.
		return 0, 0, Malformed("length of 2^64-1")
	}
	return major, n, nil
}

// AtBreak consumes a break code if one is next.
func (c *Cursor) AtBreak() bool {
	if c.Pos < len(c.B) && c.B[c.Pos] == 0xff {
		c.Pos++
		return true
	}
	return false
}

// Take returns the next n bytes without copying.
func (c *Cursor) Take(n uint64) ([]byte, error) {
	if n > uint64(len(c.B)-c.Pos) {
		return nil, Malformed("string of %d bytes in %d", n, len(c.B)-c.Pos)
	}
	s := c.B[c.Pos : c.Pos+int(n)]
	c.Pos += int(n)
	return s, nil
}

// String reads a text or byte string, joining the chunks of an indefinite one.
func (c *Cursor) String(major byte) ([]byte, error) {
	m, n, err := c.Head()
	if err != nil {
		return nil, err
	}
	if m != major {
		return nil, Malformed("major type %d where %d was expected", m, major)
	}
	if n != Indefinite {
		return c.Take(n)
	}
	var joined []byte
	for !c.AtBreak() {
		m, n, err := c.Head()
		if err != nil {
			return nil, err
		}
		if m != major || n == Indefinite {
			return nil, Malformed("bad string chunk")
		}
		s, err := c.Take(n)
		if err != nil {
			return nil, err
		}
		joined = append(joined, s...)
	}
	return joined, nil
}

// ByteString reads what peers accept as a byte string: a byte string, one
// tagged 64, or an array of small integers. Text is refused.
func (c *Cursor) ByteString() ([]byte, error) {
	start := c.Pos
	m, n, err := c.Head()
	if err != nil {
		return nil, err
	}
	if m == Tag && n == 64 {
		return c.String(Bytes)
	}
	if m != Array {
		c.Pos = start
		return c.String(Bytes)
	}
	out := make([]byte, 0, min(n, uint64(len(c.B)-c.Pos)))
	for i := uint64(0); n == Indefinite || i < n; i++ {
		if n == Indefinite && c.AtBreak() {
			break
		}
		m, v, err := c.Head()
		if err != nil {
			return nil, err
		}
		if m != Uint || v > 0xff {
			return nil, Malformed("array element is not a byte")
		}
		out = append(out, byte(v))
	}
	return out, nil
}

// Skip passes over one whole item.
func (c *Cursor) Skip(depth int) error {
	if depth > MaxDepth {
		return Malformed("nested deeper than %d", MaxDepth)
	}
	m, n, err := c.Head()
	if err != nil {
		return err
	}
	switch m {
	case Bytes, Text:
		if n != Indefinite {
			_, err = c.Take(n)
			return err
		}
		for !c.AtBreak() {
			cm, cn, err := c.Head()
			if err != nil {
				return err
			}
			if cm != m || cn == Indefinite {
				return Malformed("bad string chunk")
			}
			if _, err := c.Take(cn); err != nil {
				return err
			}
		}
	case Array, Map:
		each := 1
		if m == Map {
			each = 2
		}
		for i := uint64(0); n == Indefinite || i < n; i++ {
			if n == Indefinite && c.AtBreak() {
				return nil
			}
			for range each {
				if err := c.Skip(depth + 1); err != nil {
					return err
				}
			}
		}
	case Tag:
		return c.Skip(depth + 1)
	}
	return nil
}

// Key reads a map key; a key that is not text is skipped.
func (c *Cursor) Key() (key []byte, isText bool, err error) {
	if c.Pos < len(c.B) && c.B[c.Pos]>>5 == Text {
		key, err = c.String(Text)
		return key, true, err
	}
	return nil, false, c.Skip(1)
}

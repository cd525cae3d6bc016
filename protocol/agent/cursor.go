package agent

import (
	"errors"
	"fmt"
	"math"
)

// ErrMalformed reports bytes that are not the CBOR that was expected.
var ErrMalformed = errors.New("malformed message")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrMalformed}, args...)...)
}

// cursor walks over CBOR without building values, so that an envelope can be
// opened without copying the payload in it.
type cursor struct {
	b   []byte
	pos int
}

// CBOR major types.
const (
	majUint   = 0
	majNegint = 1
	majBytes  = 2
	majText   = 3
	majArray  = 4
	majMap    = 5
	majTag    = 6
	majSimple = 7
)

const indefinite = math.MaxUint64

// maxDepth bounds nesting in skipped items.
const maxDepth = 64

// head reads one item head. n is the argument, indefinite for a container or
// string of indefinite length; a lone break code is an error here.
func (c *cursor) head() (major byte, n uint64, err error) {
	if c.pos >= len(c.b) {
		return 0, 0, malformed("ends early")
	}
	ib := c.b[c.pos]
	c.pos++
	major, info := ib>>5, ib&0x1f
	if info < 24 {
		return major, uint64(info), nil
	}
	if info == 31 {
		switch major {
		case majBytes, majText, majArray, majMap:
			return major, indefinite, nil
		}
		return 0, 0, malformed("unexpected 0x%02x", ib)
	}
	if info > 27 {
		return 0, 0, malformed("reserved head 0x%02x", ib)
	}
	size := 1 << (info - 24)
	if len(c.b)-c.pos < size {
		return 0, 0, malformed("ends early")
	}
	for _, x := range c.b[c.pos : c.pos+size] {
		n = n<<8 | uint64(x)
	}
	c.pos += size
	return major, n, nil
}

// atBreak consumes a break code if one is next.
func (c *cursor) atBreak() bool {
	if c.pos < len(c.b) && c.b[c.pos] == 0xff {
		c.pos++
		return true
	}
	return false
}

// take returns the next n bytes without copying.
func (c *cursor) take(n uint64) ([]byte, error) {
	if n > uint64(len(c.b)-c.pos) {
		return nil, malformed("string of %d bytes in %d", n, len(c.b)-c.pos)
	}
	s := c.b[c.pos : c.pos+int(n)]
	c.pos += int(n)
	return s, nil
}

// str reads a text or byte string, joining the chunks of an indefinite one.
func (c *cursor) str(major byte) ([]byte, error) {
	m, n, err := c.head()
	if err != nil {
		return nil, err
	}
	if m != major {
		return nil, malformed("major type %d where %d was expected", m, major)
	}
	if n != indefinite {
		return c.take(n)
	}
	var joined []byte
	for !c.atBreak() {
		m, n, err := c.head()
		if err != nil {
			return nil, err
		}
		if m != major || n == indefinite {
			return nil, malformed("bad string chunk")
		}
		s, err := c.take(n)
		if err != nil {
			return nil, err
		}
		joined = append(joined, s...)
	}
	return joined, nil
}

// bytesValue reads what peers accept as a byte string: a byte string, one
// tagged 64, or an array of small integers. Text is refused.
func (c *cursor) bytesValue() ([]byte, error) {
	start := c.pos
	m, n, err := c.head()
	if err != nil {
		return nil, err
	}
	if m == majTag && n == 64 {
		return c.str(majBytes)
	}
	if m != majArray {
		c.pos = start
		return c.str(majBytes)
	}
	out := make([]byte, 0, min(n, uint64(len(c.b)-c.pos)))
	for i := uint64(0); n == indefinite || i < n; i++ {
		if n == indefinite && c.atBreak() {
			break
		}
		m, v, err := c.head()
		if err != nil {
			return nil, err
		}
		if m != majUint || v > 0xff {
			return nil, malformed("array element is not a byte")
		}
		out = append(out, byte(v))
	}
	return out, nil
}

// skip passes over one whole item.
func (c *cursor) skip(depth int) error {
	if depth > maxDepth {
		return malformed("nested deeper than %d", maxDepth)
	}
	m, n, err := c.head()
	if err != nil {
		return err
	}
	switch m {
	case majBytes, majText:
		if n != indefinite {
			_, err = c.take(n)
			return err
		}
		for !c.atBreak() {
			cm, cn, err := c.head()
			if err != nil {
				return err
			}
			if cm != m || cn == indefinite {
				return malformed("bad string chunk")
			}
			if _, err := c.take(cn); err != nil {
				return err
			}
		}
	case majArray, majMap:
		each := 1
		if m == majMap {
			each = 2
		}
		for i := uint64(0); n == indefinite || i < n; i++ {
			if n == indefinite && c.atBreak() {
				return nil
			}
			for range each {
				if err := c.skip(depth + 1); err != nil {
					return err
				}
			}
		}
	case majTag:
		return c.skip(depth + 1)
	}
	return nil
}

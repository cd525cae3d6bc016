package agent

import (
	"unicode/utf8"

	"msb/protocol/record"
)

// CheckPlain refuses what is CBOR, but not CBOR that every published agent reads: keys that are no text or come in
// chunks, a name in chunks, and beside v, t and p tags and simple values without a meaning. body is an envelope that
// ScanType and ParseEnvelope take.
func CheckPlain(body []byte) error {
	c := record.Cursor{B: body}
	_, n, err := c.Head()
	if err != nil {
		return err
	}
	for i := uint64(0); n == record.Indefinite || i < n; i++ {
		if n == record.Indefinite && c.AtBreak() {
			break
		}
		key, err := plainText(&c)
		if err != nil {
			return err
		}
		switch string(key) {
		case "v", "p":
			err = c.Skip(1)
		case "t":
			_, err = plainText(&c)
		default:
			err = skipPlain(&c, 1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// maxPlainText is how long a key may be.
const maxPlainText = 1024

// plainText reads a text of definite length.
func plainText(c *record.Cursor) ([]byte, error) {
	m, n, err := c.Head()
	if err != nil {
		return nil, err
	}
	if m != record.Text || n > maxPlainText {
		return nil, record.Malformed("a key or name is no text of at most %d bytes", maxPlainText)
	}
	s, err := c.Take(n)
	if err == nil && !utf8.Valid(s) {
		err = record.Malformed("text is not UTF-8")
	}
	return s, err
}

// skipPlain passes over a value that nobody knows.
func skipPlain(c *record.Cursor, depth int) error {
	if depth > record.MaxDepth {
		return record.Malformed("nested deeper than %d", record.MaxDepth)
	}
	start := c.Pos
	m, n, err := c.Head()
	if err != nil {
		return err
	}
	switch m {
	case record.Uint, record.Negint:
		return nil
	case record.Simple:
		switch c.B[start] {
		case 0xf4, 0xf5, 0xf6, 0xf9, 0xfa, 0xfb: // false, true, null, numbers
			return nil
		}
	case record.Bytes, record.Text:
		if n == record.Indefinite {
			break
		}
		s, err := c.Take(n)
		if err == nil && m == record.Text && !utf8.Valid(s) {
			err = record.Malformed("text is not UTF-8")
		}
		return err
	case record.Array, record.Map:
		for i := uint64(0); n == record.Indefinite || i < n; i++ {
			if n == record.Indefinite && c.AtBreak() {
				break
			}
			if m == record.Map {
				if _, err := plainText(c); err != nil {
					return err
				}
			}
			if err := skipPlain(c, depth+1); err != nil {
				return err
			}
		}
		return nil
	}
	return record.Malformed("value 0x%02x under an unknown key", c.B[start])
}

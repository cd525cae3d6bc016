package agent

import (
	"unicode/utf8"

	"msb/protocol/frame"
	"msb/protocol/record"
)

// Envelope is the body of every frame that is not raw bulk: generation of the
// sender, message name, and the separately encoded payload.
type Envelope struct {
	V uint8
	T string
	P []byte // a part of the body it was parsed from, where the encoding allows
}

// Type returns the known type of the envelope.
func (e Envelope) Type() (Type, bool) { return ParseType(e.T) }

// ParseEnvelope opens a frame body. Like the published agents it takes any key
// order, unknown keys, definite and indefinite maps, tagged byte strings and
// bytes after the envelope. Errors wrap ErrMalformed.
func ParseEnvelope(body []byte) (Envelope, error) {
	e, _, err := parseEnvelope(body)
	return e, err
}

// ScanType returns the message name of a frame body by the rule a relay
// applies to its clients: a well-formed map with exactly one text `t` and
// nothing after it. It reads nothing else.
func ScanType(body []byte) (string, error) {
	c := record.Cursor{B: body}
	m, n, err := c.Head()
	if err != nil {
		return "", err
	}
	if m != record.Map {
		return "", record.Malformed("not a map")
	}
	var name string
	seen := false
	for i := uint64(0); n == record.Indefinite || i < n; i++ {
		if n == record.Indefinite && c.AtBreak() {
			break
		}
		key, isText, err := c.Key()
		if err != nil {
			return "", err
		}
		if !isText || string(key) != "t" {
			if err := c.Skip(1); err != nil {
				return "", err
			}
			continue
		}
		t, err := c.String(record.Text)
		if err != nil {
			return "", err
		}
		if seen {
			return "", record.Malformed("two message names")
		}
		name, seen = wireName(t), true
	}
	if !seen {
		return "", record.Malformed("no message name")
	}
	if !utf8.ValidString(name) {
		return "", record.Malformed("message name is not UTF-8")
	}
	if c.Pos != len(body) {
		return "", record.Malformed("%d bytes after the envelope", len(body)-c.Pos)
	}
	return name, nil
}

// wireName returns the name without allocating when it is a known one.
func wireName(b []byte) string {
	if t, ok := byWire[string(b)]; ok {
		return t.info().wire
	}
	return string(b)
}

var errTwice = record.Malformed("envelope has a key twice")

func parseEnvelope(body []byte) (e Envelope, rest []byte, err error) {
	c := record.Cursor{B: body}
	m, n, err := c.Head()
	if err != nil {
		return e, nil, err
	}
	if m != record.Map {
		return e, nil, record.Malformed("envelope is not a map")
	}
	var haveV, haveT, haveP bool
	for i := uint64(0); n == record.Indefinite || i < n; i++ {
		if n == record.Indefinite && c.AtBreak() {
			break
		}
		key, isText, err := c.Key()
		if err != nil {
			return e, nil, err
		}
		if !isText {
			if err := c.Skip(1); err != nil {
				return e, nil, err
			}
			continue
		}
		switch string(key) {
		case "v":
			if haveV {
				return e, nil, errTwice
			}
			m, v, err := c.Head()
			if err != nil {
				return e, nil, err
			}
			if m != record.Uint || v > 0xff {
				return e, nil, record.Malformed("generation is not a byte")
			}
			e.V, haveV = uint8(v), true
		case "t":
			if haveT {
				return e, nil, errTwice
			}
			t, err := c.String(record.Text)
			if err != nil {
				return e, nil, err
			}
			if !utf8.Valid(t) {
				return e, nil, record.Malformed("message name is not UTF-8")
			}
			e.T, haveT = wireName(t), true
		case "p":
			if haveP {
				return e, nil, errTwice
			}
			if e.P, err = c.ByteString(); err != nil {
				return e, nil, err
			}
			haveP = true
		default:
			if err := c.Skip(1); err != nil {
				return e, nil, err
			}
		}
	}
	if !haveV || !haveT || !haveP {
		return e, nil, record.Malformed("envelope lacks v, t or p")
	}
	return e, body[c.Pos:], nil
}

// AppendFrame appends a whole frame: header with the flags of t, envelope with
// generation v, and the payload. A nil payload is the unit value.
func AppendFrame(dst []byte, id uint32, t Type, v uint8, payload any) ([]byte, error) {
	p, err := EncodePayload(payload)
	if err != nil {
		return dst, err
	}
	return AppendEncoded(dst, id, t.Flags(), v, t.String(), p)
}

// AppendEncoded appends a frame whose payload is already encoded, with any
// name and flags.
func AppendEncoded(dst []byte, id uint32, flags, v uint8, name string, payload []byte) ([]byte, error) {
	bodyLen := 1 + 2 + record.HeadLen(uint64(v)) + 2 + record.HeadLen(uint64(len(name))) + len(name) + 2 + record.HeadLen(uint64(len(payload))) + len(payload)
	if bodyLen > frame.MaxBody {
		return dst, frame.CheckLength(uint32(min(bodyLen+frame.HeaderSize, 1<<31)))
	}
	var h [frame.Overhead]byte
	frame.PutHeader(h[:], id, flags, bodyLen)
	dst = append(dst, h[:]...)
	return AppendEnvelope(dst, v, name, payload), nil
}

// AppendEnvelope appends the published form of an envelope.
func AppendEnvelope(dst []byte, v uint8, name string, payload []byte) []byte {
	dst = append(dst, 0xa3, 0x61, 'v')
	dst = record.AppendHead(dst, record.Uint, uint64(v))
	dst = append(dst, 0x61, 't')
	dst = record.AppendHead(dst, record.Text, uint64(len(name)))
	dst = append(dst, name...)
	dst = append(dst, 0x61, 'p')
	dst = record.AppendHead(dst, record.Bytes, uint64(len(payload)))
	return append(dst, payload...)
}

package control

import (
	"msb/protocol/frame"
	"msb/protocol/record"
)

// Envelope is the body of every framed control message.
type Envelope struct {
	V uint8
	T string
	P []byte // a part of the body it was parsed from
}

// rawEnvelope pins the shape; p is read without copying by ParseEnvelope.
type rawEnvelope struct {
	V uint8  `cbor:"v"`
	T string `cbor:"t"`
	P []byte `cbor:"p"`
}

// ParseEnvelope opens a frame body by the strict rules: exactly one map with
// unique text keys, a byte string p, nothing after it. Unknown keys are
// ignored; whoever forwards keeps the original frame. Errors wrap
// record.ErrMalformed.
func ParseEnvelope(body []byte) (Envelope, error) {
	var raw rawEnvelope
	if err := record.DecodeStrict(body, &raw); err != nil {
		return Envelope{}, err
	}
	p, err := payload(body)
	return Envelope{V: raw.V, T: raw.T, P: p}, err
}

// payload finds p, which the CBOR library would also have taken as an array
// of integers or in chunks.
func payload(body []byte) ([]byte, error) {
	c := record.Cursor{B: body}
	_, n, err := c.Head()
	if err != nil {
		return nil, err
	}
	for i := uint64(0); n == record.Indefinite || i < n; i++ {
		if n == record.Indefinite && c.AtBreak() {
			break
		}
		key, _, err := c.Key()
		if err != nil {
			return nil, err
		}
		if string(key) != "p" {
			if err := c.Skip(1); err != nil {
				return nil, err
			}
			continue
		}
		return c.String(record.Bytes)
	}
	return nil, record.Malformed("field %q is missing", "p")
}

// AppendFrame appends a whole control frame with the published encoding.
func AppendFrame(dst []byte, id uint32, flags, generation uint8, name string, payload any) ([]byte, error) {
	p, err := record.Encode(payload)
	if err != nil {
		return dst, err
	}
	return AppendEncoded(dst, id, flags, generation, name, p)
}

// AppendEncoded is AppendFrame for a payload that is encoded already.
func AppendEncoded(dst []byte, id uint32, flags, generation uint8, name string, p []byte) ([]byte, error) {
	body := make([]byte, 0, len(p)+len(name)+32)
	body = append(body, 0xa3, 0x61, 'v')
	body = record.AppendHead(body, record.Uint, uint64(generation))
	body = append(body, 0x61, 't')
	body = append(record.AppendHead(body, record.Text, uint64(len(name))), name...)
	body = append(body, 0x61, 'p')
	body = append(record.AppendHead(body, record.Bytes, uint64(len(p))), p...)
	return frame.Append(dst, id, flags, body)
}

// Package frame is the outer binary frame that the agent protocol and the
// framed control protocol share. It knows layout and limits and nothing of
// what a body means.
//
//	offset 0  u32 BE  length: bytes that follow = 5 + body
//	offset 4  u32 BE  id
//	offset 8  u8      flags
//	offset 9  body
package frame

import (
	"encoding/binary"
	"errors"
	"fmt"
)

const (
	// PrefixSize is the size of the length word, which the length excludes.
	PrefixSize = 4
	// HeaderSize is the part of the length that is not body: id and flags.
	HeaderSize = 5
	// Overhead is what a frame adds to its body on the wire.
	Overhead = PrefixSize + HeaderSize
	// MaxLength is the largest allowed length word.
	MaxLength = 4 << 20
	// MaxWire is the largest frame on the wire, length word included.
	MaxWire = PrefixSize + MaxLength
	// MaxBody is the largest body a frame can hold.
	MaxBody = MaxLength - HeaderSize
)

// Flag bits. They are a pure function of the message type; Bulk is exclusive.
const (
	FlagTerminal     uint8 = 0x01
	FlagSessionStart uint8 = 0x02
	FlagShutdown     uint8 = 0x04
	FlagBulk         uint8 = 0x08
)

// IDLifecycle is the private host↔guest correlation id of generation 9
// (freeze, thaw, transport credit, root disk). No client range contains it.
const IDLifecycle uint32 = 0xFFFFFFFF

var (
	// ErrTooLarge reports a length word above MaxLength. It is fatal for the
	// byte stream: where the next frame starts is unknown.
	ErrTooLarge = errors.New("frame too large")
	// ErrTooShort reports a length word below HeaderSize. Fatal as well.
	ErrTooShort = errors.New("frame too short")
)

// Frame is one decoded frame. Raw is the whole frame as it was on the wire and
// Body is a part of it; both are valid as long as the owner of Raw says.
type Frame struct {
	ID    uint32
	Flags uint8
	Body  []byte
	Raw   []byte
}

// CheckLength returns ErrTooLarge or ErrTooShort, wrapped with the value, when
// length is not the length word of a frame.
func CheckLength(length uint32) error {
	if length > MaxLength {
		return fmt.Errorf("%w: %d bytes, the limit is %d", ErrTooLarge, length, MaxLength)
	}
	if length < HeaderSize {
		return fmt.Errorf("%w: %d bytes, the minimum is %d", ErrTooShort, length, HeaderSize)
	}
	return nil
}

// Parse decodes a whole frame, length word included, that was read elsewhere.
func Parse(raw []byte) (Frame, error) {
	if len(raw) < Overhead {
		return Frame{}, fmt.Errorf("%w: %d bytes on the wire", ErrTooShort, len(raw))
	}
	length := binary.BigEndian.Uint32(raw)
	if err := CheckLength(length); err != nil {
		return Frame{}, err
	}
	if int(length) != len(raw)-PrefixSize {
		return Frame{}, fmt.Errorf("frame length %d does not match the %d bytes given", length, len(raw)-PrefixSize)
	}
	return Frame{
		ID:    binary.BigEndian.Uint32(raw[4:]),
		Flags: raw[8],
		Body:  raw[Overhead:],
		Raw:   raw,
	}, nil
}

// PutHeader writes the nine header bytes of a frame with a body of bodyLen
// bytes into dst, which must have room for Overhead bytes.
func PutHeader(dst []byte, id uint32, flags uint8, bodyLen int) {
	binary.BigEndian.PutUint32(dst, uint32(HeaderSize+bodyLen))
	binary.BigEndian.PutUint32(dst[4:], id)
	dst[8] = flags
}

// Append appends a whole frame to dst. It fails with ErrTooLarge when the body
// does not fit into a frame; dst is then returned unchanged.
func Append(dst []byte, id uint32, flags uint8, body []byte) ([]byte, error) {
	if len(body) > MaxBody {
		return dst, fmt.Errorf("%w: body of %d bytes", ErrTooLarge, len(body))
	}
	var h [Overhead]byte
	PutHeader(h[:], id, flags, len(body))
	return append(append(dst, h[:]...), body...), nil
}

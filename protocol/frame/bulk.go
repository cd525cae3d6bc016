package frame

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// Sizes and limits of generation 8 raw bulk, in bytes.
const (
	BulkHeaderSize = 12
	// BulkFormat is the only record format there is.
	BulkFormat uint8 = 1

	MinBulkRecord        = 16 << 10
	MaxBulkRecord        = 3 << 20
	DefaultBulkRecord    = 256 << 10 // TCP
	DefaultBulkRecordFS  = 3 << 20   // file system
	DefaultBulkWindow    = 8 << 20
	MaxBulkWindow        = 32 << 20
	BulkOverhead         = Overhead + BulkHeaderSize // header bytes of a record on the wire
	MaxBulkPayloadOnWire = MaxBody - BulkHeaderSize
)

// Kinds and flows of a bulk record.
const (
	BulkFilesystem uint8 = 1
	BulkTCP        uint8 = 2

	FlowHostToGuest uint8 = 1
	FlowGuestToHost uint8 = 2
)

// ErrBulk reports a raw record that no peer may send. It is fatal for a
// stock receiver.
var ErrBulk = errors.New("bad bulk record")

// Bulk is one raw record. Payload is a part of the frame it came from.
type Bulk struct {
	ID      uint32
	Kind    uint8
	Flow    uint8
	Offset  uint64 // within this flow, from 0
	Payload []byte // never empty
}

// ParseBulk decodes the body of a frame whose flags are FlagBulk. Errors wrap
// ErrBulk. The payload limit that was negotiated is the caller's to check.
func ParseBulk(f Frame) (Bulk, error) {
	b := f.Body
	switch {
	case f.Flags != FlagBulk:
		return Bulk{}, fmt.Errorf("%w: flags 0x%02x", ErrBulk, f.Flags)
	case len(b) <= BulkHeaderSize:
		return Bulk{}, fmt.Errorf("%w: no payload", ErrBulk)
	case b[0] != BulkFilesystem && b[0] != BulkTCP:
		return Bulk{}, fmt.Errorf("%w: kind %d", ErrBulk, b[0])
	case b[1] != FlowHostToGuest && b[1] != FlowGuestToHost:
		return Bulk{}, fmt.Errorf("%w: flow %d", ErrBulk, b[1])
	case b[2] != 0 || b[3] != 0:
		return Bulk{}, fmt.Errorf("%w: reserved bytes are not zero", ErrBulk)
	}
	r := Bulk{ID: f.ID, Kind: b[0], Flow: b[1], Offset: binary.BigEndian.Uint64(b[4:]), Payload: b[BulkHeaderSize:]}
	if uint64(len(r.Payload)) > math.MaxUint64-r.Offset {
		return Bulk{}, fmt.Errorf("%w: offset %d plus %d bytes does not fit 64 bits", ErrBulk, r.Offset, len(r.Payload))
	}
	return r, nil
}

// PutBulkHeader writes the BulkOverhead bytes in front of a payload of
// payloadLen bytes into dst.
func PutBulkHeader(dst []byte, id uint32, kind, flow uint8, offset uint64, payloadLen int) {
	PutHeader(dst, id, FlagBulk, BulkHeaderSize+payloadLen)
	b := dst[Overhead:]
	b[0], b[1], b[2], b[3] = kind, flow, 0, 0
	binary.BigEndian.PutUint64(b[4:], offset)
}

// AppendBulk appends a whole raw record to dst.
func AppendBulk(dst []byte, r Bulk) ([]byte, error) {
	if len(r.Payload) == 0 || len(r.Payload) > MaxBulkRecord {
		return dst, fmt.Errorf("%w: payload of %d bytes", ErrBulk, len(r.Payload))
	}
	var h [BulkOverhead]byte
	PutBulkHeader(h[:], r.ID, r.Kind, r.Flow, r.Offset, len(r.Payload))
	return append(append(dst, h[:]...), r.Payload...), nil
}

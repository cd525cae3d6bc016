package frame

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// Records of the host↔guest transport. They are never sent to a client.

const (
	// IncarnationSize is the prefix of every record on the bulk port, and the
	// identity of one client's lease.
	IncarnationSize = 16
	// BindSize is the size of the hello and of its answer on the bulk port.
	BindSize = 24
	// LeaseWireSize is the size of a lease record, length word included.
	LeaseWireSize = Overhead + 32
)

// Lease events.
const (
	LeaseConnected    uint8 = 1 // host → guest, before any frame of that client
	LeaseDisconnected uint8 = 2 // guest → host, the range is clean
)

var (
	leaseMagic     = []byte("MSBL\x01")
	bindHelloMagic = []byte("MSBB\x01\x08\x00\x00")
	bindReplyMagic = []byte("MSBA\x01\x08\x00\x00")
	shmMagic       = []byte("MSBS\x01")
	// ErrTransport reports a malformed lease or binding record.
	ErrTransport = errors.New("bad transport record")
)

// ShmReject is the unframed answer that refuses a client's shared-memory
// upgrade; the client goes on in-band.
var ShmReject = []byte("MSBA\x01\x01\x00\x00")

// IsShmRequest tells whether f asks for the local shared-memory upgrade.
func IsShmRequest(f Frame) bool {
	return f.ID == 0 && f.Flags == 0 && len(f.Body) >= len(shmMagic) && bytes.Equal(f.Body[:4], shmMagic[:4])
}

// Incarnation identifies one client's lease of a range of ids.
type Incarnation [IncarnationSize]byte

// Lease is one range-lifecycle record.
type Lease struct {
	Event       uint8
	Start, End  uint32 // end exclusive
	Incarnation Incarnation
}

// IsLease tells whether f is a lease record. Lease records have id 0 and
// flags 0, as no message of a client has.
func IsLease(f Frame) bool {
	return f.ID == 0 && f.Flags == 0 && bytes.HasPrefix(f.Body, leaseMagic[:4])
}

// AppendLease appends the 41 bytes of l.
func AppendLease(dst []byte, l Lease) []byte {
	var h [Overhead]byte
	PutHeader(h[:], 0, 0, LeaseWireSize-Overhead)
	dst = append(dst, h[:]...)
	dst = append(dst, leaseMagic...)
	dst = append(dst, l.Event, 0, 0)
	dst = binary.BigEndian.AppendUint32(dst, l.Start)
	dst = binary.BigEndian.AppendUint32(dst, l.End)
	return append(dst, l.Incarnation[:]...)
}

// ParseLease decodes a lease record.
func ParseLease(f Frame) (Lease, error) {
	b := f.Body
	if !IsLease(f) || len(b) != LeaseWireSize-Overhead || b[4] != 1 || b[6] != 0 || b[7] != 0 {
		return Lease{}, fmt.Errorf("%w: not a lease", ErrTransport)
	}
	l := Lease{Event: b[5], Start: binary.BigEndian.Uint32(b[8:]), End: binary.BigEndian.Uint32(b[12:])}
	copy(l.Incarnation[:], b[16:])
	if l.Event != LeaseConnected && l.Event != LeaseDisconnected {
		return Lease{}, fmt.Errorf("%w: lease event %d", ErrTransport, l.Event)
	}
	if l.Start >= l.End || l.Incarnation == (Incarnation{}) {
		return Lease{}, fmt.Errorf("%w: empty lease", ErrTransport)
	}
	return l, nil
}

// BindHello is the guest's first record on the bulk port.
func BindHello(id Incarnation) []byte { return append(bytes.Clone(bindHelloMagic), id[:]...) }

// BindReply is the host's answer to BindHello.
func BindReply(id Incarnation) []byte { return append(bytes.Clone(bindReplyMagic), id[:]...) }

// ParseBindHello returns the connection id of a guest's hello.
func ParseBindHello(b []byte) (Incarnation, error) { return parseBind(b, bindHelloMagic) }

// ParseBindReply returns the connection id of a host's answer.
func ParseBindReply(b []byte) (Incarnation, error) { return parseBind(b, bindReplyMagic) }

func parseBind(b, magic []byte) (id Incarnation, err error) {
	if len(b) != BindSize || !bytes.HasPrefix(b, magic) {
		return id, fmt.Errorf("%w: not a bulk port binding", ErrTransport)
	}
	copy(id[:], b[len(magic):])
	if id == (Incarnation{}) {
		return id, fmt.Errorf("%w: bulk port binding without an id", ErrTransport)
	}
	return id, nil
}

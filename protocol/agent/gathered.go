package agent

import (
	"bytes"
	"encoding/binary"

	"msb/protocol/frame"
	"msb/protocol/record"
)

// lendFrom is the size of data from which it is not copied into a frame.
const lendFrom = 4 << 10

// Gathered is a frame of msb.fs in the making, for a connection that carries
// nothing else. The first large piece of data in it stays where it is: it must
// not change until the frame has been written. The zero value is ready, and
// may be used again.
type Gathered struct {
	b    []byte
	data []byte // between b[:cut] and b[cut:]
	cut  int

	parts [3][]byte
}

// Request makes the frame of a request.
func (g *Gathered) Request(id uint32, p *NodeRequestPayload) error {
	return g.build(id, NodeRequest, func(b []byte) ([]byte, error) { return p.appendTo(b, g) })
}

// Response makes the frame of a response.
func (g *Gathered) Response(id uint32, p *NodeResponsePayload) error {
	return g.build(id, NodeResponse, func(b []byte) ([]byte, error) { return p.appendTo(b, g) })
}

// build puts the payload behind a head with room for its length, which is
// known last: a byte string of four bytes of length whatever it is.
func (g *Gathered) build(id uint32, t Type, payload func([]byte) ([]byte, error)) error {
	g.data, g.cut = nil, 0
	b := append(g.b[:0], make([]byte, frame.Overhead)...)
	b = append(b, 0xa3, 0x61, 'v', Generation, 0x61, 't')
	name := t.String()
	b = append(record.AppendHead(b, record.Text, uint64(len(name))), name...)
	b = append(b, 0x61, 'p', record.Bytes<<5|26, 0, 0, 0, 0)
	start := len(b)
	b, err := payload(b)
	if err != nil {
		return err
	}
	g.b = b
	length := len(b) - start + len(g.data)
	body := len(b) - frame.Overhead + len(g.data)
	if err := frame.CheckLength(uint32(body + frame.HeaderSize)); err != nil {
		return err
	}
	binary.BigEndian.PutUint32(b[start-4:], uint32(length))
	frame.PutHeader(b, id, t.Flags(), body)
	return nil
}

// take lends data that comes after at bytes. A nil Gathered takes none.
func (g *Gathered) take(at int, data []byte) bool {
	if g == nil || g.data != nil || len(data) < lendFrom {
		return false
	}
	g.cut, g.data = at, data
	return true
}

// Parts returns the frame, to be written one part after the other. It is valid
// until the next frame is made.
func (g *Gathered) Parts() [][]byte {
	g.parts = [3][]byte{g.b}
	if g.data == nil {
		return g.parts[:1]
	}
	g.parts = [3][]byte{g.b[:g.cut], g.data, g.b[g.cut:]}
	return g.parts[:]
}

// readHead and readTail are what Response puts around the data of one read;
// the length of the payload and the head of the data stand between them.
var (
	readHead = append(append([]byte{0xa3, 0x61, 'v', Generation, 0x61, 't', record.Text<<5 | byte(len("msb.fs.response"))}, "msb.fs.response"...),
		0x61, 'p', record.Bytes<<5|26)
	readMiddle = append([]byte{0xa2, 0x67}, "results\x81\x81"...)
	readTail   = []byte("\x65errno\x00")
)

// AroundRead makes the response to a request of one read whose size bytes of
// data come from elsewhere: they belong between head and tail, which are valid
// until the next frame is made.
func (g *Gathered) AroundRead(id uint32, size int) (head, tail []byte) {
	b := append(g.b[:0], make([]byte, frame.Overhead)...)
	b = append(append(b, readHead...), 0, 0, 0, 0)
	start := len(b)
	b = record.AppendHead(append(b, readMiddle...), record.Bytes, uint64(size))
	binary.BigEndian.PutUint32(b[start-4:], uint32(len(b)-start+size+len(readTail)))
	frame.PutHeader(b, id, NodeResponse.Flags(), len(b)-frame.Overhead+size+len(readTail))
	g.b, g.data = b, nil
	return b, readTail
}

// ReadTail is the size of what follows the data in the body that ReadData knows.
const ReadTail = 7

// ReadData finds the data in the body of the response to a request of one read,
// as Gathered makes it; begin is the beginning of a body of length bytes. After
// the data, IsReadTail holds. ok is false for everything else, errors included:
// decode the whole then.
func ReadData(begin []byte, length int) (start, size int, ok bool) {
	rest, ok := bytes.CutPrefix(begin, readHead)
	if !ok || len(rest) < 4 {
		return 0, 0, false
	}
	if rest, ok = bytes.CutPrefix(rest[4:], readMiddle); !ok {
		return 0, 0, false
	}
	c := record.Cursor{B: rest}
	m, n, err := c.Head()
	start = len(begin) - len(rest) + c.Pos
	if err != nil || m != record.Bytes || n > MaxNodeInline || start+int(n)+ReadTail != length {
		return 0, 0, false
	}
	return start, int(n), true
}

// IsReadTail tells whether p is what follows the data of ReadData.
func IsReadTail(p []byte) bool { return bytes.Equal(p, readTail) }

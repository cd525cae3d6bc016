package agent

import (
	"encoding/binary"

	"msb/protocol/frame"
	"msb/protocol/record"
)

// Data is the payload of every message that carries bytes: exec stdin, stdout
// and stderr, fs.data, tcp.data. An empty Data means end of input where the
// message gives it that meaning. Decoded Data is a part of the payload it came
// from where the encoding allows, not a copy.
type Data struct {
	Data []byte
}

// DataOverhead is an upper bound of the bytes a whole frame adds to its Data.
const DataOverhead = 64

func appendData(dst, data []byte) []byte {
	dst = append(dst, 0xa1, 0x64, 'd', 'a', 't', 'a')
	dst = record.AppendHead(dst, record.Bytes, uint64(len(data)))
	return append(dst, data...)
}

// AppendDataFrame appends a whole frame of a data message with one copy of
// data and no other allocation.
func AppendDataFrame(dst []byte, id uint32, t Type, v uint8, data []byte) ([]byte, error) {
	inner := 6 + record.HeadLen(uint64(len(data)))
	head := make([]byte, 0, DataOverhead)
	head, err := appendDataHead(head, id, t, v, len(data), inner+len(data))
	if err != nil {
		return dst, err
	}
	return append(append(dst, head...), data...), nil
}

// AppendDataHead appends everything of a data frame that comes before the
// data, for writers that send head and data without joining them.
func AppendDataHead(dst []byte, id uint32, t Type, v uint8, dataLen int) ([]byte, error) {
	return appendDataHead(dst, id, t, v, dataLen, 6+record.HeadLen(uint64(dataLen))+dataLen)
}

func appendDataHead(dst []byte, id uint32, t Type, v uint8, dataLen, payloadLen int) ([]byte, error) {
	start := len(dst)
	dst, err := AppendEncoded(dst, id, t.Flags(), v, t.String(), nil)
	if err != nil {
		return dst, err
	}
	dst = dst[:len(dst)-1] // the empty payload's head
	dst = record.AppendHead(dst, record.Bytes, uint64(payloadLen))
	dst = append(dst, 0xa1, 0x64, 'd', 'a', 't', 'a')
	dst = record.AppendHead(dst, record.Bytes, uint64(dataLen))
	return dst, patchLength(dst[start:], dataLen)
}

func (d *Data) decodePayload(p []byte) error {
	if len(p) == 0 || p[0]>>5 != record.Map {
		return record.Malformed("payload is not a map")
	}
	c := record.Cursor{B: p}
	_, n, err := c.Head()
	if err != nil {
		return err
	}
	seen := false
	for i := uint64(0); n == record.Indefinite || i < n; i++ {
		if n == record.Indefinite && c.AtBreak() {
			break
		}
		key, isText, err := c.Key()
		if err != nil {
			return err
		}
		if !isText || string(key) != "data" {
			if err := c.Skip(1); err != nil {
				return err
			}
			continue
		}
		if d.Data, err = c.ByteString(); err != nil {
			return err
		}
		seen = true
	}
	if !seen {
		return record.Malformed("field %q is missing", "data")
	}
	return nil
}

// patchLength sets the length word of a frame whose last extra bytes are not
// in head yet.
func patchLength(head []byte, extra int) error {
	length := len(head) - frame.PrefixSize + extra
	if length > frame.MaxLength {
		return frame.CheckLength(uint32(length))
	}
	binary.BigEndian.PutUint32(head, uint32(length))
	return nil
}

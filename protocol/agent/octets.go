package agent

import (
	"maps"
	"slices"

	"msb/protocol/record"
)

// Octets is a fixed-size byte array that travels as an array of unsigned
// integers: incarnation and connection id (16), MAC (6), IPv4 (4), IPv6 (16).
// Its user checks the size.
type Octets []byte

// MarshalCBOR encodes an array of integers.
func (o Octets) MarshalCBOR() ([]byte, error) {
	b := record.AppendHead(nil, record.Array, uint64(len(o)))
	for _, x := range o {
		b = record.AppendHead(b, record.Uint, uint64(x))
	}
	return b, nil
}

// UnmarshalCBOR takes an array of integers or a byte string.
func (o *Octets) UnmarshalCBOR(p []byte) error {
	c := record.Cursor{B: p}
	b, err := c.ByteString()
	if err != nil {
		return err
	}
	*o = slices.Clone(b)
	return nil
}

// Extensions maps the name of an additive protocol extension to the version
// its sender speaks. It encodes in the order of the names.
type Extensions map[string]uint8

// MarshalCBOR encodes a map with sorted keys.
func (x Extensions) MarshalCBOR() ([]byte, error) {
	b := record.AppendHead(nil, record.Map, uint64(len(x)))
	for _, name := range slices.Sorted(maps.Keys(x)) {
		b = record.AppendHead(b, record.Text, uint64(len(name)))
		b = append(b, name...)
		b = record.AppendHead(b, record.Uint, uint64(x[name]))
	}
	return b, nil
}

package agent

import (
	"maps"
	"slices"
)

// Octets is a fixed-size byte array that travels as an array of unsigned
// integers: incarnation and connection id (16), MAC (6), IPv4 (4), IPv6 (16).
// Its user checks the size.
type Octets []byte

// MarshalCBOR encodes an array of integers.
func (o Octets) MarshalCBOR() ([]byte, error) {
	b := appendHead(nil, majArray, uint64(len(o)))
	for _, x := range o {
		b = appendHead(b, majUint, uint64(x))
	}
	return b, nil
}

// UnmarshalCBOR takes an array of integers or a byte string.
func (o *Octets) UnmarshalCBOR(p []byte) error {
	c := cursor{b: p}
	b, err := c.bytesValue()
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
	b := appendHead(nil, majMap, uint64(len(x)))
	for _, name := range slices.Sorted(maps.Keys(x)) {
		b = appendHead(b, majText, uint64(len(name)))
		b = append(b, name...)
		b = appendHead(b, majUint, uint64(x[name]))
	}
	return b, nil
}

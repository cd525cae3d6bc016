package agent

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/fxamacker/cbor/v2"
)

var encMode = must(cbor.EncOptions{
	Sort:          cbor.SortNone, // structs in declared order
	IndefLength:   cbor.IndefLengthForbidden,
	NilContainers: cbor.NilContainerAsEmpty,
}.EncMode())

// A frame bounds every container, so the element limits only have to be larger
// than a frame can hold.
var decMode = must(cbor.DecOptions{
	MaxNestedLevels:  maxDepth,
	MaxArrayElements: 8 << 20,
	MaxMapPairs:      8 << 20,
	UTF8:             cbor.UTF8RejectInvalid,
	IndefLength:      cbor.IndefLengthAllowed,
}.DecMode())

func must[T any](m T, err error) T {
	if err != nil {
		panic(err)
	}
	return m
}

// payloadDecoder is a payload that reads itself, for speed or because its
// shape is not a struct.
type payloadDecoder interface{ decodePayload(p []byte) error }

// defaulter presets what a sender may omit.
type defaulter interface{ setDefaults() }

// EncodePayload encodes one payload struct. nil gives the unit value `f6`;
// raw cbor.RawMessage and EncodedPayload pass unchanged.
func EncodePayload(payload any) ([]byte, error) {
	switch p := payload.(type) {
	case nil:
		return []byte{0xf6}, nil
	case EncodedPayload:
		return p, nil
	case Data:
		return appendData(nil, p.Data), nil
	case *Data:
		return appendData(nil, p.Data), nil
	}
	b, err := encMode.Marshal(payload)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", payload, err)
	}
	return b, nil
}

// EncodedPayload is a payload that its sender encoded.
type EncodedPayload []byte

// DecodePayload decodes p into the payload struct that v points to. Unknown
// fields and bytes after the payload are ignored; a missing or null required
// field, a wrong type, text that is not UTF-8 and nesting deeper than 64 are
// errors that wrap ErrMalformed.
func DecodePayload(p []byte, v any) error {
	if d, ok := v.(payloadDecoder); ok {
		return d.decodePayload(p)
	}
	if len(p) == 0 || p[0]>>5 != majMap {
		return malformed("payload is not a map")
	}
	return decodeStruct(p, v)
}

func decodeStruct(p []byte, v any) error {
	if err := checkRequired(p, reflect.TypeOf(v).Elem()); err != nil {
		return err
	}
	if d, ok := v.(defaulter); ok {
		d.setDefaults()
	}
	if _, err := decMode.UnmarshalFirst(p, v); err != nil {
		return fmt.Errorf("%w: %v", ErrMalformed, err)
	}
	return nil
}

// decodeFields decodes a struct that peers may also send as an array of its
// fields in order.
func decodeFields(p []byte, v any) error {
	if len(p) == 0 {
		return malformed("ends early")
	}
	if p[0]>>5 != majArray {
		if p[0]>>5 != majMap {
			return malformed("not a map")
		}
		return decodeStruct(p, v)
	}
	var items []cbor.RawMessage
	if _, err := decMode.UnmarshalFirst(p, &items); err != nil {
		return fmt.Errorf("%w: %v", ErrMalformed, err)
	}
	s := reflect.ValueOf(v).Elem()
	if len(items) != s.NumField() {
		return malformed("%d fields, want %d", len(items), s.NumField())
	}
	for i, item := range items {
		if err := decMode.Unmarshal(item, s.Field(i).Addr().Interface()); err != nil {
			return fmt.Errorf("%w: %v", ErrMalformed, err)
		}
	}
	return nil
}

var requiredFields sync.Map // reflect.Type → []string

// required lists the keys that must be there: every field that is not a
// pointer, not omitted when empty and not tagged wire:"optional".
func required(t reflect.Type) []string {
	if known, ok := requiredFields.Load(t); ok {
		return known.([]string)
	}
	var names []string
	if t.Kind() == reflect.Struct {
		for i := range t.NumField() {
			f := t.Field(i)
			name, opts, _ := strings.Cut(f.Tag.Get("cbor"), ",")
			if name == "" || f.Type.Kind() == reflect.Pointer || strings.HasPrefix(opts, "omit") || f.Tag.Get("wire") == "optional" {
				continue
			}
			names = append(names, name)
		}
	}
	requiredFields.Store(t, names)
	return names
}

func checkRequired(p []byte, t reflect.Type) error {
	want := required(t)
	if len(want) == 0 {
		return nil
	}
	c := cursor{b: p}
	_, n, err := c.head()
	if err != nil {
		return err
	}
	var seen uint64 // bit i: want[i] is there
	for i := uint64(0); n == indefinite || i < n; i++ {
		if n == indefinite && c.atBreak() {
			break
		}
		key, isText, err := c.key()
		if err != nil {
			return err
		}
		null := c.pos < len(p) && p[c.pos] == 0xf6
		if isText && !null {
			if j := slices.Index(want, string(key)); j >= 0 {
				seen |= 1 << j
			}
		}
		if err := c.skip(1); err != nil {
			return err
		}
	}
	for j, name := range want {
		if seen&(1<<j) == 0 {
			return malformed("field %q is missing", name)
		}
	}
	return nil
}

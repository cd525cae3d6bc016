package record

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
	MaxNestedLevels:  MaxDepth,
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

// Defaulter is a payload that presets what its sender may omit.
type Defaulter interface{ SetDefaults() }

// Encode encodes one value in the published form. nil containers are empty,
// nil pointers are null unless their field is omitted when empty.
func Encode(v any) ([]byte, error) {
	b, err := encMode.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	return b, nil
}

// Decode decodes one value that is not a payload struct, tolerantly.
func Decode(p []byte, v any) error {
	if err := decMode.Unmarshal(p, v); err != nil {
		return fmt.Errorf("%w: %v", ErrMalformed, err)
	}
	return nil
}

// DecodeStruct decodes p into the payload struct that v points to. Unknown
// fields and bytes after the payload are ignored; a missing or null required
// field, a wrong type, text that is not UTF-8 and nesting deeper than MaxDepth
// are errors that wrap ErrMalformed. A field is required unless it is a
// pointer, omitted when empty, or tagged wire:"optional"; structs inside the
// payload are held to the same.
func DecodeStruct(p []byte, v any) error {
	if len(p) == 0 || p[0]>>5 != Map {
		return Malformed("payload is not a map")
	}
	if err := checkRequired(p, reflect.TypeOf(v).Elem()); err != nil {
		return err
	}
	if d, ok := v.(Defaulter); ok {
		d.SetDefaults()
	}
	if _, err := decMode.UnmarshalFirst(p, v); err != nil {
		return fmt.Errorf("%w: %v", ErrMalformed, err)
	}
	return nil
}

// DecodeFields decodes a struct that peers may also send as an array of its
// fields in order.
func DecodeFields(p []byte, v any) error {
	if len(p) == 0 {
		return Malformed("ends early")
	}
	if p[0]>>5 != Array {
		return DecodeStruct(p, v)
	}
	var items []cbor.RawMessage
	if _, err := decMode.UnmarshalFirst(p, &items); err != nil {
		return fmt.Errorf("%w: %v", ErrMalformed, err)
	}
	s := reflect.ValueOf(v).Elem()
	if len(items) != s.NumField() {
		return Malformed("%d fields, want %d", len(items), s.NumField())
	}
	for i, item := range items {
		if err := checkRequired(item, s.Type().Field(i).Type); err != nil {
			return err
		}
		if err := decMode.Unmarshal(item, s.Field(i).Addr().Interface()); err != nil {
			return fmt.Errorf("%w: %v", ErrMalformed, err)
		}
	}
	return nil
}

// shape is what a struct asks of the map that it is decoded from.
type shape struct {
	required []string
	nested   map[string]nested // fields whose values have a shape too
}

// nested is a struct, or a list of them, inside another.
type nested struct {
	t    reflect.Type
	list bool
}

var shapes sync.Map // reflect.Type → shape

// shapeOf returns the shape of a struct type, the empty one of any other.
func shapeOf(t reflect.Type) shape {
	if known, ok := shapes.Load(t); ok {
		return known.(shape)
	}
	s := shape{nested: map[string]nested{}}
	if t.Kind() == reflect.Struct {
		for i := range t.NumField() {
			f := t.Field(i)
			name, opts, _ := strings.Cut(f.Tag.Get("cbor"), ",")
			if name == "" {
				continue
			}
			if f.Type.Kind() != reflect.Pointer && !strings.HasPrefix(opts, "omit") && f.Tag.Get("wire") != "optional" {
				s.required = append(s.required, name)
			}
			inner, list := f.Type, f.Type.Kind() == reflect.Slice
			if list || inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			if inner.Kind() == reflect.Struct && !reflect.PointerTo(inner).Implements(decodesItself) {
				s.nested[name] = nested{inner, list}
			}
		}
	}
	shapes.Store(t, s)
	return s
}

var decodesItself = reflect.TypeFor[cbor.Unmarshaler]()

// required lists the keys that must be there: every field that is not a
// pointer, not omitted when empty and not tagged wire:"optional".
func required(t reflect.Type) []string { return shapeOf(t).required }

// checkRequired looks for the required fields of t, and of the structs in it.
func checkRequired(p []byte, t reflect.Type) error {
	s := shapeOf(t)
	if len(s.required)+len(s.nested) == 0 {
		return nil
	}
	c := Cursor{B: p}
	return c.checkStruct(s)
}

// checkStruct passes over one item. What is no map is the decoder's to refuse.
func (c *Cursor) checkStruct(s shape) error {
	if c.Pos >= len(c.B) || c.B[c.Pos]>>5 != Map || len(s.required)+len(s.nested) == 0 {
		return c.Skip(1)
	}
	_, n, err := c.Head()
	if err != nil {
		return err
	}
	var seen uint64 // bit i: required[i] is there
	for i := uint64(0); n == Indefinite || i < n; i++ {
		if n == Indefinite && c.AtBreak() {
			break
		}
		key, isText, err := c.Key()
		if err != nil {
			return err
		}
		null := c.Pos < len(c.B) && c.B[c.Pos] == 0xf6
		if isText && !null {
			if j := slices.Index(s.required, string(key)); j >= 0 {
				seen |= 1 << j
			}
		}
		inner, known := s.nested[string(key)]
		switch {
		case !isText || !known:
			err = c.Skip(1)
		case inner.list:
			err = c.checkList(shapeOf(inner.t))
		default:
			err = c.checkStruct(shapeOf(inner.t))
		}
		if err != nil {
			return err
		}
	}
	for j, name := range s.required {
		if seen&(1<<j) == 0 {
			return Malformed("field %q is missing", name)
		}
	}
	return nil
}

// checkList is checkStruct for the elements of an array.
func (c *Cursor) checkList(s shape) error {
	if c.Pos >= len(c.B) || c.B[c.Pos]>>5 != Array {
		return c.Skip(1)
	}
	_, n, err := c.Head()
	if err != nil {
		return err
	}
	for i := uint64(0); n == Indefinite || i < n; i++ {
		if n == Indefinite && c.AtBreak() {
			break
		}
		if err := c.checkStruct(s); err != nil {
			return err
		}
	}
	return nil
}

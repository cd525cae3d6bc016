package record

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/fxamacker/cbor/v2"
)

var strictMode = must(cbor.DecOptions{
	DupMapKey:        cbor.DupMapKeyEnforcedAPF,
	MaxNestedLevels:  MaxDepth,
	MaxArrayElements: 8 << 20,
	MaxMapPairs:      8 << 20,
	UTF8:             cbor.UTF8RejectInvalid,
	TagsMd:           cbor.TagsForbidden,
}.DecMode())

// DecodeStrict decodes p into the struct that v points to by the rules of
// control records: exactly one map with unique text keys and nothing after it,
// every required field present, no known field null, no tags, integers in
// range. Unknown fields are ignored. Errors wrap ErrMalformed. A struct inside
// the record that has required fields of its own must decode itself with
// DecodeStrict.
func DecodeStrict(p []byte, v any) error {
	if err := checkRecord(p, reflect.TypeOf(v).Elem()); err != nil {
		return err
	}
	if err := strictMode.Unmarshal(p, v); err != nil {
		return fmt.Errorf("%w: %v", ErrMalformed, err)
	}
	return nil
}

func checkRecord(p []byte, t reflect.Type) error {
	c := Cursor{B: p}
	major, n, err := c.Head()
	if err != nil {
		return err
	}
	if major != Map {
		return Malformed("not a map")
	}
	seen := map[string]bool{}
	for i := uint64(0); n == Indefinite || i < n; i++ {
		if n == Indefinite && c.AtBreak() {
			break
		}
		key, isText, err := c.Key()
		if err != nil {
			return err
		}
		if !isText {
			return Malformed("a key is not text")
		}
		if seen[string(key)] {
			return Malformed("field %q is there twice", key)
		}
		seen[string(key)] = true
		if null := c.Pos < len(p) && p[c.Pos] == 0xf6; null && hasField(t, string(key)) {
			return Malformed("field %q is null", key)
		}
		if err := c.Skip(1); err != nil {
			return err
		}
	}
	if c.Pos != len(p) {
		return Malformed("%d bytes after the record", len(p)-c.Pos)
	}
	for _, name := range required(t) {
		if !seen[name] {
			return Malformed("field %q is missing", name)
		}
	}
	return nil
}

func hasField(t reflect.Type, key string) bool {
	for i := range t.NumField() {
		if name, _, _ := strings.Cut(t.Field(i).Tag.Get("cbor"), ","); name == key {
			return true
		}
	}
	return false
}

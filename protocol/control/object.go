package control

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// Bounds of a JSON line, far above what any request or reply has, so that a
// large line costs memory in proportion to its size.
const (
	maxDepth = 32
	maxKeys  = 256 // of one object
)

// object is a JSON object by its keys as they are written: encoding/json alone
// would take "Op" for "op".
type object map[string]json.RawMessage

var errNotObject = errors.New("not a JSON object")

// parseObject reads the one object of a line. Errors never quote from it: it
// may hold a secret.
func parseObject(line []byte) (object, error) {
	if !utf8.Valid(line) {
		return nil, errors.New("not valid UTF-8")
	}
	if hasLoneSurrogate(line) {
		return nil, errors.New("text with half a character")
	}
	if err := checkShape(line); err != nil {
		return nil, err
	}
	return exactObject(line)
}

func exactObject(raw []byte) (object, error) {
	var o object
	if err := json.Unmarshal(raw, &o); err != nil || o == nil {
		return nil, errNotObject
	}
	return o, nil
}

// take decodes a field that may be missing or null into the pointer that into
// is.
func (o object) take(key string, into any) error {
	raw, there := o[key]
	if !there {
		return nil
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("field %q has the wrong type or is out of range", key)
	}
	return nil
}

// need is take for a field that must be there.
func (o object) need(key string, into any) error {
	if raw, there := o[key]; !there || bytes.Equal(raw, []byte("null")) {
		return fmt.Errorf("field %q is missing", key)
	}
	return o.take(key, into)
}

// object returns a field that is an object; nil when it is missing or null.
func (o object) object(key string) (object, error) {
	raw, there := o[key]
	if !there || bytes.Equal(raw, []byte("null")) {
		return nil, nil
	}
	sub, err := exactObject(raw)
	if err != nil {
		return nil, fmt.Errorf("field %q is no object", key)
	}
	return sub, nil
}

// checkShape refuses an object that names a key twice, at any depth: which of
// the two values counts would depend on the reader.
func checkShape(line []byte) error {
	type level struct {
		keys   map[string]bool // nil: an array
		expect bool            // the next token is a key
	}
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.UseNumber()
	var stack []level
	for {
		tok, err := dec.Token()
		if err == io.EOF && len(stack) == 0 {
			return nil
		}
		if err != nil {
			return errNotObject
		}
		top := len(stack) - 1
		if key, ok := tok.(string); ok && top >= 0 && stack[top].expect {
			if stack[top].keys[key] {
				return errors.New("a key is there twice")
			}
			if len(stack[top].keys) >= maxKeys {
				return fmt.Errorf("an object of more than %d keys", maxKeys)
			}
			stack[top].keys[key] = true
			stack[top].expect = false
			continue
		}
		switch tok {
		case json.Delim('{'), json.Delim('['):
			if len(stack) == maxDepth {
				return fmt.Errorf("nested deeper than %d", maxDepth)
			}
			next := level{}
			if tok == json.Delim('{') {
				next = level{keys: map[string]bool{}, expect: true}
			}
			stack = append(stack, next)
			continue
		case json.Delim('}'), json.Delim(']'):
			stack = stack[:top]
			top--
		}
		if top >= 0 && stack[top].keys != nil {
			stack[top].expect = true
		}
	}
}

// hasLoneSurrogate finds a \uD800 to \uDFFF escape that is not one of a pair.
// encoding/json would put another character in its place, and a credential
// would be a different one from there on.
func hasLoneSurrogate(line []byte) bool {
	for i := 0; i < len(line); i++ {
		if line[i] != '\\' {
			continue
		}
		unit, ok := escapedUnit(line[i:])
		if !ok {
			i++ // the escaped character
			continue
		}
		i += 5
		switch {
		case unit < 0xd800 || unit > 0xdfff:
		case unit >= 0xdc00:
			return true
		default:
			low, ok := escapedUnit(line[i+1:])
			if !ok || low < 0xdc00 || low > 0xdfff {
				return true
			}
			i += 6
		}
	}
	return false
}

// escapedUnit reads \uXXXX at the beginning of b.
func escapedUnit(b []byte) (unit uint16, ok bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	for _, c := range b[2:6] {
		var digit byte
		switch {
		case c >= '0' && c <= '9':
			digit = c - '0'
		case c >= 'a' && c <= 'f':
			digit = c - 'a' + 10
		case c >= 'A' && c <= 'F':
			digit = c - 'A' + 10
		default:
			return 0, false
		}
		unit = unit<<4 | uint16(digit)
	}
	return unit, true
}

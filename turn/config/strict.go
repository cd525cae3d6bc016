package config

import (
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
)

// Limits of a document.
const (
	MaxSize  = 1 << 20 // bytes
	maxDepth = 32
)

// Error is a mistake in a document, with its place. Line and Column count from
// 1; they are 0 when the whole document is meant.
type Error struct {
	Source       string // file name
	Line, Column int
	Message      string
}

// Error gives source:line:column: message.
func (e *Error) Error() string {
	if e.Line == 0 {
		return e.Source + ": " + e.Message
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.Source, e.Line, e.Column, e.Message)
}

// Decode decodes one YAML document into the struct v points to. It is strict:
// unknown and repeated keys, wrong types, several documents, anchors and
// aliases are each an *Error that names source, line and column. Fields are
// called by their yaml tag; a field without one is not set. An empty document
// sets nothing.
func Decode(source string, data []byte, v any) error {
	node, err := parse(source, data)
	if err != nil || node == nil {
		return err
	}
	return decoder{source}.value(node, reflect.ValueOf(v).Elem(), "", 0)
}

// parse returns the top node of a document, nil if it is empty.
func parse(source string, data []byte) (*yaml.Node, error) {
	if len(data) > MaxSize {
		return nil, &Error{Source: source, Message: fmt.Sprintf("it has %d bytes, allowed are %d", len(data), MaxSize)}
	}
	loader, err := yaml.NewLoader(strings.NewReader(string(data)))
	if err != nil {
		return nil, err
	}
	var doc yaml.Node
	if err := loader.Load(&doc); err != nil && !errors.Is(err, io.EOF) {
		return nil, syntax(source, err)
	}
	if doc.Kind == 0 || len(doc.Content) == 0 || isNull(doc.Content[0]) {
		return nil, nil
	}
	var more yaml.Node
	if err := loader.Load(&more); err == nil && more.Kind != 0 {
		return nil, &Error{Source: source, Line: more.Line, Column: more.Column, Message: "a second document begins here; only one is allowed"}
	} else if err != nil && !errors.Is(err, io.EOF) {
		return nil, syntax(source, err)
	}
	return doc.Content[0], nil
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// syntax turns the parser's error into an *Error.
func syntax(source string, err error) error {
	var le *yaml.LoadError
	if errors.As(err, &le) {
		return &Error{Source: source, Line: int(le.Mark.Line), Column: int(le.Mark.Column), Message: le.Message}
	}
	return &Error{Source: source, Message: err.Error()}
}

type decoder struct{ source string }

func (d decoder) fail(n *yaml.Node, path, format string, args ...any) error {
	m := fmt.Sprintf(format, args...)
	if path != "" {
		m = path + ": " + m
	}
	return &Error{Source: d.source, Line: n.Line, Column: n.Column, Message: m}
}

var durationType = reflect.TypeFor[time.Duration]()

// value decodes a node into v; path names it, e.g. models[1].name.
func (d decoder) value(n *yaml.Node, v reflect.Value, path string, depth int) error {
	switch {
	case depth > maxDepth:
		return d.fail(n, path, "nested deeper than %d levels", maxDepth)
	case n.Kind == yaml.AliasNode, n.Anchor != "":
		return d.fail(n, path, "anchors and aliases are not supported")
	case isNull(n):
		return d.fail(n, path, "there is no value; leave the key out or give it %s", want(v.Type()))
	}
	if v.Type() == durationType {
		return d.duration(n, v, path)
	}
	wrong := func() error { return d.fail(n, path, "%s is wanted here, not %s", want(v.Type()), got(n)) }
	switch v.Kind() {
	case reflect.Pointer:
		p := reflect.New(v.Type().Elem())
		if err := d.value(n, p.Elem(), path, depth); err != nil {
			return err
		}
		v.Set(p)
	case reflect.Struct:
		if n.Kind != yaml.MappingNode {
			return wrong()
		}
		return d.object(n, v, path, depth)
	case reflect.Map:
		if n.Kind != yaml.MappingNode {
			return wrong()
		}
		return d.table(n, v, path, depth)
	case reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			return wrong()
		}
		list := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
		for i, item := range n.Content {
			if err := d.value(item, list.Index(i), fmt.Sprintf("%s[%d]", path, i), depth+1); err != nil {
				return err
			}
		}
		v.Set(list)
	case reflect.String:
		if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str" {
			return wrong()
		}
		v.SetString(n.Value)
	case reflect.Bool:
		b, err := strconv.ParseBool(n.Value)
		if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!bool" || err != nil {
			return wrong()
		}
		v.SetBool(b)
	case reflect.Int, reflect.Int64:
		i, err := strconv.ParseInt(n.Value, 10, 64)
		if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" || err != nil || v.OverflowInt(i) {
			return wrong()
		}
		v.SetInt(i)
	case reflect.Float64:
		f, err := strconv.ParseFloat(n.Value, 64)
		if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!float" && n.ShortTag() != "!!int" || err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
			return wrong()
		}
		v.SetFloat(f)
	case reflect.Interface: // a section that someone else decodes
		v.Set(reflect.ValueOf(n))
	default:
		return d.fail(n, path, "cannot be set")
	}
	return nil
}

func (d decoder) duration(n *yaml.Node, v reflect.Value, path string) error {
	t, err := time.ParseDuration(n.Value)
	if n.Kind != yaml.ScalarNode || err != nil {
		return d.fail(n, path, "%s is wanted here, not %s", want(v.Type()), got(n))
	}
	if t < 0 {
		return d.fail(n, path, "a time must not be negative")
	}
	v.SetInt(int64(t))
	return nil
}

// object decodes a mapping into a struct.
func (d decoder) object(n *yaml.Node, v reflect.Value, path string, depth int) error {
	fields := make(map[string]int)
	var names []string
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("yaml"), ",")
		if name != "" && name != "-" {
			fields[name] = i
			names = append(names, name)
		}
	}
	return d.pairs(n, path, func(key, value *yaml.Node, at string) error {
		i, ok := fields[key.Value]
		if !ok {
			return d.fail(key, path, "unknown key %q%s", key.Value, suggest(key.Value, names))
		}
		return d.value(value, v.Field(i), at, depth+1)
	})
}

// table decodes a mapping into a map with string keys.
func (d decoder) table(n *yaml.Node, v reflect.Value, path string, depth int) error {
	m := reflect.MakeMap(v.Type())
	err := d.pairs(n, path, func(key, value *yaml.Node, at string) error {
		e := reflect.New(v.Type().Elem()).Elem()
		if err := d.value(value, e, at, depth+1); err != nil {
			return err
		}
		m.SetMapIndex(reflect.ValueOf(key.Value).Convert(v.Type().Key()), e)
		return nil
	})
	if err == nil {
		v.Set(m)
	}
	return err
}

// pairs calls do for every key of a mapping, which must be strings and unique.
func (d decoder) pairs(n *yaml.Node, path string, do func(key, value *yaml.Node, at string) error) error {
	seen := make(map[string]int)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode || key.ShortTag() != "!!str" || key.Anchor != "" {
			return d.fail(key, path, "a key must be plain text")
		}
		if line, twice := seen[key.Value]; twice {
			return d.fail(key, path, "the key %q is here twice, first on line %d", key.Value, line)
		}
		seen[key.Value] = key.Line
		at := key.Value
		if path != "" {
			at = path + "." + at
		}
		if err := do(key, value, at); err != nil {
			return err
		}
	}
	return nil
}

// want names what a type is written as.
func want(t reflect.Type) string {
	if t == durationType {
		return "a time such as 30s or 5m"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return want(t.Elem())
	case reflect.Struct, reflect.Map:
		return "a group of keys"
	case reflect.Slice:
		return "a list"
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	}
	return "a value"
}

// got names what a node is.
func got(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a group of keys"
	case yaml.SequenceNode:
		return "a list"
	}
	value := n.Value
	if len(value) > 40 {
		value = value[:40] + "…"
	}
	switch n.ShortTag() {
	case "!!str":
		return fmt.Sprintf("the text %q", value)
	case "!!bool":
		return value + " (put it in quotes if it is meant as text)"
	case "!!int", "!!float", "!!timestamp":
		return fmt.Sprintf("the number %s (put it in quotes if it is meant as text)", value)
	}
	return fmt.Sprintf("%q", value)
}

// suggest names the known key that is nearest to a wrong one.
func suggest(wrong string, names []string) string {
	best, distance := "", 3
	for _, name := range names {
		if n := edits(wrong, name); n < distance {
			best, distance = name, n
		}
	}
	if best != "" {
		return fmt.Sprintf("; did you mean %q?", best)
	}
	names = slices.Clone(names)
	slices.Sort(names)
	return "; known are " + strings.Join(names, ", ")
}

// edits is the Levenshtein distance of two short texts.
func edits(a, b string) int {
	if len(a) > 64 {
		return len(a)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		last := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := last
			if a[i] != b[j] {
				cost++
			}
			last = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

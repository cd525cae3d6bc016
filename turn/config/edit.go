package config

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.yaml.in/yaml/v4"

	"msb/turn/durable"
)

// AddModel adds a model profile to the settings file, which it makes if there
// is none. Everything else in the file stays as it is, comments included.
func AddModel(path string, m Model) error {
	if err := m.Check(); err != nil {
		return fmt.Errorf("add model profile: %w", err)
	}
	return edit(path, func(c *Config, d *document) error {
		if slices.ContainsFunc(c.Models, func(o Model) bool { return o.Name == m.Name }) {
			return fmt.Errorf("there is a model profile %q already: remove it first with `msb model rm %s`", m.Name, m.Name)
		}
		return d.add("models", m)
	})
}

// RemoveModel takes a model profile out of the settings file.
func RemoveModel(path, name string) error {
	return edit(path, func(c *Config, d *document) error {
		if c.DefaultModel == name {
			return fmt.Errorf("%q is the default_model: name another one in %s first", name, path)
		}
		if !d.remove("models", name) {
			return fmt.Errorf("%s has no model profile %q", path, name)
		}
		return nil
	})
}

// AddServer adds an MCP server to the settings file, which it makes if there is
// none.
func AddServer(path string, s Server) error {
	if err := s.Check(); err != nil {
		return fmt.Errorf("add MCP server: %w", err)
	}
	return edit(path, func(c *Config, d *document) error {
		if slices.ContainsFunc(c.MCPServers, func(o Server) bool { return o.Name == s.Name && !o.builtin }) {
			return fmt.Errorf("there is an MCP server %q already: remove it first with `msb mcp rm %s`", s.Name, s.Name)
		}
		return d.add("mcp_servers", s)
	})
}

// RemoveServer takes an MCP server out of the settings file.
func RemoveServer(path, name string) error {
	return edit(path, func(_ *Config, d *document) error {
		if !d.remove("mcp_servers", name) {
			return fmt.Errorf("%s has no MCP server %q", path, name)
		}
		return nil
	})
}

// edit changes the file under a lock; what comes out must be a valid file.
func edit(path string, change func(*Config, *document) error) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("settings: %w", err)
	}
	unlock, err := lock(dir)
	if err != nil {
		return fmt.Errorf("settings: %w", err)
	}
	defer unlock()
	data, err := read(path)
	if err != nil {
		return err
	}
	c, err := Parse(path, data)
	if err != nil {
		return fmt.Errorf("the file has to be right before it can be changed: %w", err)
	}
	d := &document{source: path, text: string(data)}
	if err := change(c, d); err != nil {
		return err
	}
	if _, err := Parse(path, []byte(d.text)); err != nil {
		return fmt.Errorf("the change would make the file invalid: %w", err)
	}
	if err := write(path, []byte(d.text)); err != nil {
		return fmt.Errorf("settings: %w", err)
	}
	return nil
}

// document is the text of a settings file. It is changed by lines, so that what
// the user wrote stays byte for byte; where that does not come out right, as
// with flow style, it is written anew from its nodes, which keeps the comments.
type document struct {
	source, text string
}

// top returns the top mapping; an empty document is an empty mapping.
func (d *document) top() *yaml.Node {
	n, err := parse(d.source, []byte(d.text))
	if err != nil || n == nil || n.Kind != yaml.MappingNode {
		return &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	}
	return n
}

// meaning is what the document says, without places, styles and comments.
func meaning(n *yaml.Node) any {
	var v any
	if n == nil || n.Decode(&v) != nil {
		return nil
	}
	return v
}

// add appends an item to the list of a key.
func (d *document) add(key string, item any) error {
	node, err := encode(item)
	if err != nil {
		return err
	}
	wanted := d.top()
	list := child(wanted, key)
	if list == nil {
		list = &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		wanted.Content = append(wanted.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: key}, list)
	}
	list.Content = append(list.Content, node)
	text, ok := d.addLines(key, node)
	return d.become(wanted, text, ok)
}

// become takes the new text if it means what is wanted, else it writes that.
func (d *document) become(wanted *yaml.Node, text string, ok bool) error {
	if ok {
		next := &document{source: d.source, text: text}
		if reflect.DeepEqual(meaning(next.top()), meaning(wanted)) {
			d.text = text
			return nil
		}
	}
	for i := 1; i < len(wanted.Content); i += 2 {
		if n := wanted.Content[i]; n.Kind == yaml.SequenceNode && len(n.Content) > 0 {
			n.Style = 0 // an item does not go into [] of flow style
		}
	}
	out, err := yaml.Dump(wanted)
	if err != nil {
		return err
	}
	d.text = string(out)
	return nil
}

// emptyList is a key whose list has nothing in it.
var emptyList = regexp.MustCompile(`^[a-z_]+:[ \t]*\[[ \t]*\][ \t]*(#.*)?$`)

func (d *document) addLines(key string, node *yaml.Node) (string, bool) {
	top := d.top()
	list := child(top, key)
	lines := splitLines(d.text)
	indent, from := 2, len(lines)
	var head []string
	switch {
	case list == nil:
		if len(lines) > 0 && strings.TrimSpace(lines[len(lines)-1]) != "" {
			head = []string{""}
		}
		head = append(head, key+":")
	case list.Kind != yaml.SequenceNode || list.Line < 1 || list.Line > len(lines):
		return "", false
	case len(list.Content) == 0:
		line := lines[list.Line-1]
		if !emptyList.MatchString(line) {
			return "", false
		}
		rest := line[strings.IndexByte(line, ']')+1:]
		lines[list.Line-1] = key + ":" + rest
		from = list.Line
	default:
		dash := strings.IndexByte(lines[list.Line-1], '-')
		if dash < 0 || strings.TrimSpace(lines[list.Line-1][:dash]) != "" {
			return "", false
		}
		indent, from = dash, lastLine(list)
	}
	b, err := yaml.Dump(&yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Content: []*yaml.Node{node}})
	if err != nil {
		return "", false
	}
	added := head
	for _, l := range splitLines(string(b)) {
		added = append(added, strings.Repeat(" ", indent)+l)
	}
	return strings.Join(slices.Insert(lines, from, added...), "\n") + "\n", true
}

// remove takes the item of that name out of the list of a key.
func (d *document) remove(key, name string) bool {
	wanted := d.top()
	list := child(wanted, key)
	if list == nil || list.Kind != yaml.SequenceNode {
		return false
	}
	i := slices.IndexFunc(list.Content, func(n *yaml.Node) bool {
		v := child(n, "name")
		return v != nil && v.Value == name
	})
	if i < 0 {
		return false
	}
	text, ok := d.removeLines(list, i)
	list.Content = slices.Delete(list.Content, i, i+1)
	return d.become(wanted, text, ok) == nil
}

func (d *document) removeLines(list *yaml.Node, i int) (string, bool) {
	lines := splitLines(d.text)
	item := list.Content[i]
	first, last := item.Line-1, lastLine(item)
	if first < 0 || last > len(lines) || last <= first {
		return "", false
	}
	// A comment right above the item goes with it.
	for first > 0 && item.HeadComment != "" && strings.HasPrefix(strings.TrimSpace(lines[first-1]), "#") {
		first--
	}
	if len(list.Content) == 1 {
		at := first - 1
		for at >= 0 && !strings.Contains(lines[at], ":") {
			at--
		}
		if at < 0 || !regexp.MustCompile(`^[a-z_]+:[ \t]*(#.*)?$`).MatchString(lines[at]) {
			return "", false
		}
		lines[at] = strings.Replace(lines[at], ":", ": []", 1)
	}
	return strings.Join(slices.Delete(lines, first, last), "\n") + "\n", true
}

// lastLine is the last line on which something of a node begins.
func lastLine(n *yaml.Node) int {
	last := n.Line
	for _, c := range n.Content {
		last = max(last, lastLine(c))
	}
	return last
}

func splitLines(text string) []string {
	text = strings.TrimRight(text, "\n")
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

// encode turns a profile or server into a node without what was left out.
func encode(item any) (*yaml.Node, error) {
	var n yaml.Node
	b, err := yaml.Dump(item)
	if err == nil {
		err = yaml.Load(b, &n)
	}
	if err != nil {
		return nil, err
	}
	if n.Kind != yaml.DocumentNode || len(n.Content) != 1 {
		return nil, errors.New("cannot be written as YAML")
	}
	return n.Content[0], nil
}

// lock keeps other processes from editing the files of a folder. It gives up
// after a while.
func lock(dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) || time.Now().After(deadline) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", dir, err)
		}
	}
}

// write replaces the file, mode 0600; a crash leaves the old or the new one. A
// symbolic link stays one.
func write(path string, data []byte) error {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, data) {
		return os.Chmod(path, 0o600)
	}
	return durable.WriteFile(path, data)
}

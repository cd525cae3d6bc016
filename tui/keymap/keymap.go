// Package keymap is the one table of the screen's keys: what the footer and the
// list of keys say comes from it, and so does what the settings may change.
//
// The screen's code knows every action by its first key. A Map turns the keys
// that a user chose into those.
package keymap

import (
	"fmt"
	"slices"
	"strings"

	tea "charm.land/bubbletea/v2"
)

// Map is the keys of a user. It does not change.
type Map struct {
	groups map[string]*keys
}

type keys struct {
	group  *group
	of     map[string][]string // action: its keys
	change map[string]tea.Key  // key: what it is turned into; a zero key is none
}

// Error is a mistake in what a user changed. Index is that of the key in the list
// of an action, -1 when the action is meant.
type Error struct {
	Action  string
	Index   int
	Message string
}

func (e *Error) Error() string { return e.Action + ": " + e.Message }

// Default returns the keys as they are without settings.
func Default() *Map {
	m, err := New(nil)
	if err != nil {
		panic(err) // of the table: the tests see it
	}
	return m
}

// New returns the keys with changes: lists of keys by "group.action". An empty
// list leaves an action without any.
func New(changes map[string][]string) (*Map, error) {
	m := &Map{groups: make(map[string]*keys)}
	for i := range table {
		g := &table[i]
		k := &keys{group: g, of: make(map[string][]string), change: make(map[string]tea.Key)}
		for _, b := range g.bindings {
			k.of[b.name] = b.keys
		}
		m.groups[g.name] = k
	}
	names := make([]string, 0, len(changes))
	for action := range changes {
		names = append(names, action)
	}
	slices.Sort(names)
	for _, action := range names {
		if err := m.set(action, changes[action]); err != nil {
			return nil, err
		}
	}
	if err := m.check(changes); err != nil {
		return nil, err
	}
	for _, action := range names {
		m.translate(action, changes[action])
	}
	return m, nil
}

// set gives an action its keys.
func (m *Map) set(action string, list []string) error {
	name, what, _ := strings.Cut(action, ".")
	k := m.groups[name]
	if k == nil {
		return &Error{action, -1, "there is no such place; there are " + strings.Join(groupNames(), ", ")}
	}
	if _, ok := k.of[what]; !ok {
		var known []string
		for _, b := range k.group.bindings {
			known = append(known, b.name)
		}
		return &Error{action, -1, fmt.Sprintf("there is no such action; %s has %s", name, strings.Join(known, ", "))}
	}
	for i, key := range list {
		parsed, err := parse(key)
		switch {
		case err != nil:
			return &Error{action, i, err.Error()}
		case k.group.typing && parsed.Text != "":
			return &Error{action, i, fmt.Sprintf("%q is a character, and what is typed there is text", key)}
		case name == Approval && (what == "once" || what == "session") && (parsed.Text == "" && parsed.Mod == 0 || key == "space"):
			return &Error{action, i, fmt.Sprintf("%q is pressed without a thought; allowing needs a letter", key)}
		case slices.Contains(list[:i], key):
			return &Error{action, i, fmt.Sprintf("%q is there twice", key)}
		}
	}
	k.of[what] = list
	return nil
}

// check refuses a key that means two things at once. Of the two actions, the
// changed one is reported.
func (m *Map) check(changes map[string][]string) error {
	for _, g := range table {
		taken := make(map[string]string)
		for _, name := range append(slices.Clone(together[g.name]), g.name) {
			k := m.groups[name]
			for _, b := range k.group.bindings {
				action := name + "." + b.name
				for i, key := range k.of[b.name] {
					other, twice := taken[key]
					taken[key] = action
					if !twice {
						continue
					}
					if _, changed := changes[action]; !changed {
						action, other = other, action
						i = slices.Index(changes[action], key)
					}
					return &Error{action, i, fmt.Sprintf("%q is the key of %s already", key, other)}
				}
			}
		}
	}
	return nil
}

// translate makes the keys of a changed action those that the code knows.
func (m *Map) translate(action string, list []string) {
	name, what, _ := strings.Cut(action, ".")
	k := m.groups[name]
	for _, b := range k.group.bindings {
		if b.name != what {
			continue
		}
		for _, old := range b.keys {
			if _, used := k.change[old]; !used {
				k.change[old] = tea.Key{}
			}
		}
		canonical, _ := parse(b.keys[0])
		for _, key := range list {
			k.change[key] = canonical
		}
	}
}

// Translate turns a key into the one that the code knows, in the groups that have
// the focus, first things first. typing says that characters are text. A key that
// has lost its meaning becomes one without a name.
func (m *Map) Translate(k tea.KeyPressMsg, typing bool, groups ...string) tea.KeyPressMsg {
	if typing && k.Text != "" && k.Mod&^tea.ModShift == 0 {
		return k
	}
	name, lost := k.String(), false
	for _, g := range groups {
		to, ok := m.groups[g].change[name]
		switch {
		case ok && to.Code != 0:
			return tea.KeyPressMsg(to)
		case ok:
			lost = true
		}
	}
	if lost {
		for _, g := range groups { // it may have its own meaning in another of them
			if _, changed := m.groups[g].change[name]; !changed && m.groups[g].has(name) {
				return k
			}
		}
		return tea.KeyPressMsg{}
	}
	return k
}

func (k *keys) has(key string) bool {
	for _, list := range k.of {
		if slices.Contains(list, key) {
			return true
		}
	}
	return false
}

// Label is the first key of "group.action", for people; "" when it has none.
func (m *Map) Label(action string) string {
	name, what, _ := strings.Cut(action, ".")
	if list := m.groups[name].of[what]; len(list) > 0 {
		return label(list[0])
	}
	return ""
}

// Entry is one line of the list of keys.
type Entry struct {
	Action string // group.action
	Keys   []string
	Help   string
}

// Labels are the keys for people.
func (e Entry) Labels() string {
	var list []string
	for _, k := range e.Keys {
		list = append(list, label(k))
	}
	return strings.Join(list, " ")
}

// Section is the keys of one place.
type Section struct {
	Title   string
	Entries []Entry
}

// Sections is the list of all keys.
func (m *Map) Sections() []Section {
	var list []Section
	for _, g := range table {
		s := Section{Title: g.title}
		for _, b := range g.bindings {
			s.Entries = append(s.Entries, Entry{g.name + "." + b.name, m.groups[g.name].of[b.name], b.help})
		}
		list = append(list, s)
	}
	return list
}

func groupNames() []string {
	var names []string
	for _, g := range table {
		names = append(names, g.name)
	}
	return names
}

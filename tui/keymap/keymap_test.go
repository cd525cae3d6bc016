package keymap

import (
	"errors"
	"strings"
	"testing"

	tea "charm.land/bubbletea/v2"
)

func TestTable(t *testing.T) {
	m := Default()
	for _, s := range m.Sections() {
		for _, e := range s.Entries {
			if e.Help == "" || len(e.Keys) == 0 || m.Label(e.Action) == "" {
				t.Errorf("%+v", e)
			}
			for _, name := range e.Keys {
				k, err := parse(name)
				if err != nil {
					t.Errorf("%s: %v", e.Action, err)
				}
				if got := tea.KeyPressMsg(k).String(); got != name {
					t.Errorf("%s: the key %q reads %q", e.Action, name, got)
				}
			}
		}
	}
}

func press(t *testing.T, name string) tea.KeyPressMsg {
	t.Helper()
	k, err := parse(name)
	if err != nil {
		t.Fatal(err)
	}
	return tea.KeyPressMsg(k)
}

func TestTranslate(t *testing.T) {
	none := tea.KeyPressMsg{}.String()
	m, err := New(map[string][]string{"boxes.start": {"f5", "S"}, "boxes.stop": {"s"}, "turns.open": {"f4"}, "lists.leave": {}, "approval.once": {"A"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ groups, key, want string }{
		{"boxes", "f5", "s"}, {"boxes", "S", "s"}, {"boxes", "s", "x"}, {"boxes", "x", none}, {"boxes", "p", "p"},
		{"turns", "f4", "ctrl+o"}, {"turns", "ctrl+o", none}, {"lists", "q", none}, {"approval", "A", "y"}, {"approval", "y", none},
		{"page", "q", "q"},
	} {
		if got := m.Translate(press(t, c.key), false, Everywhere, c.groups).String(); got != c.want {
			t.Errorf("%s %s: %q, want %q", c.groups, c.key, got, c.want)
		}
	}
	// Text stays text, and a key that one place has lost may mean something in another.
	if got := m.Translate(press(t, "S"), true, Boxes).String(); got != "S" {
		t.Error(got)
	}
	if got := m.Translate(press(t, "q"), false, Lists, Page).String(); got != "q" {
		t.Error(got)
	}
	if m.Label("boxes.start") != "F5" || m.Label("lists.leave") != "" || m.Label("turns.open") != "F4" || m.Label("everywhere.leave") != "Ctrl-]" {
		t.Error(m.Label("boxes.start"), m.Label("turns.open"), m.Label("everywhere.leave"))
	}
}

func TestMistakes(t *testing.T) {
	for _, c := range []struct {
		changes map[string][]string
		action  string
		index   int
		says    string
	}{
		{map[string][]string{"boxes.fly": {"f5"}}, "boxes.fly", -1, "there is no such action; boxes has open, new"},
		{map[string][]string{"attic.open": {"f5"}}, "attic.open", -1, "there is no such place"},
		{map[string][]string{"boxes.start": {"f5", "hyper+x"}}, "boxes.start", 1, "is not a key"},
		{map[string][]string{"boxes.start": {"shift+s"}}, "boxes.start", 0, "such as G"},
		{map[string][]string{"boxes.start": {"ctrl+m"}}, "boxes.start", 0, "from enter"},
		{map[string][]string{"boxes.start": {"ctrl+7"}}, "boxes.start", 0, "no such key"},
		{map[string][]string{"boxes.start": {"f5", "f5"}}, "boxes.start", 1, "twice"},
		{map[string][]string{"boxes.start": {"x"}}, "boxes.start", 0, `"x" is the key of boxes.stop already`},
		{map[string][]string{"boxes.start": {"?"}}, "boxes.start", 0, "lists.keys"},
		{map[string][]string{"everywhere.keys": {"ctrl+o"}}, "everywhere.keys", 0, "turns.open"},
		{map[string][]string{"turns.open": {"o"}}, "turns.open", 0, "is a character"},
		{map[string][]string{"everywhere.keys": {"?"}}, "everywhere.keys", 0, "is a character"},
		{map[string][]string{"approval.once": {"enter"}, "approval.deny": {"n"}}, "approval.once", 0, "without a thought"},
		{map[string][]string{"approval.session": {"space"}, "approval.page_down": {"f"}}, "approval.session", 0, "without a thought"},
		{map[string][]string{"boxes.start": {""}}, "boxes.start", 0, "is not a key"},
		{map[string][]string{"boxes.start": {"\x1b"}}, "boxes.start", 0, "is not a key"},
		{map[string][]string{"boxes.start": {strings.Repeat("x", 5000)}}, "boxes.start", 0, "is not a key"},
	} {
		_, err := New(c.changes)
		var e *Error
		if !errors.As(err, &e) || e.Action != c.action || e.Index != c.index || !strings.Contains(e.Message, c.says) {
			t.Errorf("%v: %v %+v", c.changes, err, e)
		}
		if err != nil && len(err.Error()) > 600 {
			t.Errorf("%d bytes", len(err.Error()))
		}
	}
}

package compose

import (
	"strings"
	"testing"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"msb/tui/theme"
)

func field() *Composer {
	c := New(theme.New(true), []Command{{"/model", "NAME", "choose a model"}, {"/new", "", "new session"}, {"/help", "", "keys"}})
	c.View(60, 8)
	return c
}

func (c *Composer) typed(keys ...string) (sent []string) {
	for _, s := range keys {
		var k tea.KeyPressMsg
		switch s {
		case "enter":
			k.Code = tea.KeyEnter
		case "tab":
			k.Code = tea.KeyTab
		case "up":
			k.Code = tea.KeyUp
		case "down":
			k.Code = tea.KeyDown
		case "ctrl+j":
			k.Code, k.Mod = 'j', tea.ModCtrl
		default:
			for _, r := range s {
				c.Key(tea.KeyPressMsg{Code: r, Text: string(r)})
			}
			continue
		}
		if cmd := c.Key(k); cmd != nil {
			if m, ok := cmd().(SendMsg); ok {
				sent = append(sent, m.Text)
			}
		}
	}
	return sent
}

func TestSend(t *testing.T) {
	c := field()
	if s := c.typed("fix it", "ctrl+j", "now", "enter"); len(s) != 1 || s[0] != "fix it\nnow" || !c.Empty() {
		t.Errorf("%q", s)
	}
	if s := c.typed("  ", "enter"); len(s) != 0 {
		t.Errorf("%q", s)
	}
	c.Reset()
	c.typed("second", "enter", "draft", "up")
	if c.Value() != "second" {
		t.Error(c.Value())
	}
	c.typed("up")
	if c.Value() != "fix it\nnow" {
		t.Error(c.Value())
	}
	c.typed("down", "down", "down")
	if c.Value() != "draft" {
		t.Error(c.Value())
	}
}

func TestPaste(t *testing.T) {
	c := field()
	c.Paste("one\r\ntwo\u202e\n")
	if c.Value() != "one\ntwo\u202e\n" {
		t.Errorf("%q", c.Value())
	}
	lines, _ := c.View(60, 8)
	if s := ansi.Strip(strings.Join(lines, "\n")); !strings.Contains(s, "1 invisible character") || !strings.Contains(s, `two\u202e`) {
		t.Error(s)
	}
}

func TestCommands(t *testing.T) {
	c := field()
	c.typed("/")
	if lines, _ := c.View(60, 8); len(lines) != 4 {
		t.Errorf("%d lines", len(lines))
	}
	c.typed("m", "tab")
	if c.Value() != "/model " {
		t.Errorf("%q", c.Value())
	}
	if s := c.typed("demo", "enter"); len(s) != 1 || s[0] != "/model demo" {
		t.Errorf("%q", s)
	}
	if s := c.typed("/n", "enter"); len(s) != 1 || s[0] != "/new" {
		t.Errorf("%q", s)
	}
}

func TestFiles(t *testing.T) {
	c := field()
	c.typed("look at @st")
	c.Files("st", []string{"store.go", "st\x1b[2J"})
	lines, _ := c.View(60, 8)
	if s := strings.Join(lines, "\n"); !strings.Contains(s, `@st\x1b[2J`) || strings.Contains(s, "\x1b[2J") {
		t.Errorf("%q", s)
	}
	c.typed("tab")
	if c.Value() != "look at @store.go " {
		t.Errorf("%q", c.Value())
	}
}

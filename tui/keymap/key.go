package keymap

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
)

// named are the keys that have a name.
var named = map[string]rune{
	"enter": tea.KeyEnter, "tab": tea.KeyTab, "backspace": tea.KeyBackspace, "esc": tea.KeyEscape, "space": tea.KeySpace,
	"up": tea.KeyUp, "down": tea.KeyDown, "left": tea.KeyLeft, "right": tea.KeyRight, "home": tea.KeyHome, "end": tea.KeyEnd,
	"pgup": tea.KeyPgUp, "pgdown": tea.KeyPgDown, "insert": tea.KeyInsert, "delete": tea.KeyDelete,
}

// same are keys that terminals do not tell from another.
var same = map[string]string{"ctrl+i": "tab", "ctrl+m": "enter", "ctrl+[": "esc", "ctrl+h": "backspace"}

// parse reads the name of a key, such as "ctrl+o", "alt+enter", "f2", "G".
func parse(name string) (tea.Key, error) {
	var k tea.Key
	rest := name
	if other := same[name]; other != "" {
		return k, fmt.Errorf("terminals cannot tell %s from %s", name, other)
	}
	for _, m := range []struct {
		word string
		mod  tea.KeyMod
	}{{"ctrl+", tea.ModCtrl}, {"alt+", tea.ModAlt}, {"shift+", tea.ModShift}} {
		if r, ok := strings.CutPrefix(rest, m.word); ok && r != "" {
			rest, k.Mod = r, k.Mod|m.mod
		}
	}
	if code, ok := named[rest]; ok {
		k.Code = code
		if rest == "space" && k.Mod == 0 {
			k.Text = " "
		}
		return k, nil
	}
	if n, ok := strings.CutPrefix(rest, "f"); ok && n != "" {
		if i, err := strconv.Atoi(n); err == nil && i >= 1 && i <= 20 && n[0] != '0' {
			k.Code = tea.KeyF1 + rune(i-1)
			return k, nil
		}
	}
	r, size := utf8.DecodeRuneInString(rest)
	switch {
	case size != len(rest) || r == utf8.RuneError || !unicode.IsPrint(r) || r == ' ':
		return k, fmt.Errorf("%.40q is not a key; keys are a character, enter, tab, backspace, esc, space, up, down, left, right, home, end, pgup, pgdown, insert, delete, f1 to f20, after ctrl+, alt+, shift+ in that order", name)
	case k.Mod&tea.ModShift != 0:
		return k, fmt.Errorf("%s: write the character that the key gives, such as G", name)
	case k.Mod&tea.ModCtrl != 0 && !(r >= 'a' && r <= 'z' || strings.ContainsRune("]\\_^@", r)):
		return k, fmt.Errorf("%s: terminals have no such key; ctrl+ goes with a to z", name)
	}
	k.Code = r
	if k.Mod == 0 {
		k.Text = rest
		if unicode.IsUpper(r) {
			k.Code, k.ShiftedCode, k.Mod = unicode.ToLower(r), r, tea.ModShift
		}
	}
	return k, nil
}

var labels = map[string]string{"enter": "Enter", "tab": "Tab", "backspace": "Backspace", "esc": "Esc", "space": "Space", "up": "↑", "down": "↓",
	"left": "←", "right": "→", "home": "Home", "end": "End", "pgup": "PgUp", "pgdown": "PgDn", "insert": "Ins", "delete": "Del"}

// label is a key as people read it.
func label(name string) string {
	if r, ok := strings.CutPrefix(name, "ctrl+"); ok && len(r) == 1 && r >= "a" && r <= "z" {
		return "^" + strings.ToUpper(r)
	}
	var words []string
	for _, m := range [][2]string{{"ctrl+", "Ctrl"}, {"alt+", "Alt"}, {"shift+", "Shift"}} {
		if r, ok := strings.CutPrefix(name, m[0]); ok && r != "" {
			name = r
			words = append(words, m[1])
		}
	}
	if l := labels[name]; l != "" {
		name = l
	} else if len(name) > 1 {
		name = strings.ToUpper(name)
	}
	return strings.Join(append(words, name), "-")
}

package shells

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Modes follow what a program did to its terminal that outlasts what it printed:
// private modes, the keypad, keyboard protocols, and the title. The zero value is
// a terminal after its reset.
type Modes struct {
	scan    scanner
	private map[int]bool // differs from the terminal's own state
	keypad  bool
	kitty   int  // pushes of the keyboard protocol
	other   bool // modifyOtherKeys
	title   string
}

// initial are the private modes that are followed, and how a terminal begins.
var initial = map[int]bool{1: false, 5: false, 6: false, 7: true, 12: false, 25: true, 45: false, 47: false, 66: false,
	1000: false, 1002: false, 1003: false, 1004: false, 1005: false, 1006: false, 1007: false, 1015: false, 1016: false,
	1047: false, 1048: false, 1049: false, 2004: false, 2026: false, 2027: false, 2031: false, 2048: false}

const maxTitle = 256 // bytes

// Write takes what a program printed.
func (m *Modes) Write(p []byte) (int, error) {
	m.scan.scan(p, m.token)
	return len(p), nil
}

func (m *Modes) token(t token, b []byte) {
	switch t {
	case tokenEscape:
		switch string(b) {
		case "\x1b=":
			m.keypad = true
		case "\x1b>":
			m.keypad = false
		case "\x1bc":
			m.reset()
		}
	case tokenString:
		if rest, ok := bytes.CutPrefix(b, []byte("\x1b]")); ok {
			if n, title, ok := bytes.Cut(rest, []byte(";")); ok && (string(n) == "0" || string(n) == "2") {
				m.title = clipTitle(stringEnd(string(title)))
			}
		}
	case tokenCSI:
		m.csi(b)
	}
}

func (m *Modes) reset() { m.private, m.keypad, m.kitty, m.other = nil, false, 0, false }

func (m *Modes) csi(b []byte) {
	prefix, between, final := parts(b)
	switch {
	case prefix == '?' && between == 0 && (final == 'h' || final == 'l'):
		list := body(b)
		for n := range bytes.SplitSeq(list[1:len(list)-1], []byte(";")) {
			if mode, err := strconv.Atoi(string(n)); err == nil {
				m.set(mode, final == 'h')
			}
		}
	case prefix == 0 && between == '!' && final == 'p':
		m.reset()
	case prefix == '>' && final == 'u':
		m.kitty = min(m.kitty+1, 32)
	case prefix == '<' && final == 'u':
		m.kitty = max(m.kitty-1, 0)
	case prefix == '>' && final == 'm':
		m.other = bytes.HasPrefix(body(b), []byte(">4;")) && !bytes.HasPrefix(body(b), []byte(">4;0"))
	}
}

func (m *Modes) set(mode int, on bool) {
	begin, known := initial[mode]
	switch {
	case !known:
	case on == begin:
		delete(m.private, mode)
	default:
		if m.private == nil {
			m.private = make(map[int]bool)
		}
		m.private[mode] = on
	}
}

// Alternate tells whether a program has the whole screen.
func (m *Modes) Alternate() bool { return m.private[1049] || m.private[1047] || m.private[47] }

// Title is what the program calls itself: foreign text.
func (m *Modes) Title() string { return m.title }

// Enter is what brings a terminal after its reset into these modes.
func (m *Modes) Enter() string { return m.sequence(true) }

// Leave is what takes them back, colours included.
func (m *Modes) Leave() string { return m.sequence(false) + "\x1b[0m" }

func (m *Modes) sequence(enter bool) string {
	var s strings.Builder
	modes := make([]int, 0, len(m.private))
	for mode := range m.private {
		modes = append(modes, mode)
	}
	slices.Sort(modes)
	for _, mode := range modes {
		final := 'l'
		if m.private[mode] == enter {
			final = 'h'
		}
		fmt.Fprintf(&s, "\x1b[?%d%c", mode, final)
	}
	switch {
	case m.keypad && enter:
		s.WriteString("\x1b=")
	case m.keypad:
		s.WriteString("\x1b>")
	}
	if !enter && m.kitty > 0 {
		fmt.Fprintf(&s, "\x1b[<%du", m.kitty)
	}
	if !enter && m.other {
		s.WriteString("\x1b[>4m")
	}
	return s.String()
}

// clone returns a copy that goes its own way.
func (m *Modes) clone() Modes {
	c := *m
	c.private = make(map[int]bool, len(m.private))
	for k, v := range m.private {
		c.private[k] = v
	}
	return c
}

// stringEnd is the string without its end.
func stringEnd(s string) string {
	for _, end := range []string{"\a", "\x1b\\", "\xc2\x9c"} {
		if rest, ok := strings.CutSuffix(s, end); ok {
			return rest
		}
	}
	return s
}

func clipTitle(s string) string {
	if len(s) > maxTitle {
		s = s[:maxTitle]
		for len(s) > 0 && !utf8.ValidString(s) && len(s) > maxTitle-utf8.UTFMax {
			s = s[:len(s)-1]
		}
	}
	return strings.ToValidUTF8(s, "\ufffd")
}

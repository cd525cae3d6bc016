// Package compose is where the user writes: several lines, a history, commands
// that begin with a slash and files that begin with an at sign, both completed.
package compose

import (
	"fmt"
	"strings"

	"charm.land/bubbles/v2/textarea"
	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"

	"msb/tui/foreign"
	"msb/tui/pane"
	"msb/tui/theme"
	"msb/turn/visible"
)

// MaxPrompt bounds what can be written, in characters.
const MaxPrompt = 1 << 20

// Command is a command of the composer.
type Command struct {
	Name, Args, Help string
}

// SendMsg is what was written, when Enter was pressed.
type SendMsg struct{ Text string }

// FilesMsg asks for the names that begin with Prefix.
type FilesMsg struct{ Prefix string }

// Composer is the field.
type Composer struct {
	Commands []Command

	theme   *theme.Theme
	area    textarea.Model
	history []string
	at      int // in history; len: what is being written
	draft   string
	offers  []offer
	offered string // the word that the offers are for
	chosen  int
	closed  string // word whose offers were closed with Esc
	note    string // about what was pasted
	width   int
}

type offer struct{ insert, show, help string }

// New returns an empty field that has the focus.
func New(t *theme.Theme, commands []Command) *Composer {
	a := textarea.New()
	a.Prompt, a.ShowLineNumbers, a.CharLimit = "", false, MaxPrompt
	a.DynamicHeight, a.MinHeight, a.MaxHeight = true, 1, 6
	a.MaxContentHeight = 20000
	a.SetVirtualCursor(false)
	a.KeyMap.InsertNewline.SetKeys("shift+enter", "alt+enter", "ctrl+j")
	c := &Composer{Commands: commands, area: a}
	c.SetTheme(t)
	c.area.Focus()
	return c
}

// SetTheme changes the colours.
func (c *Composer) SetTheme(t *theme.Theme) {
	c.theme = t
	plain := lipgloss.NewStyle()
	state := textarea.StyleState{Base: plain, Text: plain, LineNumber: plain, CursorLineNumber: plain, CursorLine: plain,
		EndOfBuffer: plain, Placeholder: t.Dim, Prompt: plain}
	s := c.area.Styles()
	s.Focused, s.Blurred = state, state
	c.area.SetStyles(s)
}

// SetHint is what an empty field says.
func (c *Composer) SetHint(s string) { c.area.Placeholder = s }

// Value is what is written.
func (c *Composer) Value() string { return c.area.Value() }

// Empty tells whether nothing is written.
func (c *Composer) Empty() bool { return c.area.Length() == 0 }

// Set replaces what is written.
func (c *Composer) Set(s string) {
	c.area.SetValue(s)
	c.area.MoveToEnd()
	c.note = ""
	c.offer()
}

// Remember sets the history, oldest first.
func (c *Composer) Remember(list []string) {
	c.history = append([]string(nil), list...)
	c.at = len(c.history)
}

// Completing tells whether Tab and Esc are for the offers.
func (c *Composer) Completing() bool { return len(c.offers) > 0 }

// Close closes the offers.
func (c *Composer) Close() { c.closed, c.offers = c.word(), nil }

// Key is a key for the field.
func (c *Composer) Key(k tea.KeyPressMsg) tea.Cmd {
	switch name := k.String(); name {
	case "enter":
		if c.Completing() && c.offers[c.chosen].insert != c.word() && strings.HasPrefix(c.word(), "/") {
			c.complete()
			if !strings.HasSuffix(c.Value(), " ") {
				return c.submit()
			}
			return nil
		}
		return c.submit()
	case "tab":
		if c.Completing() {
			c.complete()
			return c.offer()
		}
		return nil
	case "up", "down", "ctrl+p", "ctrl+n":
		dir := 1
		if name == "up" || name == "ctrl+p" {
			dir = -1
		}
		if c.Completing() {
			c.chosen = (c.chosen + dir + len(c.offers)) % len(c.offers)
			return nil
		}
		if c.recall(dir) {
			return nil
		}
	}
	var cmd tea.Cmd
	c.area, cmd = c.area.Update(k)
	return tea.Batch(cmd, c.offer())
}

// Paste inserts text as it is: line breaks in it send nothing.
func (c *Composer) Paste(text string) tea.Cmd {
	text = strings.ReplaceAll(strings.ReplaceAll(text, "\r\n", "\n"), "\r", "\n")
	hidden := 0
	for _, r := range text {
		if r != '\n' && r != '\t' && !visible.Plain(string(r)) {
			hidden++
		}
	}
	c.area.InsertString(text)
	c.note = ""
	if hidden > 0 {
		c.note = fmt.Sprintf("the pasted text held %d invisible characters", hidden)
	}
	return c.offer()
}

func (c *Composer) submit() tea.Cmd {
	text := c.Value()
	if strings.TrimSpace(text) == "" {
		return nil
	}
	if len(c.history) == 0 || c.history[len(c.history)-1] != text {
		c.history = append(c.history, text)
	}
	c.at = len(c.history)
	c.area.Reset()
	c.offers, c.closed, c.note = nil, "", ""
	return func() tea.Msg { return SendMsg{text} }
}

// recall goes through the history from the first or last line.
func (c *Composer) recall(dir int) bool {
	li := c.area.LineInfo()
	switch {
	case dir < 0 && (c.area.Line() > 0 || li.RowOffset > 0), dir > 0 && (c.area.Line() < c.area.LineCount()-1 || li.RowOffset < li.Height-1):
		return false
	}
	to := c.at + dir
	if to < 0 || to > len(c.history) || to == c.at {
		return true
	}
	if c.at == len(c.history) {
		c.draft = c.Value()
	}
	c.at = to
	if to == len(c.history) {
		c.Set(c.draft)
	} else {
		c.Set(c.history[to])
	}
	c.offers = nil
	return true
}

// word is what is before the cursor since the last blank.
func (c *Composer) word() string {
	v := c.Value()
	if i := strings.LastIndexAny(v, " \n\t"); i >= 0 {
		return v[i+1:]
	}
	return v
}

// offer looks for completions of the last word.
func (c *Composer) offer() tea.Cmd {
	w := c.word()
	if w == c.offered && w != "" {
		return nil
	}
	c.offered, c.offers, c.chosen = w, nil, 0
	if w == "" || w == c.closed {
		return nil
	}
	if v := c.Value(); strings.HasPrefix(v, "/") && !strings.ContainsAny(v, " \n") {
		for _, k := range c.Commands {
			if strings.HasPrefix(k.Name, v) {
				insert := k.Name
				if k.Args != "" {
					insert += " "
				}
				c.offers = append(c.offers, offer{insert, k.Name + " " + k.Args, k.Help})
			}
		}
		return nil
	}
	if p, ok := strings.CutPrefix(w, "@"); ok {
		return func() tea.Msg { return FilesMsg{p} }
	}
	return nil
}

// Files are names that were asked for, which are foreign.
func (c *Composer) Files(prefix string, names []string) {
	if c.word() != "@"+prefix {
		return
	}
	c.offers, c.chosen = nil, 0
	for _, n := range names[:min(len(names), 8)] {
		c.offers = append(c.offers, offer{"@" + n, "@" + foreign.Text(n), ""})
	}
}

func (c *Composer) complete() {
	o := c.offers[c.chosen]
	v := c.Value()
	v = strings.TrimSuffix(v, c.word()) + o.insert
	if strings.HasPrefix(o.insert, "@") && !strings.HasSuffix(o.insert, "/") {
		v += " "
	}
	c.area.SetValue(v)
	c.area.MoveToEnd()
	c.offers = nil
	c.closed, c.offered = "", c.word()
	if strings.HasSuffix(v, "/") {
		c.offered = ""
	}
}

// View draws the field and what stands above it; cursor is the place of the
// cursor in it, nil when it has none.
func (c *Composer) View(w, maxLines int) (lines []string, cursor *tea.Cursor) {
	lead := " › "
	c.width = w
	c.area.MaxHeight = max(1, min(6, maxLines))
	c.area.SetWidth(max(w-3, 4))
	for i, o := range c.offers {
		if len(lines) >= maxLines-1 || i >= 8 {
			break
		}
		left := "   " + o.show
		text := pane.Split(left, o.help+" ", w)
		if pane.Width(left)+pane.Width(o.help)+2 > w {
			text = pane.Fit(left, w)
		}
		if i == c.chosen {
			text = c.theme.Sel.Render(pane.Fit(text, w))
		} else {
			text = c.theme.Dim.Render(text)
		}
		lines = append(lines, text)
	}
	if c.note != "" && len(lines) < maxLines-1 {
		lines = append(lines, c.theme.Alert.Render(pane.Fit("   "+c.note, w)))
	}
	above := len(lines)
	for i, l := range strings.Split(c.area.View(), "\n") {
		head := c.theme.Accent.Render(lead)
		if i > 0 {
			head = "   "
		}
		lines = append(lines, pane.Fit(head+foreign.Styled(l), w))
	}
	if cur := c.area.Cursor(); cur != nil {
		cur.X += 3
		cur.Y += above
		cur.Blink, cur.Color = false, nil // the terminal's own colour stays
		cursor = cur
	}
	return lines, cursor
}

// Reset empties the field.
func (c *Composer) Reset() {
	c.area.Reset()
	c.offers, c.note, c.at = nil, "", len(c.history)
}

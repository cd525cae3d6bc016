package tui

import (
	"strings"

	tea "charm.land/bubbletea/v2"

	"msb/tui/conversation"
	"msb/tui/foreign"
	"msb/tui/pane"
	"msb/tui/theme"
)

// dialog is a question of the workstation itself: yes or no, a word to type, a
// list to choose from, or a form.
type dialog struct {
	title  string
	choose bool
	rows   []string
	at     int
	want   string // to be typed
	text   string
	done   func(n int, text string) tea.Cmd

	fields []*field // of a form
	submit func(values map[string]string) (tea.Cmd, error)
	wrong  string // why it was not taken
}

func ask(question string, yes func() tea.Cmd) *dialog {
	return &dialog{title: question, done: func(int, string) tea.Cmd { return yes() }}
}

func typed(question, want string, yes func() tea.Cmd) *dialog {
	return &dialog{title: question, want: want, done: func(int, string) tea.Cmd { return yes() }}
}

// typing tells whether characters are text.
func (d *dialog) typing() bool { return d.want != "" || d.fields != nil }

// key tells whether the dialog is over.
func (d *dialog) key(k tea.KeyPressMsg) (over bool, cmd tea.Cmd) {
	name := k.String()
	switch {
	case name == "esc":
		return true, nil
	case d.fields != nil:
		return d.formKey(k)
	case d.choose:
		switch name {
		case "up", "k":
			d.at = max(0, d.at-1)
		case "down", "j":
			d.at = min(len(d.rows)-1, d.at+1)
		case "q":
			return true, nil
		case "enter":
			return true, d.done(d.at, "")
		}
	case d.want != "":
		switch name {
		case "enter":
			if d.text == d.want {
				return true, d.done(0, d.text)
			}
		case "backspace":
			if d.text != "" {
				d.text = d.text[:len(d.text)-1]
			}
		default:
			d.insert(k.Text)
		}
	default:
		switch name {
		case "y":
			return true, d.done(0, "")
		case "n", "enter", "q":
			return true, nil
		}
	}
	return false, nil
}

func (d *dialog) view(t *theme.Theme, w, h int) []string {
	inner := max(w-4, 8)
	lines := pane.Wrap(foreign.Text(d.title), inner)
	for i, l := range lines {
		lines[i] = t.Bold.Render(l)
	}
	switch {
	case d.fields != nil:
		lines = append(lines, d.viewForm(t, inner, h)...)
	case d.choose:
		room := max(h-5, 1)
		top := max(0, d.at-room+1)
		for i := top; i < len(d.rows) && i < top+room; i++ {
			row := pane.Fit(foreign.Text(d.rows[i]), inner)
			if i == d.at {
				row = t.Sel.Render(row)
			}
			lines = append(lines, row)
		}
		lines = append(lines, t.Dim.Render(pane.Fit("Enter chooses · Esc back", inner)))
	case d.want != "":
		lines = append(lines, "› "+d.text+t.Focus.Render(" "), t.Dim.Render(pane.Fit("Enter, once it is typed · Esc back", inner)))
	default:
		lines = append(lines, t.Focus.Render("[ n No ]")+"   y yes")
	}
	return box(lines, w, t)
}

// box draws a border around lines.
func box(lines []string, w int, t *theme.Theme) []string {
	side := t.Accent.Render("│")
	out := []string{t.Accent.Render("╭" + strings.Repeat("─", max(w-2, 0)) + "╮")}
	for _, l := range lines {
		out = append(out, side+" "+pane.Fit(l, w-4)+" "+side)
	}
	return append(out, t.Accent.Render("╰"+strings.Repeat("─", max(w-2, 0))+"╯"))
}

// pager shows a text over the whole body.
type pager struct {
	title, text string
	diff        bool
	at, page    int
	width       int
	lines       []string
}

func newPager(title, text string, diff bool) *pager {
	const most = 4 << 20
	if len(text) > most {
		text = text[:most] + "\n… cut"
	}
	return &pager{title: title, text: text, diff: diff}
}

// key tells whether the pager is over.
func (p *pager) key(k tea.KeyPressMsg) (over bool) {
	switch k.String() {
	case "q", "esc", "enter":
		return true
	case "up", "k":
		p.at--
	case "down", "j":
		p.at++
	case "pgup", "ctrl+b", "b":
		p.at -= p.page
	case "pgdown", "ctrl+f", "space":
		p.at += p.page
	case "home", "g":
		p.at = 0
	case "end", "G":
		p.at = len(p.lines)
	}
	return false
}

func (p *pager) view(t *theme.Theme, w, h int) []string {
	if p.width != w {
		p.width = w
		if p.diff {
			p.lines = conversation.Diff(p.text, w-2, t)
		} else {
			p.lines = pane.Wrap(foreign.Lines(p.text), w-2)
		}
	}
	p.page = max(h-2, 1)
	p.at = max(0, min(p.at, len(p.lines)-p.page))
	out := []string{t.Bold.Render(" " + foreign.Text(p.title))}
	for _, l := range p.lines[p.at:min(len(p.lines), p.at+p.page)] {
		out = append(out, " "+l)
	}
	out = pane.Block(out, w, h-1)
	return append(out, t.Dim.Render(pane.Fit(" ↑ ↓ PgUp PgDn · q back", w)))
}

package tui

import (
	"strings"
	"unicode"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"msb/tui/foreign"
	"msb/tui/pane"
	"msb/tui/theme"
)

// maxField bounds what is typed into a field, in bytes.
const maxField = 4096

// field is one line of a form.
type field struct {
	name, hint string
	value      string
	masked     bool     // a secret: only its length is shown
	choices    []string // the value is one of them; Space goes through them
}

// form returns a dialog with fields to fill in. It stays until done returns no
// error.
func form(title string, fields []*field, done func(values map[string]string) (tea.Cmd, error)) *dialog {
	return &dialog{title: title, fields: fields, submit: done}
}

// formKey is a key in a form.
func (d *dialog) formKey(k tea.KeyPressMsg) (over bool, cmd tea.Cmd) {
	f := d.fields[d.at]
	d.wrong = ""
	switch name := k.String(); name {
	case "tab", "down":
		d.at = (d.at + 1) % len(d.fields)
	case "shift+tab", "up":
		d.at = (d.at + len(d.fields) - 1) % len(d.fields)
	case "enter":
		if d.at < len(d.fields)-1 {
			d.at++
			return false, nil
		}
		return d.send()
	case "ctrl+s":
		return d.send()
	case "ctrl+u":
		if f.choices == nil {
			f.value = ""
		}
	case "backspace":
		if r := []rune(f.value); len(r) > 0 && f.choices == nil {
			f.value = string(r[:len(r)-1])
		}
	default:
		switch {
		case f.choices != nil && (name == "space" || name == "left" || name == "right"):
			at := 0
			for i, c := range f.choices {
				if c == f.value {
					at = i
				}
			}
			step := 1
			if name == "left" {
				step = len(f.choices) - 1
			}
			f.value = f.choices[(at+step)%len(f.choices)]
		case f.choices == nil:
			d.insert(k.Text)
		}
	}
	return false, nil
}

// insert types or pastes text into the field under the cursor.
func (d *dialog) insert(text string) {
	switch {
	case d.want != "":
		for _, r := range text {
			if len(d.text) < 128 && r > ' ' && r < 0x7f {
				d.text += string(r)
			}
		}
	case d.fields != nil && d.fields[d.at].choices == nil:
		f := d.fields[d.at]
		for _, r := range text {
			if !unicode.IsControl(r) && len(f.value) < maxField {
				f.value += string(r)
			}
		}
	}
}

func (d *dialog) send() (over bool, cmd tea.Cmd) {
	values := make(map[string]string, len(d.fields))
	for _, f := range d.fields {
		values[f.name] = f.value
		if !f.masked {
			values[f.name] = strings.TrimSpace(f.value)
		}
	}
	cmd, err := d.submit(values)
	if err != nil {
		d.wrong = foreign.Text(err.Error())
		return false, nil
	}
	return true, cmd
}

// viewForm draws the fields.
func (d *dialog) viewForm(t *theme.Theme, inner, room int) []string {
	col := 0
	for _, f := range d.fields {
		col = max(col, pane.Width(f.name))
	}
	col = min(col, inner/3)
	var lines []string
	cursor := 0
	for i, f := range d.fields {
		text := foreign.Text(f.value)
		if f.masked {
			text = strings.Repeat("•", min(len([]rune(f.value)), 40))
		}
		space := max(inner-col-3, 4)
		if n := pane.Width(text); n > space-1 {
			text = ansi.Cut(text, n-space+1, n)
		}
		line := pane.Fit(f.name, col) + " "
		switch {
		case i == d.at && f.choices != nil:
			line = t.Bold.Render(line) + "‹ " + text + " ›"
		case i == d.at:
			line = t.Bold.Render(line) + "› " + text + t.Focus.Render(" ")
			cursor = len(lines)
		case text == "":
			line = t.Dim.Render(line)
		default:
			line = t.Dim.Render(line) + "  " + text
		}
		if i == d.at {
			cursor = len(lines)
		}
		lines = append(lines, pane.Fit(line, inner))
		if i == d.at && f.hint != "" {
			for _, l := range pane.Wrap(f.hint, max(inner-col-3, 10)) {
				lines = append(lines, strings.Repeat(" ", col+3)+t.Dim.Render(l))
			}
		}
	}
	if most := max(room-5, 2); len(lines) > most {
		top := max(0, min(cursor-most/2, len(lines)-most))
		lines = lines[top : top+most]
	}
	if d.wrong != "" {
		for _, l := range pane.Wrap(d.wrong, inner) {
			lines = append(lines, t.Fail.Render(l))
		}
	}
	last := "Enter next field"
	if d.at == len(d.fields)-1 {
		last = "Enter does it"
	}
	return append(lines, t.Dim.Render(pane.Fit(last+" · ^S does it · Tab · Esc back", inner)))
}

package approve

import (
	"fmt"
	"slices"
	"strings"

	"github.com/charmbracelet/x/ansi"

	"msb/tui/foreign"
	"msb/tui/pane"
	"msb/turn/approval"
)

// The smallest panel that can be answered.
const (
	MinWidth  = 24
	MinHeight = 8
)

// line is a drawn line; end marks the last one of what would run.
type line struct {
	text string
	end  bool
}

// View draws the panel w cells wide and at most h lines high.
func (p *Panel) View(w, h int) []string {
	if !p.Open() {
		return nil
	}
	if w < MinWidth || h < MinHeight {
		p.drawn, p.seenEnd = false, false
		return pane.Block([]string{p.theme.Alert.Render("APPROVAL WAITS: enlarge the window")}, w, min(h, 1))
	}
	inner := w - 4
	t := p.theme
	counts, allow := p.Ready()

	var top, bottom []string
	for _, l := range pane.Wrap(p.subject.Headline, inner) {
		top = append(top, t.Bold.Render(l))
	}
	if s := p.queue[0].Session; p.Here != "" && s != "" && s != p.Here {
		for _, l := range pane.Wrap("asked in another session: "+foreign.Text(s[:min(8, len(s))]), inner) {
			top = append(top, t.Alert.Render(l))
		}
	}
	if warn := p.warnings(); warn != "" && !p.full {
		for _, l := range pane.Wrap(warn, inner) {
			top = append(top, t.Alert.Render(l))
		}
	}
	bottom = p.buttons(inner, h, counts, allow)
	if p.failed != "" {
		bottom = append(bottom, t.Fail.Render(pane.Fit("not answered: "+foreign.Text(p.failed), inner)))
	}
	body := p.body(inner)
	room := h - 2 - len(bottom) // without the border
	// The text to decide on has at least three lines, and then what explains it.
	least := min(len(body), 3)
	if len(top) > room-least {
		top = top[:max(room-least, 1)]
		all := p.Label("everything") + " shows everything"
		more := "… " + all
		if n := len(p.subject.Warnings); n > 0 {
			more = "! a warning, " + all
			if n > 1 {
				more = fmt.Sprintf("! %d warnings, %s", n, all)
			}
		}
		top[len(top)-1] = t.Alert.Render(more)
	}
	var because []string
	if !p.full {
		because = p.because(inner)
		if spare := room - len(top) - least - 1; len(because) > spare {
			because = because[:max(spare, 0)]
		}
	}
	room -= len(top) + len(because)
	position := ""
	if len(body) > room {
		room--
		position = "more"
	}
	room = max(room, 1)
	p.page, p.total = min(room, len(body)), len(body)
	p.scrollBy(0)
	shown := body[p.scroll : p.scroll+p.page]

	out := slices.Clone(top)
	for _, l := range shown {
		out = append(out, l.text)
	}
	ended := false
	for _, l := range body[:p.scroll+p.page] {
		ended = ended || l.end
	}
	for _, l := range shown {
		p.seenEnd = p.seenEnd || l.end
	}
	if position != "" {
		at := fmt.Sprintf("lines %d–%d of %d", p.scroll+1, p.scroll+p.page, p.total)
		switch {
		case !p.seenEnd:
			at += " · the end has not been on the screen: ↓ PgDn End"
			out = append(out, t.Alert.Render(pane.Fit(at, inner)))
		case !ended:
			out = append(out, t.Alert.Render(pane.Fit(at+" · ↓ more", inner)))
		default:
			out = append(out, t.Dim.Render(pane.Fit(at+" · ↑ ↓", inner)))
		}
	}
	out = append(out, because...)
	out = append(out, bottom...)
	p.drawn = true
	return p.frame(out, w)
}

func (p *Panel) frame(lines []string, w int) []string {
	t := p.theme
	r := p.queue[0]
	title := " APPROVAL "
	if n := len(p.queue); n > 1 {
		title = fmt.Sprintf(" APPROVAL 1 of %d ", n)
	}
	asked := ""
	if !r.Asked.IsZero() {
		asked = " asked " + Duration(p.Now().Sub(r.Asked)) + " ago "
	}
	if !r.Deadline.IsZero() {
		asked = " denied in " + Duration(r.Deadline.Sub(p.Now())) + " "
	}
	fill := w - 2 - pane.Width(title) - pane.Width(asked) - 1
	if fill < 1 {
		asked, fill = "", max(w-3-pane.Width(title), 0)
	}
	out := []string{pane.Fit(t.Alert.Render("┏"+title+strings.Repeat("━", fill)+asked+"━┓"), w)}
	side := t.Alert.Render("┃")
	for _, l := range lines {
		out = append(out, side+" "+pane.Fit(l, w-4)+" "+side)
	}
	return append(out, t.Alert.Render("┗"+strings.Repeat("━", max(w-2, 0))+"┛"))
}

func (p *Panel) warnings() string {
	if len(p.subject.Warnings) == 0 {
		return ""
	}
	note := ""
	if p.subject.Body.Quoted {
		note = ` (shown as escapes; \\ is one backslash)`
	}
	return "! holds " + strings.Join(p.subject.Warnings, ", ") + note
}

// body is the scrolling part.
func (p *Panel) body(w int) []line {
	var out []line
	add := func(name string, v foreign.Inspected) {
		if name != "" {
			out = append(out, line{text: p.theme.Dim.Render(name + ":")})
		}
		out = append(out, p.inspected(v, w)...)
	}
	if p.full {
		for _, w := range pane.Wrap(p.warnings(), w) {
			if w != "" {
				out = append(out, line{text: p.theme.Alert.Render(w)})
			}
		}
	}
	for _, f := range p.subject.Before {
		add(f.Name, f.Value)
	}
	name := ""
	if len(out) > 0 || p.full {
		name = "command"
		if p.queue[0].Kind == approval.KindMCP {
			name = "arguments"
		}
	}
	add(name, p.subject.Body)
	if len(out) > 0 {
		out[len(out)-1].end = true
	}
	if p.full {
		r := p.queue[0]
		rest := []Field{{"why (the model's words)", foreign.Inspect(r.Reason)}, {"a remembered rule would match", foreign.Inspect(r.Matches)},
			{"session", foreign.Inspect(r.Session)}, {"turn", foreign.Inspect(r.Turn)}, {"tool", foreign.Inspect(r.Tool)},
			{"call", foreign.Inspect(r.ToolID)}, {"request", foreign.Inspect(r.ID)}}
		for _, f := range rest {
			if f.Value.Bytes > 0 {
				add(f.Name, f.Value)
			}
		}
	}
	return out
}

// inspected draws text with its marks; lines that go on are told from new ones.
func (p *Panel) inspected(v foreign.Inspected, w int) []line {
	var out []line
	var b strings.Builder
	room := max(w-2, 4)
	flush := func() {
		for i, l := range pane.Chop(b.String(), room) {
			lead := p.theme.Accent.Render("▏") + " "
			if i > 0 {
				lead = p.theme.Dim.Render("↳") + " "
			}
			out = append(out, line{text: lead + l})
		}
		b.Reset()
	}
	for _, part := range v.Parts {
		switch {
		case part.Break:
			flush()
		case part.Marked:
			b.WriteString(p.theme.Escape.Render(part.Text))
		default:
			b.WriteString(part.Text)
		}
	}
	flush()
	return out
}

// because says why, and what would be remembered.
func (p *Panel) because(w int) []string {
	var out []string
	if p.subject.Reason != "" {
		why := `because (model): "` + p.subject.Reason + `"`
		lines := pane.Wrap(why, w)
		if len(lines) > 3 {
			lines = append(lines[:2:2], ansi.Truncate(lines[2], w-1, "")+"…")
		}
		for _, l := range lines {
			out = append(out, p.theme.Dim.Render(l))
		}
	}
	if p.subject.Matches != "" {
		lines := pane.Wrap(p.Label("session")+" remembers: "+p.subject.Matches, w)
		if len(lines) > 2 {
			lines = append(lines[:1:1], ansi.Truncate(lines[1], w-1, "")+"…")
		}
		for _, l := range lines {
			out = append(out, p.theme.Dim.Render(l))
		}
	}
	return out
}

func (p *Panel) buttons(w, h int, counts, allow bool) []string {
	t := p.theme
	if p.reasoning {
		text := foreign.Text(string(p.reason))
		room := max(w-2, 4)
		if n := pane.Width(text); n > room-1 {
			text = ansi.Cut(text, n-room+1, n)
		}
		return []string{
			t.Bold.Render(pane.Fit("deny, and tell the model why:", w)),
			"› " + text + t.Focus.Render(" "),
			t.Dim.Render(pane.Fit("Enter denies · Esc back", w)),
		}
	}
	able := func(on bool, s string) string {
		if on {
			return s
		}
		return t.Dim.Render(s)
	}
	r, y, s, e := p.Label("reason"), p.Label("once"), p.Label("session"), p.Label("everything")
	reason, once, remember, all := r+" deny with reason", y+" allow once", s+" "+p.subject.Remember, e+" everything"
	switch {
	case h < 9:
		reason, once, remember, all = r, y, s, e
	case w < 50:
		reason, once, remember, all = r+" reason", y+" once", s+" session", e+" all"
	case w < 70:
		remember = s + " allow for the session"
	}
	deny := "[ " + p.Label("deny") + " Deny ]"
	if counts {
		deny = t.Focus.Render(deny)
	} else {
		deny = t.Sel.Render(deny)
	}
	choices := []string{deny, able(counts, reason), able(allow, once), able(allow, remember), all}
	var lines []string
	row := ""
	for _, c := range choices {
		switch {
		case row == "":
			row = c
		case pane.Width(row)+3+pane.Width(c) <= w:
			row += "   " + c
		default:
			lines = append(lines, row)
			row = c
		}
	}
	lines = append(lines, row)
	state := ""
	switch {
	case p.sent != "":
		state = "answering …"
	case !counts:
		state = "keys count after half a second without one"
	case !allow:
		state = "allow works when the end was on the screen"
	}
	return append(lines, t.Alert.Render(pane.Fit(state, w)))
}

package conversation

import (
	"fmt"
	"strings"
	"time"

	"msb/protocol/turnrpc"
	"msb/tui/approve"
	"msb/tui/foreign"
	"msb/tui/pane"
)

// Spinner are the pictures of something that runs.
var Spinner = []string{"⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"}

// Lines of a folded entry.
const (
	foldRunning = 4
	foldDone    = 3
	foldPatch   = 16
	maxOpen     = 4000 // of an open one
)

// gutter is the width of the column that says who speaks. Foreign text never
// gets into it.
func (c *Conversation) gutter() int {
	if c.width >= 60 {
		return 8
	}
	return 3
}

// View draws the end, or where the user reads, into w cells and h lines. frame
// counts the pictures of what moves.
func (c *Conversation) View(w, h, frame int, now time.Time) []string {
	if w != c.width {
		c.relay(w)
	}
	c.height = h
	var all []string
	if c.dropped {
		all = append(all, c.theme.Dim.Render("↑ there is more in the transcript: scroll up to read it"))
	}
	for i, e := range c.entries {
		lines := c.draw(e, frame, now)
		if i == c.selected {
			marked := make([]string, len(lines))
			for j, l := range lines {
				marked[j] = c.theme.Accent.Render("▌") + strings.TrimPrefix(l, " ")
			}
			lines = marked
		}
		all = append(all, lines...)
	}
	c.total = len(all)
	bottom := max(len(all)-h, 0)
	if c.follow || c.top > bottom {
		c.top = bottom
	}
	return pane.Block(all[c.top:], w, h)
}

// Position says where the user reads; "" at the end.
func (c *Conversation) Position() string {
	if c.follow || c.total <= c.height {
		return ""
	}
	return fmt.Sprintf("%d%% · End follows", 100*(c.top+c.height)/max(c.total, 1))
}

// relay lays out for another width and keeps the entry at the top there.
func (c *Conversation) relay(w int) {
	at, line := 0, 0
	for i, e := range c.entries {
		n := len(e.cache.lines)
		if line+n > c.top {
			at = i
			break
		}
		line += n
	}
	c.width, c.md = w, nil
	if c.follow {
		return
	}
	line = 0
	for _, e := range c.entries[:at] {
		line += len(c.draw(e, 0, time.Time{}))
	}
	c.top = line
}

// draw are the lines of an entry. Only the first line of a call that runs is
// made anew each time.
func (c *Conversation) draw(e *entry, frame int, now time.Time) []string {
	k := &e.cache
	if k.lines == nil || k.width != c.width || k.drawn != k.rev || k.opens != e.open {
		k.width, k.drawn, k.opens = c.width, k.rev, e.open
		switch e.kind {
		case user:
			k.lines = c.drawUser(e)
		case agent:
			k.lines = c.drawAgent(e)
		case note:
			k.lines = c.drawNote(e)
		default:
			k.lines = append([]string{""}, c.drawTool(e)...)
			k.lines[0] = c.headline(e, frame, now)
		}
	} else if e.kind == tool && (e.state == running || e.state == waiting) {
		k.lines[0] = c.headline(e, frame, now)
	}
	return k.lines
}

func (c *Conversation) labelled(label string, lines []string) []string {
	g := c.gutter()
	out := make([]string, 0, len(lines))
	for i, l := range lines {
		if i == 0 {
			out = append(out, pane.Fit(" "+label, g)+l)
		} else {
			out = append(out, strings.Repeat(" ", g)+l)
		}
	}
	return out
}

func (c *Conversation) label(wide, narrow string) string {
	if c.width >= 60 {
		return wide
	}
	return narrow
}

func (c *Conversation) drawUser(e *entry) []string {
	lines := pane.Wrap(foreign.Lines(e.text), c.width-c.gutter())
	if len(lines) > 40 && !e.open {
		n := len(lines) - 38
		lines = append(lines[:38:38], c.theme.Dim.Render(fmt.Sprintf("… %d lines more", n)))
	}
	for i, l := range lines {
		lines[i] = c.theme.Bold.Render(l)
	}
	return append([]string{""}, c.labelled(c.theme.User.Render(c.label("you", "›")), lines)...)
}

func (c *Conversation) drawAgent(e *entry) []string {
	w := c.width - c.gutter()
	if c.md == nil || c.md.width != w {
		c.md = newMarkdown(c.theme, w)
	}
	lines := c.md.lines(e.text)
	if len(lines) == 0 {
		lines = []string{""}
	}
	label := c.theme.Agent.Render(c.label("agent", "•"))
	if e.more {
		label = ""
	}
	return c.labelled(label, lines)
}

func (c *Conversation) drawNote(e *entry) []string {
	style := c.theme.Dim
	if e.alert {
		style = c.theme.Fail
	}
	g := c.gutter()
	lines := pane.Wrap(foreign.Lines(e.text), c.width-g-2)
	if len(lines) > 6 && !e.open {
		lines = append(lines[:5:5], "…")
	}
	out := make([]string, len(lines))
	for i, l := range lines {
		lead := "─ "
		if i > 0 {
			lead = "  "
		}
		out[i] = strings.Repeat(" ", g) + style.Render(lead+l)
	}
	return out
}

// headline is the first line of a call.
func (c *Conversation) headline(e *entry, frame int, now time.Time) string {
	t := c.theme
	icon, style := "✓", t.OK
	switch e.state {
	case running:
		icon, style = Spinner[frame%len(Spinner)], t.Run
	case waiting:
		icon, style = "?", t.Wait
	case failed:
		icon, style = "✗", t.Fail
	case denied:
		icon, style = "⊘", t.Fail
	case canceled:
		icon, style = "·", t.Dim
	}
	name, short := e.title()
	name = foreign.Text(name)
	var right []string
	if e.state == waiting {
		right = append(right, t.Wait.Render("waits for you"))
	}
	if n := int64(len(e.out)) + e.dropped; n > 0 {
		right = append(right, bytes(n))
	} else if e.result != "" && e.state == done && len(e.result) >= turnrpc.MaxEventText-4 {
		right = append(right, "> "+bytes(turnrpc.MaxEventText))
	} else if e.result != "" && e.state == done {
		right = append(right, bytes(int64(len(e.result))))
	}
	end := e.ended
	if end.IsZero() {
		end = now
	}
	if d := end.Sub(e.began); !e.began.IsZero() && !now.IsZero() || !e.ended.IsZero() {
		right = append(right, elapsed(d))
	}
	fold := "▸"
	if e.open {
		fold = "▾"
	}
	tail := t.Dim.Render("  " + strings.Join(right, "  ") + " " + fold)
	if e.state == waiting {
		tail = "  " + strings.Join(right, "  ") + " " + fold
	}
	g := c.gutter()
	room := c.width - g - pane.Width(tail)
	left := style.Render(icon) + " " + t.Bold.Render(pane.Fit(name, max(6, min(pane.Width(name), 20)))) + "  " + foreign.Text(clip(short, 400))
	return strings.Repeat(" ", g) + pane.Fit(left, max(room, 8)) + tail
}

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xc0 == 0x80 {
		n--
	}
	return s[:n] + "…"
}

// drawTool is what stands below the first line of a call.
func (c *Conversation) drawTool(e *entry) []string {
	lead := strings.Repeat(" ", c.gutter()+2) + c.theme.Dim.Render("│") + " "
	w := max(c.width-pane.Width(lead), 4)
	var body []string
	add := func(lines ...string) { body = append(body, lines...) }
	dim := func(s string) { add(c.theme.Dim.Render(s)) }

	if e.how != "" && (e.state == denied || e.open) {
		style := c.theme.Dim
		if e.state == denied {
			style = c.theme.Fail
		}
		for _, l := range pane.Wrap(foreign.Lines(e.how), w) {
			add(style.Render(l))
		}
	}
	if e.open {
		c.openArgs(e, w, add, dim)
	} else if e.name == turnrpc.MethodApplyPatch && e.state != failed {
		d := c.diff(e.argument("patch"), w)
		if n := len(d); n > foldPatch {
			d = append(d[:foldPatch-1:foldPatch-1], c.theme.Dim.Render(fmt.Sprintf("… %d lines more, ^O opens", n-foldPatch+1)))
		}
		add(d...)
	}
	if len(e.out) > 0 {
		add(c.output(e, w)...)
	}
	if e.err != "" && e.state != denied {
		lines := pane.Wrap(foreign.Lines(e.err), w)
		if len(lines) > foldDone && !e.open {
			lines = append(lines[:foldDone:foldDone], "…")
		}
		for _, l := range lines {
			add(c.theme.Fail.Render(l))
		}
	}
	if e.open && e.result != "" && (len(e.out) == 0 || e.name != turnrpc.MethodRunCommand) {
		dim("result")
		add(pane.Chop(foreign.Lines(e.result), w)...)
	} else if !e.open && e.result != "" && len(e.out) == 0 && e.name == turnrpc.MethodRunCommand {
		lines := pane.Chop(foreign.Lines(e.result), w)
		if len(lines) > foldDone+1 {
			lines = append(lines[:foldDone:foldDone], c.theme.Dim.Render(fmt.Sprintf("… %d lines more, ^O opens", len(lines)-foldDone)))
		}
		add(lines...)
	}
	if len(body) > maxOpen {
		n := len(body) - maxOpen
		body = append([]string{c.theme.Dim.Render(fmt.Sprintf("… %d lines before", n))}, body[n:]...)
	}
	for i, l := range body {
		body[i] = lead + l
	}
	return body
}

// openArgs shows all arguments of an open entry.
func (c *Conversation) openArgs(e *entry, w int, add func(...string), dim func(string)) {
	switch e.name {
	case turnrpc.MethodRunCommand:
		dim("command")
		add(pane.Chop(foreign.Lines(e.argument("command")), w)...)
		if d := e.argument("workdir"); d != "" {
			dim("in " + foreign.Text(d))
		}
		if len(e.out) > 0 {
			dim("output")
		}
	case turnrpc.MethodApplyPatch:
		add(c.diff(e.argument("patch"), w)...)
	default:
		if e.args != "" {
			dim("arguments")
			add(pane.Chop(foreign.Lines(approve.Pretty([]byte(e.args))), w)...)
		}
	}
}

// output is what a command printed: all that is kept of an open entry, else
// the last lines.
func (c *Conversation) output(e *entry, w int) []string {
	text := string(e.out)
	if e.open {
		var lines []string
		if e.dropped > 0 {
			lines = append(lines, c.theme.Dim.Render(fmt.Sprintf("… %s before are in the transcript", bytes(e.dropped))))
		}
		return append(lines, pane.Chop(foreign.Lines(strings.TrimSuffix(text, "\n")), w)...)
	}
	keep := foldDone
	if e.state == running {
		keep = foldRunning
	}
	tail := text
	if len(tail) > 8<<10 {
		tail = tail[len(tail)-8<<10:]
		if _, rest, ok := strings.Cut(tail, "\n"); ok {
			tail = rest
		}
	}
	lines := strings.Split(strings.TrimSuffix(tail, "\n"), "\n")
	hidden := e.lines - keep
	if strings.HasSuffix(text, "\n") {
		// All lines are counted.
	} else {
		hidden++
	}
	if len(lines) > keep {
		lines = lines[len(lines)-keep:]
	}
	var out []string
	for _, l := range lines {
		out = append(out, pane.Fit(foreign.Line(l), w))
	}
	if hidden > 0 {
		out = append([]string{c.theme.Dim.Render(fmt.Sprintf("… %d lines before, ^O opens", hidden))}, out...)
	}
	return out
}

// diff colours a patch.
func (c *Conversation) diff(patch string, w int) []string { return Diff(patch, w, c.theme) }

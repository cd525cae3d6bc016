package tui

import (
	"fmt"
	"strings"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"msb/tui/conversation"
	"msb/tui/foreign"
	"msb/tui/keymap"
	"msb/tui/pane"
	"msb/vmm"
	"msb/vmm/store"
)

// View draws the screen.
func (a *App) View() tea.View {
	var v tea.View
	v.AltScreen, v.ReportFocus, v.MouseMode = true, true, tea.MouseModeCellMotion
	v.WindowTitle = "msb"
	if a.box.Name != "" && store.ValidateName(a.box.Name) == nil {
		v.WindowTitle = "msb " + a.box.Name
	}
	if a.w == 0 || a.h == 0 || a.left {
		return v
	}
	lines, cursor := a.screen(a.w, a.h)
	v.SetContent(strings.Join(pane.Block(lines, a.w, a.h), "\n"))
	v.Cursor = cursor
	return v
}

// screen is the whole screen as lines.
func (a *App) screen(w, h int) ([]string, *tea.Cursor) {
	a.panel.Here = a.session
	if a.tab == tabShell && a.zoom && a.shell() != nil && !a.help {
		lines, cursor := a.viewShell(w, h)
		if a.panel.Open() || a.prefix {
			lines[0] = a.banner(w)
		}
		return lines, cursor
	}
	out := []string{a.header(w)}
	if h >= 16 {
		out = append(out, a.theme.Dim.Render(strings.Repeat("─", w)))
	}
	top := len(out)
	room := h - top - 1
	var cursor *tea.Cursor
	var body []string
	switch {
	case a.help:
		body = a.viewHelp(w, room)
	case a.tab == tabShell:
		body = []string{a.shellLine(w)}
		if top == 2 { // the line takes the rule's place, so that the program keeps its rows
			out, top, room = out[:1], 1, room+1
		}
		if a.panel.Open() {
			body[0] = a.banner(w)
		}
		lines, c := a.viewShell(w, room-1)
		body = append(body, lines...)
		if c != nil {
			c.Y += top + 1
			cursor = c
		}
	case a.pager != nil && !a.asks():
		body = a.pager.view(a.theme, w, room)
	case a.tab == tabFiles && a.box.State == store.Running:
		body = a.files.View(w, room)
	case a.tab == tabFiles:
		body = []string{"", " " + a.whyDown()}
	case a.tab == tabEvents:
		body = a.viewEvents(w, room)
	case a.tab == tabBoxes:
		body = a.viewBoxes(w, room)
	case a.tab == tabSettings:
		body = a.viewSettings(w, room)
	default:
		body, cursor = a.viewTurns(w, room)
		if cursor != nil {
			cursor.Y += top
		}
	}
	body = pane.Block(body, w, room)
	if a.dialog != nil {
		dw := min(w-2, 76)
		d := a.dialog.view(a.theme, dw, room)
		body = pane.Over(body, d[:min(len(d), room)], (w-dw)/2, max(0, (room-len(d))/3))
		cursor = nil
	}
	switch {
	case a.asks():
		p := a.panel.View(w, room)
		body = append(body[:room-len(p):room-len(p)], p...)
		cursor = nil
	case a.panel.Open() && a.tab != tabShell:
		body = append(body[:room-1:room-1], a.banner(w))
	}
	out = append(out, body...)
	return append(out, a.footer(w)), cursor
}

// viewTurns draws the conversation and the composer.
func (a *App) viewTurns(w, h int) ([]string, *tea.Cursor) {
	if a.panel.Open() {
		p := len(a.panel.View(w, h))
		lines := a.conv.View(w, max(h-p, 0), a.frame, a.now)
		return pane.Block(lines, w, h), nil
	}
	var below []string
	for i, q := range a.queued {
		if i == 2 {
			below = append(below, a.theme.Dim.Render(fmt.Sprintf("   … and %d more", len(a.queued)-2)))
			break
		}
		below = append(below, a.theme.Dim.Render(pane.Fit("   queued: "+foreign.Text(q), w)))
	}
	var cursor *tea.Cursor
	at := len(below)
	switch {
	case a.search != nil:
		text := " / " + foreign.Text(*a.search)
		below = append(below, pane.Fit(text, w))
		cursor = tea.NewCursor(min(pane.Width(text), w-1), at)
	case a.browse:
		below = append(below, a.theme.Dim.Render(pane.Fit(" reading", w)))
	default:
		lines, c := a.comp.View(w, max(h/2, 1))
		if c != nil {
			c.Y += at
			cursor = c
		}
		below = append(below, lines...)
	}
	if len(below) > h-1 {
		below = below[len(below)-max(h-1, 1):]
		cursor = nil
	}
	room := h - len(below) - 1
	var lines []string
	if a.conv.Empty() && a.conv.Seq() == 0 {
		lines = pane.Block(a.welcome(w), w, room)
	} else {
		lines = a.conv.View(w, room, a.frame, a.now)
	}
	lines = append(lines, a.rule(w))
	if cursor != nil {
		cursor.Y += len(lines)
	}
	return append(lines, below...), cursor
}

// rule divides what was said from what is being written.
func (a *App) rule(w int) string {
	about := ""
	switch {
	case a.starting:
		about = conversation.Spinner[a.frame%len(conversation.Spinner)] + " starting "
	case !a.up && a.box.Name != "":
		about = a.whyDown() + " "
	case a.conv.Position() != "":
		about = "↓ " + a.conv.Position() + " "
	case a.conv.Model != "":
		about = foreign.Text(a.conv.Model) + " "
	}
	about = pane.Fit(about, min(pane.Width(about), max(w-6, 0)))
	return a.theme.Dim.Render("── " + about + strings.Repeat("─", max(w-3-pane.Width(about), 0)))
}

// welcome is what stands where nothing was said yet.
func (a *App) welcome(w int) []string {
	t := a.theme
	if a.box.Name == "" || a.box.State != store.Running {
		return []string{"", " " + a.whyDown()}
	}
	name := foreign.Text(a.box.Name)
	lines := []string{""}
	for i, l := range pane.Wrap(name+" is a machine of its own. Ask for something, and an agent in it will do it.", max(w-2, 10)) {
		if rest, ok := strings.CutPrefix(l, name); i == 0 && ok {
			l = t.Bold.Render(name) + t.Dim.Render(rest)
		} else {
			l = t.Dim.Render(l)
		}
		lines = append(lines, " "+l)
	}
	for _, l := range pane.Wrap("Every command it wants to run is asked about here first.", max(w-2, 10)) {
		lines = append(lines, t.Dim.Render(" "+l))
	}
	for _, m := range a.box.Mounts {
		lines = append(lines, "", " "+foreign.Text(m.Dir)+t.Dim.Render("  shows  "+foreign.Text(m.GuestPath)+"  to your editor"))
		break
	}
	return lines
}

// stateOf names a sandbox's state and its colour.
func (a *App) stateOf(sb vmm.Sandbox) (string, lipgloss.Style) {
	if doing := a.busy[sb.Name]; doing != "" {
		return doing, a.theme.Wait
	}
	switch {
	case sb.Paused && sb.State == store.Running:
		return "paused", a.theme.Wait
	case sb.State == store.Running:
		return "running", a.theme.OK
	case sb.State == "stopped":
		return "stopped", a.theme.Dim
	case sb.State == "":
		return "", a.theme.Dim
	}
	return foreign.Text(string(sb.State)), a.theme.Fail
}

// header says which sandbox this is, how it is, and what tabs there are.
func (a *App) header(w int) string {
	t := a.theme
	left := t.Bold.Render(" msb")
	if name := a.box.Name; name != "" {
		left += "  " + t.Accent.Render(foreign.Text(name))
		if state, style := a.stateOf(a.box); state != "" {
			left += " " + style.Render("● "+state)
		}
	}
	tabs := a.tabLine(w)
	var more []string
	if a.box.State == store.Running {
		engine := foreign.Text(a.box.Engine)
		if a.box.Accel != "" && a.box.Accel != "none" {
			engine += "/" + foreign.Text(a.box.Accel)
		}
		if a.box.Engine == "process" {
			engine = "process (no VM)"
		}
		cpu := fmt.Sprintf("%d cpu", a.box.CPUs)
		u := a.use[a.box.Name]
		if u != nil && len(u.cpu) > 0 {
			cpu += " " + spark(u.cpu)
		}
		mem := u.memoryText(a.box)
		net := "net off"
		if a.box.Net {
			net = "net on"
		}
		more = []string{engine, cpu, mem, net}
	}
	for _, m := range more {
		if pane.Width(left)+2+len([]rune(m))+pane.Width(tabs)+2 > w {
			break
		}
		left += t.Dim.Render("  " + m)
	}
	if pane.Width(left)+pane.Width(tabs)+1 > w {
		left = pane.Fit(left, max(w-pane.Width(tabs)-1, 0))
	}
	return pane.Split(left, tabs, w)
}

func (a *App) tabLabel(i int, w int) string {
	name := tabNames[i]
	if w < 80 && tab(i) != a.tab {
		return fmt.Sprintf("%d", i+1)
	}
	return fmt.Sprintf("%d %s", i+1, name)
}

func (a *App) tabLine(w int) string {
	var parts []string
	for i := range tabNames {
		label := a.tabLabel(i, w)
		switch {
		case tab(i) == a.tab:
			parts = append(parts, a.theme.TabOn.Render(label))
		case tab(i) == tabTurns && a.panel.Open():
			parts = append(parts, a.theme.Alert.Render(label+"!"))
		default:
			parts = append(parts, a.theme.TabOff.Render(label))
		}
	}
	return strings.Join(parts, " ") + " "
}

// tabAt is the tab at a column of the header.
func (a *App) tabAt(x int) (tab, bool) {
	at := a.w - ansi.StringWidth(a.tabLine(a.w))
	for i := range tabNames {
		n := len(a.tabLabel(i, a.w))
		if tab(i) == tabTurns && a.panel.Open() && a.tab != tabTurns {
			n++
		}
		if x >= at && x < at+n {
			return tab(i), true
		}
		at += n + 1
	}
	return 0, false
}

// banner says over a shell what waits elsewhere, or that a key is expected.
func (a *App) banner(w int) string {
	if a.prefix {
		return a.theme.Sel.Render(pane.Fit(" "+a.keymap.Label("shell.command")+" then: "+a.prefixKeys(), w))
	}
	key := a.keymap.Label("everywhere.tab_1")
	if a.tab == tabShell {
		key = a.keymap.Label("shell.command") + " " + a.keymap.Label("shell_command.tab_1")
	}
	return a.theme.Focus.Render(pane.Fit(fmt.Sprintf(" APPROVAL WAITS (%d) · %s shows it", a.panel.Count(), key), w))
}

// footer has the keys of the moment, and what was just said.
func (a *App) footer(w int) string {
	t := a.theme
	keys := a.footerKeys()
	right := ""
	if a.toasting() {
		style := t.OK
		if a.alert {
			style = t.Fail
		}
		text := a.toast
		if room := max(w-12, 8); a.alert && pane.Width(text) > room { // the cause of a failure is at its end
			n := pane.Width(text)
			text = pane.Fit(text, room/2) + ansi.Cut(text, n-room+room/2, n)
		}
		text = pane.Fit(text, min(pane.Width(text), max(w-12, 8)))
		right = style.Render(text) + " "
		if pane.Width(keys)+pane.Width(right) > w {
			return pane.Split(t.Dim.Render(" "+keys), " "+right, w)
		}
	} else if u := a.conv.Total; a.tab == tabTurns && (u.InputTokens > 0 || u.OutputTokens > 0) {
		right = t.Dim.Render(conversation.Tokens(u))
		if a.o.Cost != nil {
			if s := a.o.Cost(a.conv.Model, u); s != "" {
				right += t.Dim.Render(" · " + s)
			}
		}
		right += " "
		if pane.Width(keys)+pane.Width(right)+2 > w {
			right = ""
		}
	}
	return pane.Split(t.Dim.Render(" "+keys), right, w)
}

// hints are keys with what they do, as pairs of an action and its words.
func (a *App) hints(group string, pairs ...string) string {
	var parts []string
	for i := 0; i+1 < len(pairs); i += 2 {
		action := pairs[i]
		if !strings.Contains(action, ".") {
			action = group + "." + action
		}
		if l := a.keymap.Label(action); l != "" {
			parts = append(parts, strings.TrimSpace(l+" "+pairs[i+1]))
		}
	}
	return strings.Join(parts, " · ")
}

func (a *App) prefixKeys() string {
	return a.keymap.Label("shell_command.tab_1") + " … tab · " +
		a.hints(keymap.ShellCommand, "new", "new", "end", "end", "screen", "screen", "next", "next shell", "back", "scroll", "leave", "leave", "itself", "itself")
}

func (a *App) footerKeys() string {
	narrow := a.w < 60
	const next, keys = "everywhere.next_tab", "lists.keys"
	switch {
	case a.tab == tabShell && a.prefix:
		return a.prefixKeys()
	case a.tab == tabShell && a.shell() == nil:
		return a.hints(keymap.Lists, "turns.ask", "open a shell", next, "next", keys, "keys")
	case a.tab == tabShell:
		return a.keymap.Label("shell.command") + " commands (then " + strings.ReplaceAll(a.hints(keymap.ShellCommand, "tab_1", "turns", "screen", "screen", "new", "new", "keys", "keys"), " · ", ", ") + ")"
	case a.asks():
		return a.hints(keymap.Approval, "deny", "", "reason", "", "once", "", "session", "", "everything", "everything") + " · ↑ ↓ scroll"
	case a.help:
		return "↑ ↓ scroll · any other key goes back"
	case a.dialog != nil, a.pager != nil:
		return a.hints(keymap.Dialog, "back", "back")
	}
	switch a.tab {
	case tabFiles:
		return a.hints(keymap.Files, "open", "open", "up_folder", "up", "edit", "edit", "changes", "changes", "upload", "upload", "download", "save", "preview_down", "", "preview_up", "preview", "again", "read again", next, "next", keys, "keys")
	case tabEvents:
		return a.hints(keymap.Events, "view", "session or protocols", "filter", "filter", "audit", "audit log", "up", "", "down", "", "last", "", next, "next", keys, "keys")
	case tabBoxes:
		return a.hints(keymap.Boxes, "open", "open", "new", "new", "start", "start", "stop", "stop", "pause", "pause", "remove", "remove", next, "next", keys, "keys", "lists.leave", "leave")
	}
	if a.tab == tabSettings {
		return a.hints(keymap.Settings, "choose", "choose", "test", "test", "add", "add", "remove", "remove", "key", "type its key", "login", "log in", next, "next", keys, "keys")
	}
	switch {
	case a.search != nil:
		return a.hints(keymap.Turns, "ask", "find", "back", "back")
	case a.browse:
		return a.hints(keymap.Reading, "up", "", "down", "move", "fold", "open", "previous_turn", "", "next_turn", "turns", "find", "find", "copy", "copy", "back", "back")
	case a.conv.Busy() && narrow:
		return a.hints(keymap.Turns, "back", "stop", "open", "open", "everywhere.keys", "")
	case a.conv.Busy():
		return a.hints(keymap.Turns, "back", "stop turn", "open", "open", "page_up", "read", "ask", "queues", next, "next", "everywhere.keys", "keys")
	case narrow:
		return a.hints(keymap.Turns, "ask", "ask", "back", "read", next, "", keys, "keys")
	}
	return a.hints(keymap.Turns, "ask", "ask", "back", "read", "open", "open", next, "next") + " · / commands · " + a.hints(keymap.Lists, "keys", "keys")
}

func ansiPlain(s string) string { return ansi.Strip(s) }

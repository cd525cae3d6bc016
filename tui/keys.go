package tui

import (
	"time"

	tea "charm.land/bubbletea/v2"

	"msb/tui/keymap"
)

// focus names the groups of keys that count now, first things first, and tells
// whether characters are text.
func (a *App) focus() (groups []string, typing bool) {
	switch {
	case a.tab == tabShell && !a.help && a.dialog == nil:
		switch s := a.shell(); {
		case a.prefix:
			return []string{keymap.ShellCommand}, false
		case s != nil && s.Shell != nil && !s.Over():
			return []string{keymap.Shell}, true
		}
		return []string{keymap.Shell, keymap.Everywhere, keymap.Lists}, false
	case a.asks():
		return []string{keymap.Everywhere, keymap.Approval}, a.panel.Typing()
	case a.help:
		return []string{keymap.Everywhere, keymap.Page}, false
	case a.dialog != nil:
		return []string{keymap.Everywhere, keymap.Dialog}, a.dialog.typing()
	case a.pager != nil:
		return []string{keymap.Everywhere, keymap.Page}, false
	}
	switch a.tab {
	case tabFiles:
		return []string{keymap.Everywhere, keymap.Files, keymap.Lists}, false
	case tabEvents:
		return []string{keymap.Everywhere, keymap.Events, keymap.Lists}, a.log().typing
	case tabBoxes:
		return []string{keymap.Everywhere, keymap.Boxes, keymap.Lists}, false
	case tabSettings:
		return []string{keymap.Everywhere, keymap.Settings, keymap.Lists}, false
	}
	switch {
	case a.search != nil:
		return []string{keymap.Everywhere}, true
	case a.browse:
		return []string{keymap.Everywhere, keymap.Reading, keymap.Turns, keymap.Lists}, false
	}
	return []string{keymap.Everywhere, keymap.Turns}, true
}

// key hands a key to what has the focus: first what asks, then the tab.
func (a *App) key(k tea.KeyPressMsg) tea.Cmd {
	groups, typing := a.focus()
	k = a.keymap.Translate(k, typing, groups...)
	name := k.String()
	if name != "ctrl+c" {
		a.quitAt = time.Time{}
	}
	if a.now.Sub(a.toastAt) >= toastFor {
		a.toast = ""
	}
	switch {
	case a.tab == tabShell && !a.help && a.dialog == nil:
		return a.shellKey(k)
	case name == "ctrl+c":
		return a.interrupt()
	case name == "ctrl+]", name == "ctrl+q":
		return a.quit()
	case len(name) == 5 && name[:4] == "alt+" && name[4] >= '1' && int(name[4]-'0') <= len(tabNames):
		return a.goTab(tab(name[4] - '1'))
	case a.asks():
		return a.panel.Key(k)
	case a.panel.Now().Before(a.deaf):
		return nil
	case a.help:
		a.helpKey(name)
		return nil
	case a.dialog != nil:
		d := a.dialog
		over, cmd := d.key(k)
		if over && a.dialog == d {
			a.dialog = nil
		}
		return cmd
	case a.pager != nil:
		if a.pager.key(k) {
			a.pager = nil
		}
		return nil
	case name == "f1":
		a.help = true
		return nil
	}
	switch a.tab {
	case tabTurns:
		return a.turnsKey(k)
	case tabFiles:
		if a.files.Ready() {
			if !listKey(name) {
				return a.filesKey(k)
			}
		}
	case tabEvents:
		if cmd, ok := a.eventsKey(k); ok {
			return cmd
		}
	case tabBoxes:
		if !listKey(name) {
			return a.boxKey(k)
		}
	case tabSettings:
		if !listKey(name) {
			return a.settingsKey(name)
		}
	}
	return a.plainKey(k)
}

// asks tells whether the approval panel is on the screen. It is where the turns
// are, so that the other tabs can be used to find out what to answer; they say
// that something waits.
func (a *App) asks() bool { return a.panel.Open() && a.tab == tabTurns }

// helpKey scrolls the help, or leaves it.
func (a *App) helpKey(name string) {
	switch name {
	case "up", "k":
		a.helpAt--
	case "down", "j":
		a.helpAt++
	case "pgup":
		a.helpAt -= max(a.h-4, 1)
	case "pgdown", "space":
		a.helpAt += max(a.h-4, 1)
	default:
		a.help, a.helpAt = false, 0
	}
}

// listKey tells the keys that all lists have from those of one of them.
func listKey(name string) bool {
	switch name {
	case "tab", "shift+tab", "?", "q", "1", "2", "3", "4", "5", "6":
		return true
	}
	return false
}

// plainKey are the keys of tabs in which nothing is typed.
func (a *App) plainKey(k tea.KeyPressMsg) tea.Cmd {
	switch name := k.String(); name {
	case "tab":
		return a.goTab((a.tab + 1) % tab(len(tabNames)))
	case "shift+tab":
		return a.goTab((a.tab + tab(len(tabNames)) - 1) % tab(len(tabNames)))
	case "1", "2", "3", "4", "5", "6":
		return a.goTab(tab(name[0] - '1'))
	case "?":
		a.help = true
	case "q":
		return a.interrupt()
	case "ctrl+c":
		return a.interrupt()
	}
	return nil
}

func (a *App) goTab(t tab) tea.Cmd {
	if int(t) >= len(tabNames) {
		return nil
	}
	a.tab, a.prefix, a.browse, a.search, a.zoom = t, false, false, nil, false
	disturb := a.panel.Resized()
	switch t {
	case tabShell:
		a.lookAtShell()
		// A runtime of ours tells in a moment which shells live.
		if a.shell() == nil && a.box.Running() && (a.keptKnown || !a.keeps()) {
			return tea.Batch(disturb, a.openShell())
		}
	case tabFiles:
		return tea.Batch(disturb, a.filesStart())
	case tabBoxes:
		a.watchUsage()
		return tea.Batch(disturb, a.readSessions())
	case tabSettings:
		return tea.Batch(disturb, a.loadSettings())
	}
	return disturb
}

// interrupt empties the composer, or leaves when it comes twice.
func (a *App) interrupt() tea.Cmd {
	if a.tab == tabTurns && !a.comp.Empty() && !a.asks() {
		a.comp.Reset()
		return nil
	}
	if !a.quitAt.IsZero() && a.now.Sub(a.quitAt) < 3*time.Second {
		return a.quit()
	}
	a.quitAt = a.now
	a.say("once more leaves the screen; sandboxes and turns go on", nil)
	return nil
}

// turnsKey is a key in the view of turns.
func (a *App) turnsKey(k tea.KeyPressMsg) tea.Cmd {
	name := k.String()
	if a.search != nil {
		return a.searchKey(k)
	}
	older := false
	switch name {
	case "pgup":
		older = a.conv.Scroll(-a.conv.Page())
	case "pgdown":
		a.conv.Scroll(a.conv.Page())
	case "ctrl+up", "alt+up", "shift+up":
		older = a.conv.Scroll(-1)
	case "ctrl+down", "alt+down", "shift+down":
		a.conv.Scroll(1)
	case "ctrl+home":
		older = a.conv.Home()
	case "ctrl+end":
		a.conv.Follow()
	case "ctrl+o":
		a.conv.Toggle()
	case "ctrl+l":
		return tea.ClearScreen
	case "esc":
		switch {
		case a.comp.Completing():
			a.comp.Close()
		case a.conv.Busy():
			return a.stop()
		case a.browse:
			a.browse = false
			a.conv.Follow()
		case len(a.queued) > 0:
			a.queued = nil
		default:
			a.browse = true
			a.conv.Select(-1)
		}
	default:
		if a.browse {
			return a.browseKey(k)
		}
		switch {
		case name == "tab" && !a.comp.Completing(), name == "shift+tab":
			return a.plainKey(k)
		case name == "?" && a.comp.Empty():
			a.help = true
			return nil
		case name == "ctrl+d" && a.comp.Empty():
			return a.interrupt()
		case name == "end" && a.comp.Empty():
			a.conv.Follow()
			return nil
		}
		return a.comp.Key(k)
	}
	if older {
		return a.older()
	}
	return nil
}

// browseKey is a key while the user reads.
func (a *App) browseKey(k tea.KeyPressMsg) tea.Cmd {
	older := false
	switch k.String() {
	case "up", "k":
		older = a.conv.Select(-1)
	case "down", "j":
		a.conv.Select(1)
	case "[":
		older = a.conv.SelectTurn(-1)
	case "]":
		a.conv.SelectTurn(1)
	case "space", "enter", "right", "left", "o":
		a.conv.Toggle()
	case "home", "g":
		older = a.conv.Home()
	case "end", "G":
		a.conv.Follow()
	case "/":
		empty := ""
		a.search = &empty
	case "n":
		a.find(1)
	case "N":
		a.find(-1)
	case "y", "c":
		return a.copy()
	case "w":
		return a.output()
	case "i", "a":
		a.browse = false
		a.conv.Follow()
	default:
		return a.plainKey(k)
	}
	if older {
		return a.older()
	}
	return nil
}

func (a *App) find(dir int) {
	if a.query != "" && !a.conv.Find(a.query, dir) {
		a.say("not found: "+a.query, nil)
	}
}

// searchKey types what is looked for.
func (a *App) searchKey(k tea.KeyPressMsg) tea.Cmd {
	switch k.String() {
	case "esc":
		a.search = nil
	case "enter":
		a.query, a.search = *a.search, nil
		a.find(-1)
	case "backspace":
		if r := []rune(*a.search); len(r) > 0 {
			*a.search = string(r[:len(r)-1])
		}
	default:
		if len(*a.search) < 200 {
			*a.search += k.Text
		}
	}
	return nil
}

func (a *App) eventsKey(k tea.KeyPressMsg) (tea.Cmd, bool) {
	l, name := a.log(), k.String()
	if l.typing {
		switch name {
		case "enter":
			l.typing = false
		case "esc":
			l.typing, l.filter = false, ""
		case "backspace":
			if r := []rune(l.filter); len(r) > 0 {
				l.filter = string(r[:len(r)-1])
			}
		default:
			if len(l.filter) < 100 {
				l.filter += k.Text
			}
		}
		return nil, true
	}
	switch name {
	case "/":
		l.typing = true
	case "esc":
		l.filter = ""
	case "up", "k":
		l.scroll(-1)
	case "down", "j":
		l.scroll(1)
	case "pgup":
		l.scroll(-max(l.height-1, 1))
	case "pgdown", "space":
		l.scroll(max(l.height-1, 1))
	case "home", "g":
		l.scroll(-1 << 30)
	case "end", "G":
		l.at = -1
	case "v":
		a.wire = !a.wire
	case "a":
		return a.audit(), true
	default:
		return nil, false
	}
	return nil, true
}

// paste goes where keys go.
func (a *App) paste(text string) tea.Cmd {
	switch {
	case a.tab == tabShell:
		if s := a.shell(); s != nil && s.Shell != nil && !s.Over() {
			s.Paste(text)
		}
	case a.asks():
		return a.panel.Paste(text)
	case a.dialog != nil && !a.help:
		a.dialog.insert(text)
	case a.help || a.pager != nil:
	case a.search != nil:
		*a.search += text[:min(len(text), 100)]
	case a.tab == tabTurns && !a.browse:
		return a.comp.Paste(text)
	}
	return nil
}

// mouse scrolls, and works in shells; nothing needs it.
func (a *App) mouse(m tea.MouseMsg) tea.Cmd {
	if a.tab == tabShell {
		a.shellMouse(m)
		return nil
	}
	e := m.Mouse()
	switch m.(type) {
	case tea.MouseClickMsg:
		if e.Y == 0 && a.dialog == nil {
			if t, ok := a.tabAt(e.X); ok {
				return a.goTab(t)
			}
		}
		return a.panel.Disturb()
	case tea.MouseWheelMsg:
	default:
		return nil
	}
	lines := 3
	if e.Button == tea.MouseWheelUp {
		lines = -3
	}
	switch {
	case a.asks():
		return a.panel.Wheel(lines)
	case a.pager != nil:
		a.pager.at += lines
	case a.tab == tabTurns:
		if a.conv.Scroll(lines) {
			return a.older()
		}
	case a.tab == tabEvents:
		a.log().scroll(lines)
	}
	return nil
}

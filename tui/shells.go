package tui

import (
	"errors"

	tea "charm.land/bubbletea/v2"
	uv "github.com/charmbracelet/ultraviolet"

	"msb/tui/foreign"
	"msb/tui/pane"
	"msb/tui/shell"
	"msb/vmm/store"
)

// maxShells bounds the shells that are open at once.
const maxShells = 16

// mine are the shells of the sandbox on the screen.
func (a *App) mine() []*boxShell {
	var list []*boxShell
	for _, s := range a.shells {
		if s.box == a.box.Name {
			list = append(list, s)
		}
	}
	return list
}

func (a *App) shell() *boxShell {
	list := a.mine()
	if len(list) == 0 {
		return nil
	}
	a.shellAt = max(0, min(a.shellAt, len(list)-1))
	return list[a.shellAt]
}

// openShell opens one more shell.
func (a *App) openShell() tea.Cmd {
	if a.box.State != store.Running {
		a.say("", errors.New(a.whyDown()))
		return nil
	}
	if len(a.shells) >= maxShells {
		a.say("", errors.New("16 shells are open; Ctrl-] x ends one"))
		return nil
	}
	argv := a.o.Shell
	if len(argv) == 0 {
		argv = []string{"/bin/sh", "-l"}
	}
	a.nextID++
	w, h := a.shellSize()
	a.shells = append(a.shells, &boxShell{a.box.Name, shell.Open(a.nextID, shell.InSandbox(a.box.AgentSocket, argv), h, w, a.send)})
	a.shellAt = len(a.mine()) - 1
	return nil
}

func (a *App) shellSize() (w, h int) {
	if a.zoom {
		return a.w, a.h
	}
	return a.w, max(a.h-3, 1)
}

func (a *App) shellMsg(m tea.Msg) tea.Cmd {
	for _, s := range a.shells {
		switch m := m.(type) {
		case shell.StartedMsg:
			if s.ID == m.ID {
				s.Started()
			}
		case shell.OutputMsg:
			if s.ID == m.ID {
				s.Output(m.Data)
				if s.Bell() && (a.blurred || a.tab != tabShell) {
					return tea.Raw("\a")
				}
			}
		case shell.EndedMsg:
			if s.ID == m.ID {
				s.Ended(m)
			}
		}
	}
	return nil
}

// dropShell ends the shell on the screen.
func (a *App) dropShell() {
	s := a.shell()
	if s == nil {
		return
	}
	for i, o := range a.shells {
		if o == s {
			a.shells = append(a.shells[:i:i], a.shells[i+1:]...)
			break
		}
	}
	a.work.Go(s.Close)
	if a.shell() == nil {
		a.zoom = false
	}
}

// shellKey is a key in the shell tab: the program's, unless Ctrl-] came before.
func (a *App) shellKey(k tea.KeyPressMsg) tea.Cmd {
	name := k.String()
	s := a.shell()
	if a.prefix {
		a.prefix = false
		switch name {
		case "ctrl+]":
			if s != nil && !s.Over() {
				s.Key(k)
			}
		case "n", "c":
			return a.openShell()
		case "x":
			a.dropShell()
		case "f", "z":
			a.zoom = !a.zoom && s != nil
			return tea.ClearScreen
		case "tab", "]", "right":
			if n := len(a.mine()); n > 0 {
				a.shellAt = (a.shellAt + 1) % n
			}
		case "shift+tab", "[", "left":
			if n := len(a.mine()); n > 0 {
				a.shellAt = (a.shellAt + n - 1) % n
			}
		case "pgup", "up", "u":
			if s != nil {
				s.Scroll(-max(a.h/2, 1))
			}
		case "1", "2", "3", "4", "5":
			return a.goTab(tab(name[0] - '1'))
		case "q":
			return tea.Quit
		case "?":
			a.help = true
		default:
			return a.goTab(tabTurns)
		}
		return nil
	}
	switch {
	case name == "ctrl+]":
		a.prefix = true
	case s == nil:
		switch name {
		case "enter", "n":
			return a.openShell()
		default:
			return a.plainKey(k)
		}
	case s.Over():
		switch name {
		case "enter":
			a.dropShell()
			return a.openShell()
		case "x", "esc":
			a.dropShell()
		default:
			return a.plainKey(k)
		}
	case s.Back() > 0 && (name == "pgup" || name == "pgdown" || name == "up" || name == "down" || name == "esc"):
		page := max(a.h/2, 1)
		switch name {
		case "pgup":
			s.Scroll(-page)
		case "pgdown":
			s.Scroll(page)
		case "up":
			s.Scroll(-1)
		case "down":
			s.Scroll(1)
		default:
			s.Scroll(1 << 20)
		}
	case name == "shift+pgup":
		s.Scroll(-max(a.h/2, 1))
	default:
		s.Key(k)
	}
	return nil
}

// shellMouse hands the mouse to the program, or scrolls.
func (a *App) shellMouse(m tea.MouseMsg) {
	s := a.shell()
	if s == nil {
		return
	}
	e := m.Mouse()
	if wheel, ok := m.(tea.MouseWheelMsg); ok && !s.Full() {
		if wheel.Button == tea.MouseWheelUp {
			s.Scroll(-3)
		} else {
			s.Scroll(3)
		}
		return
	}
	if !a.zoom {
		e.Y -= 2
	}
	if e.Y < 0 {
		return
	}
	o := uv.Mouse{X: e.X, Y: e.Y, Button: e.Button, Mod: e.Mod}
	switch m.(type) {
	case tea.MouseClickMsg:
		s.Mouse(uv.MouseClickEvent(o))
	case tea.MouseReleaseMsg:
		s.Mouse(uv.MouseReleaseEvent(o))
	case tea.MouseWheelMsg:
		s.Mouse(uv.MouseWheelEvent(o))
	case tea.MouseMotionMsg:
		s.Mouse(uv.MouseMotionEvent(o))
	}
}

// viewShell draws the shell tab.
func (a *App) viewShell(w, h int) ([]string, *tea.Cursor) {
	s := a.shell()
	if s == nil {
		lines := []string{"", " No shell is open."}
		if a.box.State == store.Running {
			lines = append(lines, "", a.theme.Dim.Render(" Enter opens one in "+a.box.Name+"."))
		} else {
			lines = append(lines, "", a.theme.Dim.Render(" "+a.whyDown()))
		}
		return pane.Block(lines, w, h), nil
	}
	note := s.Note()
	if note == "" || a.zoom {
		return s.View(w, h)
	}
	lines, cursor := s.View(w, h)
	if s.Over() {
		note += " · Enter opens another, x closes"
		cursor = nil
	}
	lines[h-1] = a.theme.Sel.Render(pane.Fit(" "+note, w))
	return lines, cursor
}

// shellLine names the shells.
func (a *App) shellLine(w int) string {
	line := " "
	for i, s := range a.mine() {
		name := s.Title()
		if name == "" {
			name = "shell"
		}
		text := " " + foreign.Text(string('1'+rune(i))) + " " + pane.Fit(name, min(pane.Width(name), 24)) + " "
		if i == a.shellAt {
			text = a.theme.Sel.Render(text)
		} else {
			text = a.theme.Dim.Render(text)
		}
		line += text
	}
	return pane.Split(line, a.theme.Dim.Render("raw output of the sandbox "), w)
}

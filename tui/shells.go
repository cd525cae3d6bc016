package tui

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	tea "charm.land/bubbletea/v2"
	uv "github.com/charmbracelet/ultraviolet"

	"msb/tui/foreign"
	"msb/tui/link"
	"msb/tui/pane"
	"msb/tui/shell"
	"msb/vmm/shells"
	"msb/vmm/store"
)

// maxShells bounds the shells that are open on the screen at once.
const maxShells = 32

// boxShell is a shell of a sandbox. Those that the runtime keeps have an id; they
// have no terminal here until they are looked at.
type boxShell struct {
	box   string
	kept  uint32 // 0: not kept, or not known yet
	title string // of one without a terminal here; safe
	*shell.Shell
}

func (b *boxShell) name() string {
	switch {
	case b.Shell != nil && b.Title() != "":
		return b.Title()
	case b.Shell == nil && b.title != "":
		return b.title
	}
	return "shell"
}

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

// shell is the one that is chosen; nil when there is none.
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
		a.say("", fmt.Errorf("%d shells are open; %s %s ends one", maxShells, a.keymap.Label("shell.command"), a.keymap.Label("shell_command.end")))
		return nil
	}
	argv := a.o.Shell
	if len(argv) == 0 {
		argv = []string{"/bin/sh", "-l"}
	}
	s := &boxShell{box: a.box.Name}
	s.Shell = a.startShell(shell.Kept(a.box.ShellsSocket, a.box.AgentSocket, argv))
	a.shells = append(a.shells, s)
	a.shellAt = len(a.mine()) - 1
	return nil
}

func (a *App) startShell(open shell.Opener) *shell.Shell {
	a.nextID++
	w, h := a.shellSize()
	return shell.Open(a.nextID, open, h, w, a.send)
}

// keeps tells whether the sandbox on the screen keeps shells.
func (a *App) keeps() bool {
	_, err := os.Stat(a.box.ShellsSocket)
	return err == nil
}

// lookAtShell attaches to the chosen shell if that was not done yet: only a shell
// that is looked at takes the size of this screen.
func (a *App) lookAtShell() {
	if s := a.shell(); a.tab == tabShell && s != nil && s.Shell == nil && a.send != nil {
		s.Shell = a.startShell(shell.Attached(a.box.ShellsSocket, s.kept))
	}
}

// keptShells takes the list of shells that live.
func (a *App) keptShells(m link.ShellsMsg) tea.Cmd {
	if m.Box != a.box.Name {
		return nil
	}
	a.kept = m.List
	first := !a.keptKnown
	a.keptKnown = true
	a.mergeShells()
	if first && a.tab == tabShell && a.shell() == nil {
		return a.openShell()
	}
	a.lookAtShell()
	return nil
}

// mergeShells makes the shells on the screen those that live, and those whose end
// was not read yet.
func (a *App) mergeShells() {
	known := make(map[uint32]*boxShell)
	starting := false
	for _, s := range a.mine() {
		if s.kept != 0 {
			known[s.kept] = s
		}
		starting = starting || s.kept == 0 && s.Shell != nil && s.Starting()
	}
	lives := make(map[uint32]bool)
	for _, i := range a.kept {
		lives[i.ID] = true
		if s := known[i.ID]; s != nil {
			s.title = foreign.Text(i.Title)
		} else if !starting && len(a.shells) < maxShells { // else it may be the one that is starting here
			a.shells = append(a.shells, &boxShell{box: a.box.Name, kept: i.ID, title: foreign.Text(i.Title)})
		}
	}
	a.shells = slices.DeleteFunc(a.shells, func(s *boxShell) bool {
		return s.box == a.box.Name && s.Shell == nil && !lives[s.kept]
	})
}

func (a *App) shellSize() (w, h int) {
	if a.zoom {
		return a.w, a.h
	}
	return a.w, max(a.h-3, 1)
}

func (a *App) shellMsg(m tea.Msg) tea.Cmd {
	for _, s := range slices.Clone(a.shells) {
		if s.Shell == nil {
			continue
		}
		switch m := m.(type) {
		case shell.StartedMsg:
			if s.ID == m.ID {
				s.Started()
				a.startedShell(s, m.Kept)
			}
		case shell.SizedMsg:
			if s.ID == m.ID {
				s.Sized(m)
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

// startedShell learns the id of a shell that was opened here.
func (a *App) startedShell(s *boxShell, kept uint32) {
	if s.kept != 0 || kept == 0 {
		return
	}
	a.shells = slices.DeleteFunc(a.shells, func(o *boxShell) bool { return o.box == s.box && o.kept == kept && o.Shell == nil })
	s.kept = kept
	a.mergeShells()
}

// dropShell ends the chosen shell, or puts away one that has ended.
func (a *App) dropShell() tea.Cmd {
	s := a.shell()
	if s == nil {
		return nil
	}
	a.shells = slices.DeleteFunc(a.shells, func(o *boxShell) bool { return o == s })
	over := true
	if s.Shell != nil {
		over = s.Over()
		a.work.Go(s.Close)
	}
	if a.shell() == nil {
		a.zoom = false
	}
	a.lookAtShell()
	if over || s.kept == 0 {
		return nil
	}
	ctx, socket, id := a.ctx, a.box.ShellsSocket, s.kept
	return func() tea.Msg {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		err := shells.Kill(ctx, socket, id)
		if errors.Is(err, shells.ErrNotFound) {
			err = nil
		}
		return doneMsg{text: fmt.Sprintf("shell %d has ended", id), err: err}
	}
}

// shellKey is a key in the shell tab: the program's, unless Ctrl-] came before.
func (a *App) shellKey(k tea.KeyPressMsg) tea.Cmd {
	name := k.String()
	s := a.shell()
	if s != nil && s.Shell == nil {
		s = nil // it has no terminal here yet
	}
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
			return a.dropShell()
		case "f", "z":
			a.zoom = !a.zoom && s != nil
			return tea.ClearScreen
		case "tab", "]", "right":
			if n := len(a.mine()); n > 0 {
				a.shellAt = (a.shellAt + 1) % n
				a.lookAtShell()
			}
		case "shift+tab", "[", "left":
			if n := len(a.mine()); n > 0 {
				a.shellAt = (a.shellAt + n - 1) % n
				a.lookAtShell()
			}
		case "pgup", "up", "u":
			if s != nil {
				s.Scroll(-max(a.h/2, 1))
			}
		case "1", "2", "3", "4", "5", "6":
			return a.goTab(tab(name[0] - '1'))
		case "q":
			return a.quit()
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
			return tea.Batch(a.dropShell(), a.openShell())
		case "x", "esc":
			return a.dropShell()
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
	if s == nil || s.Shell == nil {
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
	if s != nil && s.Shell == nil {
		return pane.Block([]string{"", a.theme.Dim.Render(" coming back to the shell …")}, w, h), nil
	}
	if s == nil {
		lines := []string{"", " No shell is open."}
		if a.box.State == store.Running {
			lines = append(lines, "", a.theme.Dim.Render(" Enter opens one in "+foreign.Text(a.box.Name)+"."))
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
		name := s.name()
		number := fmt.Sprint(i + 1)
		if s.kept != 0 {
			number = fmt.Sprint(s.kept)
		}
		text := " " + number + " " + pane.Fit(name, min(pane.Width(name), 24)) + " "
		if i == a.shellAt {
			text = a.theme.Sel.Render(text)
		} else {
			text = a.theme.Dim.Render(text)
		}
		line += text
	}
	return pane.Split(line, a.theme.Dim.Render("raw output of the sandbox "), w)
}

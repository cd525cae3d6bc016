package tui

import (
	"fmt"
	"strings"
	"testing"

	tea "charm.land/bubbletea/v2"

	"msb/tui/approve"
	"msb/tui/link"
	"msb/turn/approval"
)

// Another window begins the first session: this one shows it. What waited is
// answered there: this one says so, and drops the keys that were meant for it.
func TestTwoWindows(t *testing.T) {
	s := open(t, 80, 24)
	s.until("Show me around")
	s.press("ctrl+u")
	up := make(chan struct{}, 1)
	other := link.Open("demo", s.rig.path, func(m tea.Msg) {
		if _, ok := m.(link.UpMsg); ok {
			select {
			case up <- struct{}{}:
			default:
			}
		}
	})
	defer other.Close()
	<-up
	session, err := other.Resume("", "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Ask(session.ID, "run make"); err != nil {
		t.Fatal(err)
	}
	s.until("APPROVAL", "you    run make")
	s.allowable()
	if err := other.Answer(s.rig.gate.Pending()[0].ID, approval.Answer{Allow: true}); err != nil {
		t.Fatal(err)
	}
	s.until("answered elsewhere", "It passed.")
	s.press("ny\r")
	s.inside(func(a *App) {}) // they may still be on their way; the time stands still until the one below
	s.press("\x1b4")
	s.until("session:")
	s.press("\x1b1")
	s.gone("session:")
	s.mu.Lock()
	s.clock = s.clock.Add(approve.Quiet)
	s.mu.Unlock()
	s.press("and then")
	s.until(" › and then")
}

// All that a call printed, once.
func TestReadBack(t *testing.T) {
	s := open(t, 80, 24)
	s.until("Show me around")
	s.press("ctrl+u", "run make", "enter")
	s.allowable()
	s.press("y")
	s.until("done ·")
	s.press("esc")
	s.until("reading")
	s.press("up", "up", "w")
	s.until("all that run_command printed", "ok package/1 ")
	var want strings.Builder
	for i := range 40 {
		fmt.Fprintf(&want, "ok package/%d 0.01s\n", i+1)
	}
	s.inside(func(a *App) {
		if a.pager == nil || a.pager.text != want.String() {
			t.Errorf("%+v", a.pager)
		}
	})
}

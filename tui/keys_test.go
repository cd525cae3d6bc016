package tui

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"msb/tui/keymap"
)

// Keys of the user's own work, are in the last line and in the list of keys, and
// what they took the place of does nothing.
func TestOwnKeys(t *testing.T) {
	keys, err := keymap.New(map[string][]string{"boxes.start": {"S", "f5"}, "everywhere.tab_5": {"f3"}, "approval.once": {"A"}})
	if err != nil {
		t.Fatal(err)
	}
	s := openWith(t, 100, 30, func(o *Options) { o.Keys = keys })
	s.until("Show me around")
	s.press("\x1b5") // Alt-5 has lost its meaning
	s.press("\x1bOR")
	s.until("● stopped", "S start")
	s.press("down", "s")
	s.press("?")
	s.until("S F5", "F3")
	s.press("x")
	s.rig.mu.Lock()
	if s.rig.state["old"] != "stopped" {
		t.Error("a key that was given away still starts")
	}
	s.rig.mu.Unlock()
	s.press("S")
	s.until("old runs")
	s.press("\x1b1", "ctrl+u", "run make", "enter")
	s.allowable()
	s.until("A allow once")
	s.press("y")
	s.until("keys count after")
	s.allowable()
	s.press("A")
	s.until("It passed.")
}

// The user's command is told what waits, in our words only, when nobody looks.
func TestNotifyCommand(t *testing.T) {
	said := filepath.Join(t.TempDir(), "said")
	s := openWith(t, 80, 24, func(o *Options) { o.Notify = []string{"/bin/sh", "-c", `printf %s "$1" >` + said, "sh"} })
	s.until("Show me around")
	s.press("\x1b[O") // the focus is elsewhere
	s.press("ctrl+u", "run echo 'evil $(id)'", "enter")
	s.until("APPROVAL")
	s.wait("the command", func() bool { b, _ := os.ReadFile(said); return len(b) > 0 })
	b, _ := os.ReadFile(said)
	if string(b) != "demo asks for your approval" {
		t.Errorf("%q", b)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if strings.Contains(s.raw.String(), "evil $(id)\x1b\\") {
		t.Error("a notification has foreign text")
	}
}

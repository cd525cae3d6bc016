package link

import (
	"path/filepath"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
)

// Nobody at the other end is said once, calls fail at once, and Close waits for
// everything.
func TestNobodyThere(t *testing.T) {
	told := make(chan tea.Msg, 100)
	c := Open("demo", filepath.Join(t.TempDir(), "turn.sock"), func(m tea.Msg) { told <- m })
	select {
	case m := <-told:
		if d, ok := m.(DownMsg); !ok || d.Box != "demo" || d.Err == nil {
			t.Errorf("%#v", m)
		}
	case <-time.After(time.Minute):
		t.Fatal("nothing is said")
	}
	c.Follow("s", 0)
	if _, err := c.Ask("s", "x"); err == nil {
		t.Error("asked nobody")
	}
	if _, _, err := c.Output("s", "c", "run_command", 0, 10, 100); err == nil {
		t.Error("read from nobody")
	}
	c.Close()
	for {
		select {
		case m := <-told:
			t.Errorf("said after the first time: %#v", m)
			continue
		default:
		}
		break
	}
}

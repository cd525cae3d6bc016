package tui

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// tmux is the program in a real multiplexer.
type tmux struct {
	t    *testing.T
	sock string
}

func (x *tmux) run(args ...string) string {
	out, err := exec.Command("tmux", append([]string{"-S", x.sock, "-f", "/dev/null"}, args...)...).CombinedOutput()
	if err != nil {
		x.t.Fatalf("tmux %v: %v: %s", args, err, out)
	}
	return string(out)
}

func (x *tmux) until(want string) string {
	x.t.Helper()
	for range 400 {
		if s := x.run("capture-pane", "-p"); strings.Contains(s, want) {
			return s
		}
		time.Sleep(50 * time.Millisecond)
	}
	x.t.Fatalf("no %q on\n%s", want, x.run("capture-pane", "-p"))
	return ""
}

func startTmux(t *testing.T, env string, w, h int) *tmux {
	if _, err := exec.LookPath("tmux"); err != nil {
		t.Skip("tmux is not installed")
	}
	dir, err := os.MkdirTemp("", "msbtui") // a short path, for the sockets
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	corpus, err := filepath.Abs("testdata/spoof.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	x := &tmux{t, filepath.Join(dir, "tmux")}
	x.run("new-session", "-d", "-x", fmt.Sprint(w), "-y", fmt.Sprint(h),
		fmt.Sprintf("stty -g >%s/before; MSB_TUI_RIG=%s MSB_TUI_CORPUS=%s %s %s; echo LEFT $?; stty -g >%s/after; sleep 60", dir, dir, corpus, env, exe, dir))
	t.Cleanup(func() {
		x.run("kill-server")
		before, _ := os.ReadFile(filepath.Join(dir, "before"))
		after, _ := os.ReadFile(filepath.Join(dir, "after"))
		if string(before) != string(after) {
			t.Errorf("the terminal was %q and is %q", before, after)
		}
		os.RemoveAll(dir)
	})
	return x
}

// A turn with an approval in tmux, through a storm of sizes; then the terminal
// is as it was.
func TestInTmux(t *testing.T) {
	x := startTmux(t, "", 100, 30)
	x.until("Show me around")
	x.run("send-keys", "C-u", "run go test ./...", "Enter")
	x.until("APPROVAL")
	for i := range 20 {
		x.run("resize-window", "-x", fmt.Sprint(40+i*4), "-y", fmt.Sprint(12+i))
	}
	x.run("resize-window", "-x", "90", "-y", "28")
	time.Sleep(1200 * time.Millisecond)
	x.run("send-keys", "y")
	x.until("It passed.")
	x.run("send-keys", "spoof", "Enter")
	time.Sleep(300 * time.Millisecond)
	x.until("› ask for something")
	if s := x.run("display-message", "-p", "#{pane_title}"); !strings.HasPrefix(s, "msb") {
		t.Errorf("the title is %q", s)
	}
	if s, _ := exec.Command("tmux", "-S", x.sock, "list-buffers").CombinedOutput(); len(strings.TrimSpace(string(s))) > 0 {
		t.Errorf("the clipboard was written: %s", s)
	}
	x.run("send-keys", "C-]")
	x.until("LEFT 0")
	if s := x.run("display-message", "-p", "#{alternate_on}#{mouse_any_flag}#{cursor_flag}"); strings.TrimSpace(s) != "001" {
		t.Errorf("left behind: %s", s)
	}
	time.Sleep(100 * time.Millisecond)
}

// The same on a terminal that cannot be drawn on.
func TestPlainInTmux(t *testing.T) {
	x := startTmux(t, "TERM=dumb MSB_TUI_PLAIN=1", 80, 30)
	x.until("no session yet")
	x.run("send-keys", "run make", "Enter")
	x.until("answer:")
	time.Sleep(700 * time.Millisecond)
	x.run("send-keys", "Enter")
	x.until("denied by the user")
	x.run("send-keys", "/quit", "Enter")
	x.until("LEFT 0")
	time.Sleep(100 * time.Millisecond)
}

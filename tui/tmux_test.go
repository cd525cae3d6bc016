package tui

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"msb/tui/approve"
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
	s, ok := x.soon(want, patience)
	if !ok {
		x.t.Fatalf("no %q on\n%s", want, s)
	}
	return s
}

func (x *tmux) soon(want string, patience time.Duration) (screen string, ok bool) {
	x.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if screen = x.run("capture-pane", "-p"); strings.Contains(screen, want) {
			return screen, true
		}
		if time.Now().After(end) {
			return screen, false
		}
	}
}

// answer presses a key until it counts: a machine that is busy may hold the
// program up, which then takes the key for one that was meant for something else.
func (x *tmux) answer(key, want string) {
	x.t.Helper()
	for range 20 {
		time.Sleep(2 * approve.Quiet)
		x.run("send-keys", key)
		if _, ok := x.soon(want, 3*time.Second); ok {
			return
		}
	}
	x.until(want)
}

func startTmux(t *testing.T, env string, w, h int) *tmux {
	if _, err := exec.LookPath("tmux"); err != nil {
		t.Skip("tmux is missing: apt-get install tmux")
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
	x.answer("y", "It passed.")
	x.run("send-keys", "spoof", "Enter")
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
	x.answer("Enter", "denied by the user")
	x.run("send-keys", "/quit", "Enter")
	x.until("LEFT 0")
	time.Sleep(100 * time.Millisecond)
}

package tui

import (
	"bytes"
	"context"
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/charmbracelet/x/vt"
)

var update = flag.Bool("update", false, "write the golden screens anew")

// screenTest is the whole program on a terminal that the test reads.
type screenTest struct {
	t    testing.TB
	rig  *rig
	app  *App
	p    *tea.Program
	keys io.WriteCloser
	done chan error

	mu  sync.Mutex
	emu *vt.Emulator
	raw bytes.Buffer
}

func (s *screenTest) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.raw.Write(b)
	s.emu.Write(bytes.ReplaceAll(b, []byte("\n"), []byte("\r\n"))) // the program takes it for a terminal in cooked mode
	return len(b), nil
}

func open(t testing.TB, w, h int) *screenTest {
	t.Helper()
	r, err := newRig(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := &screenTest{t: t, rig: r, emu: vt.NewEmulator(w, h), done: make(chan error, 1)}
	in, keys := io.Pipe()
	s.keys = keys
	go io.Copy(io.Discard, s.emu) // answers to questions about the terminal
	o := r.options()
	s.app = newApp(context.Background(), o)
	s.p = tea.NewProgram(s.app, tea.WithInput(in), tea.WithOutput(s), tea.WithWindowSize(w, h), tea.WithoutSignalHandler(), tea.WithFPS(framesPerSecond),
		tea.WithEnvironment([]string{"TERM=xterm-256color"}))
	s.app.send = s.p.Send
	go func() {
		_, err := s.p.Run()
		s.done <- err
	}()
	t.Cleanup(func() {
		s.p.Quit()
		select {
		case err := <-s.done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(10 * time.Second):
			t.Error("the screen did not end")
		}
		keys.Close()
		s.app.leave()
		closeEmulator(s.emu)
		r.close()
	})
	return s
}

func closeEmulator(e *vt.Emulator) {
	if c, ok := e.InputPipe().(io.Closer); ok {
		c.Close()
	}
}

// text is what is on the screen.
func (s *screenTest) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	lines := strings.Split(ansi.Strip(s.emu.Render()), "\n")
	for i, l := range lines {
		lines[i] = strings.TrimRight(l, " \r")
	}
	return strings.Join(lines, "\n") + "\n"
}

// until waits for a text on the screen.
func (s *screenTest) until(want ...string) string {
	s.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		screen, missing := s.text(), ""
		for _, w := range want {
			if !strings.Contains(screen, w) {
				missing = w
			}
		}
		if missing == "" {
			return screen
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("no %q on\n%s", missing, screen)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// gone waits until a text is not on the screen.
func (s *screenTest) gone(text string) {
	s.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for strings.Contains(s.text(), text) {
		if time.Now().After(deadline) {
			s.t.Fatalf("still %q on\n%s", text, s.text())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// press types keys as a terminal sends them.
func (s *screenTest) press(keys ...string) {
	for _, k := range keys {
		if b, ok := named[k]; ok {
			k = b
		}
		if k == "\x1b" { // alone, and not the beginning of what follows
			io.WriteString(s.keys, k)
			time.Sleep(80 * time.Millisecond)
			continue
		}
		io.WriteString(s.keys, k)
	}
}

var named = map[string]string{"enter": "\r", "esc": "\x1b", "tab": "\t", "up": "\x1b[A", "down": "\x1b[B", "pgup": "\x1b[5~", "end": "\x1b[F", "ctrl+c": "\x03", "ctrl+]": "\x1d", "ctrl+o": "\x0f", "ctrl+u": "\x15"}

// allowable waits until allowing counts.
func (s *screenTest) allowable() {
	s.t.Helper()
	s.until("APPROVAL")
	s.gone("keys count after")
}

var (
	moving = regexp.MustCompile(`asked \d+ s ago|\d+ ms|\d+\.\d s\b|[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏]`)
	fill   = regexp.MustCompile(`[ ━─]+~`)
)

// golden compares a screen with the one in testdata; times are left out.
func (s *screenTest) golden(name string) {
	s.t.Helper()
	lines := strings.Split(s.text(), "\n")
	for i, l := range lines {
		if moving.MatchString(l) { // and what fills the line beside it
			lines[i] = fill.ReplaceAllString(moving.ReplaceAllString(l, "~"), " ~")
		}
	}
	got := strings.Join(lines, "\n")
	path := filepath.Join("testdata", "screens", name+".txt")
	if *update {
		os.MkdirAll(filepath.Dir(path), 0o755)
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			s.t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		s.t.Fatal(err)
	}
	if got != string(want) {
		s.t.Errorf("%s differs:\n%s\nwant:\n%s", name, got, want)
	}
}

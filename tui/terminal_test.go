package tui

import (
	"bytes"
	"context"
	"flag"
	"fmt"
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

	"msb/tui/approve"
	"msb/tui/link"
)

// patience is how long a test waits for what has to come.
const patience = time.Minute

var update = flag.Bool("update", false, "write the golden screens anew")

// screenTest is the whole program on a terminal that the test reads.
type screenTest struct {
	t    testing.TB
	rig  *rig
	app  *App
	p    *tea.Program
	keys io.WriteCloser
	done chan error

	mu      sync.Mutex
	emu     *vt.Emulator
	raw     bytes.Buffer
	begun   time.Time // what the screen takes for now, and for when everything happened
	clock   time.Time // the panel's
	passing bool      // each beat of the panel moves the clock
	escapes int       // how often Esc alone has arrived
}

// insideMsg asks for f to be run in the program's own goroutine.
type insideMsg struct {
	f    func(*App)
	done chan struct{}
}

// filter sees every message before the program does. The panel's time is the
// beats that the program has counted, and stands still while a test presses
// keys: on a machine that is held up, the panel would take them for keys that
// were meant for something else, or a pause between two keys for quiet.
func (s *screenTest) filter(_ tea.Model, m tea.Msg) tea.Msg {
	if m, ok := m.(insideMsg); ok {
		m.f(s.app)
		close(m.done)
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch m := m.(type) {
	case link.EventsMsg:
		for i := range m.Events {
			m.Events[i].Time = s.begun
		}
	case approve.TickMsg:
		if s.passing {
			s.clock = s.clock.Add(approve.Quiet / 5)
		}
	case tea.KeyPressMsg:
		if m.String() == "esc" {
			s.escapes++
		}
	}
	return m
}

func (s *screenTest) now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clock
}

// pass lets the panel's time go by until a condition holds.
func (s *screenTest) pass(what string, cond func() bool) {
	s.t.Helper()
	s.flow(true)
	defer s.flow(false)
	s.wait(what, cond)
}

func (s *screenTest) flow(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.passing = on
}

// inside looks at the program while it does nothing else.
func (s *screenTest) inside(f func(*App)) {
	m := insideMsg{f, make(chan struct{})}
	s.p.Send(m)
	select {
	case <-m.done:
	case <-time.After(patience):
		s.t.Fatal("the program does not answer")
	}
}

func (s *screenTest) wait(what string, cond func() bool) {
	s.t.Helper()
	for end := time.Now().Add(patience); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("waited in vain for %s:\n%s", what, s.text())
		}
	}
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
	return openWith(t, w, h, func(*Options) {})
}

func openWith(t testing.TB, w, h int, change func(o *Options)) *screenTest {
	t.Helper()
	r, err := newRig(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := &screenTest{t: t, rig: r, emu: vt.NewEmulator(w, h), done: make(chan error, 1), begun: time.Now()}
	s.clock = s.begun
	in, keys := io.Pipe()
	s.keys = keys
	go io.Copy(io.Discard, s.emu) // answers to questions about the terminal
	o := r.options()
	change(&o)
	s.app = newApp(context.Background(), o)
	s.app.panel.Now, s.app.clock = s.now, func() time.Time { return s.begun }
	s.p = tea.NewProgram(s.app, tea.WithInput(in), tea.WithOutput(s), tea.WithWindowSize(w, h), tea.WithoutSignalHandler(), tea.WithFilter(s.filter), tea.WithFPS(framesPerSecond),
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
		case <-time.After(patience):
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
	var missing, screen string
	s.wait(fmt.Sprintf("%q", want), func() bool {
		screen, missing = s.text(), ""
		for _, w := range want {
			if !strings.Contains(screen, w) {
				missing = w
			}
		}
		return missing == ""
	})
	return screen
}

// gone waits until a text is not on the screen.
func (s *screenTest) gone(text string) {
	s.t.Helper()
	s.wait(fmt.Sprintf("the end of %q", text), func() bool { return !strings.Contains(s.text(), text) })
}

// press types keys as a terminal sends them.
func (s *screenTest) press(keys ...string) {
	for _, k := range keys {
		if b, ok := named[k]; ok {
			k = b
		}
		if k == "\x1b" { // alone, and not the beginning of what follows
			before := s.escaped()
			io.WriteString(s.keys, k)
			s.wait("Esc to arrive", func() bool { return s.escaped() > before })
			continue
		}
		io.WriteString(s.keys, k)
	}
}

func (s *screenTest) escaped() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.escapes
}

var named = map[string]string{"enter": "\r", "esc": "\x1b", "tab": "\t", "up": "\x1b[A", "down": "\x1b[B", "pgup": "\x1b[5~", "end": "\x1b[F", "ctrl+c": "\x03", "ctrl+]": "\x1d", "ctrl+o": "\x0f", "ctrl+u": "\x15"}

// allowable waits until allowing counts.
func (s *screenTest) allowable() {
	s.t.Helper()
	s.pass("keys to count", func() bool {
		text := s.text()
		return strings.Contains(text, "APPROVAL") && !strings.Contains(text, "keys count after")
	})
}

var (
	moving = regexp.MustCompile(`\b[0-9a-f]{8} \(|asked \d+ s ago|\d+ ms|\d+\.\d s\b|[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏]`)
	fill   = regexp.MustCompile(`[ ━─]+~`)
)

// plain is the screen without times.
func (s *screenTest) plain() string {
	lines := strings.Split(s.text(), "\n")
	for i, l := range lines {
		if moving.MatchString(l) { // and what fills the line beside it
			lines[i] = fill.ReplaceAllString(moving.ReplaceAllString(l, "~"), " ~")
		}
	}
	return strings.Join(lines, "\n")
}

// golden compares the screen, when it has come to rest, with the one in testdata.
func (s *screenTest) golden(name string) {
	s.t.Helper()
	path := filepath.Join("testdata", "screens", name+".txt")
	if *update {
		time.Sleep(500 * time.Millisecond)
		os.MkdirAll(filepath.Dir(path), 0o755)
		if err := os.WriteFile(path, []byte(s.plain()), 0o644); err != nil {
			s.t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		s.t.Fatal(err)
	}
	for end := time.Now().Add(patience / 2); ; time.Sleep(5 * time.Millisecond) {
		got := s.plain()
		if got == string(want) {
			return
		}
		if time.Now().After(end) {
			s.t.Errorf("%s differs:\n%s\nwant:\n%s", name, got, want)
			return
		}
	}
}

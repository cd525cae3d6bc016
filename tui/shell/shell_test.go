package shell

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// local runs a program of this machine on a terminal.
type local struct {
	io.ReadWriteCloser
	cmd  *exec.Cmd
	size func(rows, cols uint16) error
}

func (l *local) Resize(_ context.Context, rows, cols uint16) error { return l.size(rows, cols) }
func (l *local) Wait() (int, error) {
	_ = l.cmd.Wait()
	return l.cmd.ProcessState.ExitCode(), nil
}

func start(argv ...string) Opener {
	return func(ctx context.Context, rows, cols uint16) (Process, error) {
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		f, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: rows, Cols: cols})
		if err != nil {
			return nil, err
		}
		raw, err := f.SyscallConn() // which may be used while it is closed
		if err != nil {
			return nil, err
		}
		return &local{f, cmd, func(rows, cols uint16) (err error) {
			if cerr := raw.Control(func(fd uintptr) {
				err = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
			}); cerr != nil {
				return cerr
			}
			return err
		}}, nil
	}
}

// drive hands messages on until the screen holds a text, or the program has ended.
func drive(t *testing.T, s *Shell, msgs chan tea.Msg, want string) string {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		lines, _ := s.View(s.cols, s.rows)
		screen := ansi.Strip(strings.Join(lines, "\n"))
		if strings.Contains(screen, want) {
			return screen
		}
		select {
		case m := <-msgs:
			switch m := m.(type) {
			case OutputMsg:
				s.Output(m.Data)
			case StartedMsg:
				s.Started()
			case EndedMsg:
				s.Ended(m)
				if want == "" {
					return screen
				}
			}
		case <-deadline:
			t.Fatalf("no %q on\n%s", want, screen)
		}
	}
}

func TestShell(t *testing.T) {
	msgs := make(chan tea.Msg)
	s := Open(1, start("/usr/bin/env", "PS1=$ ", "/bin/sh", "-i"), 10, 40, func(m tea.Msg) { msgs <- m })
	defer func() {
		go func() {
			for range msgs {
			}
		}()
		s.Close()
		close(msgs)
	}()
	drive(t, s, msgs, "$")
	s.emu.SendText("stty size; printf '\\033]0;mytitle\\a\\033[31mred\\033[m\\n'; echo A$((1+1))B\r")
	drive(t, s, msgs, "10 40")
	drive(t, s, msgs, "A2B")
	s.Resize(50, 12)
	drive(t, s, msgs, "A2B")
	s.Paste("until [ \"$(stty size)\" = '12 50' ]; do sleep 0.02; done; echo re''sized\r") // the size follows on its own way
	drive(t, s, msgs, "resized")
	for _, k := range "seq 100" {
		s.Key(tea.KeyPressMsg{Code: k, Text: string(k)})
	}
	s.Key(tea.KeyPressMsg{Code: tea.KeyEnter})
	drive(t, s, msgs, fmt.Sprintf("\n%-50s\n$", "100")) // all of it, and the prompt after it
	s.Scroll(-30)
	if screen := drive(t, s, msgs, "70"); strings.Contains(screen, "100") {
		t.Error(screen)
	}
	s.Key(tea.KeyPressMsg{Code: 'd', Mod: tea.ModCtrl})
	for !s.Over() {
		switch m := (<-msgs).(type) {
		case OutputMsg:
			s.Output(m.Data)
		case EndedMsg:
			s.Ended(m)
		}
	}
	if !strings.Contains(s.Note(), "exit code 0") {
		t.Error(s.Note())
	}
}

// Whatever is printed stays inside, and becomes nothing but styled text.
func TestHostileOutput(t *testing.T) {
	s := Open(1, func(context.Context, uint16, uint16) (Process, error) { return nil, io.EOF }, 8, 30, func(tea.Msg) {})
	defer s.Close()
	for _, out := range []string{
		"\x1b]52;c;QUJD\a", "\x1b]0;t\a", "\x1b[?1049h\x1b[999;999Hx", "\x1b_Gf=100;AAAA\x1b\\", "\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\",
		"a" + strings.Repeat("\u0301", 50000), "\xff\xfe\x80", strings.Repeat("x", 1<<20), "\x1bP" + strings.Repeat("q", 1<<20), "\x1b[1000000000C\x1b[99999999999L",
		"\x1b[5000;1r\x1b[0;0r\x1b[-1;5H\x1b[3J\x1bc", "\u202eabc\u2066", "\x1b[8mhidden",
	} {
		s.Output([]byte(out))
		lines, _ := s.View(30, 8)
		if len(lines) != 8 {
			t.Errorf("%d lines", len(lines))
		}
		for _, l := range lines {
			if ansi.StringWidth(l) != 30 || len(l) > 4000 {
				t.Errorf("%.20q: a line of %d cells, %d bytes", out, ansi.StringWidth(l), len(l))
			}
			for i := strings.IndexByte(l, 0x1b); i >= 0; i = strings.IndexByte(l, 0x1b) {
				rest := l[i+1:]
				j := strings.IndexByte(rest, 'm')
				if rest[0] != '[' || j < 0 || strings.Trim(rest[1:j], "0123456789;:") != "" {
					t.Fatalf("%.20q: %q", out, l)
				}
				l = rest[j:]
			}
		}
	}
}

func FuzzOutput(f *testing.F) {
	f.Add([]byte("\x1b[2J\x1b[31mhi\x1b[?1049h"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := Open(1, func(context.Context, uint16, uint16) (Process, error) { return nil, io.EOF }, 6, 20, func(tea.Msg) {})
		defer s.Close()
		s.Output(b)
		lines, _ := s.View(20, 6)
		for _, l := range lines {
			if ansi.StringWidth(l) != 20 {
				t.Fatalf("%q is %d wide", l, ansi.StringWidth(l))
			}
		}
	})
}

package terminal

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"

	"golang.org/x/term"
)

// GuardCommand is the hidden command that RunGuard serves.
const GuardCommand = "terminal-guard"

// guard is a child that outlives us just long enough to put the terminal right. It waits on a pipe: a byte means that
// all is well, the end of the pipe alone means that we died in raw mode.
type guard struct {
	cmd  *exec.Cmd
	pipe *os.File
}

// Guard starts a guard for something that draws on the whole terminal on standard input and gives it back by itself:
// when this process ends without doing so, the guard restores the mode and what a screen may have switched on.
func (s *Streams) Guard() (done func(), err error) {
	if s.inFile == nil {
		return nil, errors.New("standard input is not a terminal")
	}
	g, err := startGuard(s.inFile, guardScreen)
	if err != nil {
		return nil, err
	}
	return g.dismiss, nil
}

// guardScreen as the guard's argument asks it to put a whole screen right.
const guardScreen = "screen"

// leaveScreen ends the alternate screen, mouse and focus reports, bracketed paste and key protocols, and shows the
// cursor.
const leaveScreen = "\x1b[?1049l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1004l\x1b[?2004l\x1b[?2026l\x1b[<u\x1b[>4m\x1b[?25h\x1b[m\r\n"

func startGuard(tty *os.File, args ...string) (*guard, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("guard the terminal: %w", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("guard the terminal: %w", err)
	}
	ready, readyW, err := os.Pipe()
	if err != nil {
		r.Close()
		w.Close()
		return nil, fmt.Errorf("guard the terminal: %w", err)
	}
	defer ready.Close()
	cmd := exec.Command(exe, append([]string{GuardCommand}, args...)...)
	cmd.Stdin = tty
	cmd.ExtraFiles = []*os.File{r, readyW}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C and a killed process group must not reach it
	err = cmd.Start()
	r.Close()
	readyW.Close()
	if err != nil {
		w.Close()
		return nil, fmt.Errorf("guard the terminal: %w", err)
	}
	// It must have seen the ordinary mode before we leave that.
	if _, err := io.ReadFull(ready, make([]byte, 1)); err != nil {
		w.Close()
		_ = cmd.Wait()
		return nil, fmt.Errorf("guard the terminal: the guard did not start: %w", err)
	}
	return &guard{cmd: cmd, pipe: w}, nil
}

func (g *guard) dismiss() {
	if g == nil {
		return
	}
	_, _ = g.pipe.Write([]byte{1})
	g.pipe.Close()
	_ = g.cmd.Wait()
}

// RunGuard is the body of the guard process: standard input is the terminal, descriptor 3 the pipe, 4 says ready.
func RunGuard(args []string) error {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGTSTP,
		syscall.SIGTTOU, syscall.SIGTTIN, syscall.SIGPIPE)
	saved, err := term.GetState(0)
	if err != nil {
		return err
	}
	ready := os.NewFile(4, "ready")
	if _, err := ready.Write([]byte{1}); err != nil {
		return err
	}
	ready.Close()
	pipe := os.NewFile(3, "pipe")
	if n, _ := pipe.Read(make([]byte, 1)); n == 1 {
		return nil
	}
	if slices.Contains(args, guardScreen) {
		_, _ = os.NewFile(0, "terminal").WriteString(leaveScreen) // it may be gone
	}
	return term.Restore(0, saved)
}

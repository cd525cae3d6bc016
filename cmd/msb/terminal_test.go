package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"msb/vmm/shells"
)

// patience bounds every wait for output: a machine under emulation boots in seconds, a busy host takes longer.
const patience = 60 * time.Second

// person sits at a terminal and runs one msb command.
type person struct {
	t    *testing.T
	cmd  *exec.Cmd
	ptmx *os.File
	tty  *os.File // our own descriptor of it, so that it outlives the command
	mode unix.Termios

	mu   sync.Mutex
	seen []byte
	more chan struct{}
	read sync.WaitGroup
}

// sit starts msb on a new terminal of 40 rows and 100 columns.
func sit(t *testing.T, home string, env []string, args ...string) *person {
	t.Helper()
	ptmx, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	p := &person{t: t, ptmx: ptmx, tty: tty, more: make(chan struct{}, 1)}
	if err := pty.Setsize(ptmx, &pty.Winsize{Rows: 40, Cols: 100}); err != nil {
		t.Fatal(err)
	}
	p.mode = p.termios()
	p.cmd = exec.Command(filepath.Join(suite.bin, "msb"), args...)
	p.cmd.Env = append(testEnv(home), env...)
	p.cmd.Dir = home
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = tty, tty, tty
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.read.Go(p.watch)
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		tty.Close()
		p.read.Wait()
		ptmx.Close()
	})
	return p
}

func (p *person) watch() {
	buf := make([]byte, 4096)
	for {
		n, err := p.ptmx.Read(buf)
		p.mu.Lock()
		p.seen = append(p.seen, buf[:n]...)
		p.mu.Unlock()
		select {
		case p.more <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

// sees waits for text on the screen and forgets everything up to its end.
func (p *person) sees(text string) {
	p.t.Helper()
	late := time.After(patience)
	for {
		p.mu.Lock()
		i := bytes.Index(p.seen, []byte(text))
		if i >= 0 {
			p.seen = p.seen[i+len(text):]
		}
		p.mu.Unlock()
		if i >= 0 {
			return
		}
		select {
		case <-p.more:
		case <-late:
			p.t.Fatalf("%q is not on the screen, which says:\n%q", text, p.screen())
		}
	}
}

func (p *person) screen() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return string(p.seen)
}

func (p *person) types(keys string) {
	p.t.Helper()
	if _, err := io.WriteString(p.ptmx, keys); err != nil {
		p.t.Fatal(err)
	}
}

// leaves waits for the command's end, checks that the terminal is as it was, and returns the exit code.
func (p *person) leaves() int {
	p.t.Helper()
	done := make(chan error, 1)
	go func() { done <- p.cmd.Wait() }()
	select {
	case <-done:
	case <-time.After(patience):
		p.t.Fatalf("it does not end; the screen says:\n%q", p.screen())
	}
	// After SIGKILL somebody else puts the terminal right, a moment later.
	for deadline := time.Now().Add(time.Minute); p.termios() != p.mode; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			p.t.Fatalf("the terminal's mode is not what it was:\n%+v\n%+v", p.termios(), p.mode)
		}
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *person) termios() unix.Termios {
	p.t.Helper()
	m, err := unix.IoctlGetTermios(int(p.tty.Fd()), unix.TCGETS)
	if err != nil {
		p.t.Fatal(err)
	}
	return *m
}

// msb runs a command without a terminal and returns what it printed.
func msb(t *testing.T, home string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(suite.bin, "msb"), args...)
	cmd.Env, cmd.Dir = testEnv(home), home
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return string(out) + string(exit.Stderr), err
	}
	return string(out), err
}

func mustMSB(t *testing.T, home string, args ...string) string {
	t.Helper()
	out, err := msb(t, home, args...)
	if err != nil {
		t.Fatalf("msb %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// anyEngine is the quicker engine that this user may run.
func anyEngine(t *testing.T) string {
	t.Helper()
	if os.Geteuid() == 0 {
		needImages(t)
		return "process"
	}
	needVM(t)
	return "qemu"
}

// sandboxHome is a home with one running sandbox, x.
func sandboxHome(t *testing.T) string {
	t.Helper()
	engine := anyEngine(t)
	home := preparedHome(t)
	mustMSB(t, home, "create", "tiny", "-n", "x", "-m", "256M", "--engine", engine)
	return home
}

func preparedHome(t *testing.T) string {
	t.Helper()
	home, err := newHome(true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cleanHome(home); err != nil {
			t.Error(err)
		}
	})
	return home
}

func TestShellIsATerminal(t *testing.T) {
	home := sandboxHome(t)
	p := sit(t, home, nil, "shell", "x")
	p.sees("$ ")
	p.types("stty size; echo $TERM:$SHELL; id -un\r")
	p.sees("40 100")
	p.sees("xterm-256color:/bin/sh")
	p.sees("dev")
	if p.termios() == p.mode {
		t.Error("the terminal is not in raw mode")
	}
	if err := pty.Setsize(p.ptmx, &pty.Winsize{Rows: 11, Cols: 77}); err != nil {
		t.Fatal(err)
	}
	p.types("until stty size | grep '^11 77$'; do :; done; echo resi'zed'\r")
	p.sees("resized")
	// Job control: Ctrl-Z, fg, Ctrl-C.
	p.types("sh -c 'trap \"echo a\"gai\"n\" CONT; echo r\"unn\"ing; while :; do sleep 0.05; done'\r")
	p.sees("running")
	p.types("\x1a")
	p.sees("Stopped")
	p.types("fg\r")
	p.sees("again")
	p.types("\x03")
	p.sees("$ ")
	p.types("echo stat'us' $?\r")
	p.sees("status 130")
	p.types("exit 3\r")
	if code := p.leaves(); code != 3 {
		t.Errorf("exit code %d", code)
	}
}

func TestShellFallsBackToATermTheGuestKnows(t *testing.T) {
	home := sandboxHome(t)
	p := sit(t, home, []string{"TERM=frobnicator-9000"}, "shell", "x")
	p.sees("$ ")
	p.types("echo T'ERM'=$TERM\r")
	p.sees("TERM=xterm")
	p.types("exit\r")
	p.leaves()
}

func TestDetachKeysLeaveTheShell(t *testing.T) {
	home := sandboxHome(t)
	for _, tc := range []struct {
		keys string
		args []string
	}{{"\x1d", nil}, {"\x10\x11", []string{"--detach-keys", "ctrl-p,ctrl-q"}}} {
		p := sit(t, home, nil, append([]string{"shell", "x"}, tc.args...)...)
		p.sees("$ ")
		p.types("echo he'r'e\r")
		p.sees("here")
		p.types(tc.keys)
		p.sees("left shell")
		if code := p.leaves(); code != 0 {
			t.Errorf("exit code %d", code)
		}
	}
	mustMSB(t, home, "ping", "x")
}

// A shell that was left lives on: who comes back sees what it printed meanwhile, two may be there at once, and all
// learn how it ended.
func TestShellOutlivesItsTerminal(t *testing.T) {
	t.Run("any engine", func(t *testing.T) { outlive(t, sandboxHome(t)) })
	t.Run("machine", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("any engine is a machine already")
		}
		needVM(t)
		home := preparedHome(t)
		mustMSB(t, home, "create", "tiny", "-n", "x", "-m", "256M", "--engine", "qemu")
		outlive(t, home)
	})
}

func outlive(t *testing.T, home string) {
	p := sit(t, home, nil, "shell", "x")
	p.sees("$ ")
	p.types("MARK=ki'wi'; (until [ -e go ]; do sleep 0.1; done; echo me'an'while) & echo rea'd'y\r")
	p.sees("ready")
	p.types("\x1d")
	p.sees("msb shell x --attach 1")
	if code := p.leaves(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	mustMSB(t, home, "exec", "x", "--", "sh", "-c", "cd; touch go")
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		var list []shells.Info
		if err := json.Unmarshal([]byte(mustMSB(t, home, "shells", "x", "--json")), &list); err != nil {
			t.Fatal(err)
		}
		if len(list) == 1 && list[0].Attached == 0 && list[0].Ended == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v", list)
		}
	}
	first := sit(t, home, nil, "shell", "x", "--attach")
	first.sees("ready")
	first.sees("meanwhile")
	// A terminal that goes away does not end it either.
	_ = first.cmd.Process.Signal(syscall.SIGHUP)
	if code := first.leaves(); code != 129 {
		t.Errorf("exit code %d", code)
	}
	first = sit(t, home, nil, "shell", "x", "--attach", "1")
	first.sees("meanwhile")
	second := sit(t, home, nil, "shell", "x", "--attach", "1")
	second.sees("meanwhile")
	second.types("echo $MARK-ag'ain'\r")
	second.sees("kiwi-again")
	first.sees("kiwi-again")
	first.types("exit 5\r")
	if code := first.leaves(); code != 5 {
		t.Errorf("exit code %d", code)
	}
	if code := second.leaves(); code != 5 {
		t.Errorf("exit code of the other %d", code)
	}
	out, err := msb(t, home, "shell", "x", "--attach", "1")
	if err == nil {
		t.Error("without a terminal", out)
	}
	p = sit(t, home, nil, "shell", "x", "--attach", "9")
	p.sees("no such shell")
	p.leaves()
	p = sit(t, home, nil, "shell", "x")
	p.sees("$ ")
	mustMSB(t, home, "shells", "x", "--kill", "all")
	if code := p.leaves(); code == 0 {
		t.Error("a shell that was killed ended well")
	}
	if out := strings.TrimSpace(mustMSB(t, home, "shells", "x", "--quiet")); out != "" {
		t.Errorf("left behind: %s", out)
	}
}

func TestTerminalComesBackWhateverHappens(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(p *person, home string)
		code int
	}{
		{"SIGTERM", func(p *person, _ string) { _ = p.cmd.Process.Signal(syscall.SIGTERM) }, 143},
		{"SIGHUP", func(p *person, _ string) { _ = p.cmd.Process.Signal(syscall.SIGHUP) }, 129},
		{"SIGKILL", func(p *person, _ string) { _ = p.cmd.Process.Kill() }, -1},
		{"the machine is gone", func(p *person, home string) { killEngine(p.t, home, "x") }, exitOwnFailure},
	} {
		t.Run(tc.name, func(t *testing.T) {
			home := sandboxHome(t)
			p := sit(t, home, nil, "shell", "x")
			p.sees("$ ")
			p.types("echo he'r'e\r")
			p.sees("here")
			tc.do(p, home)
			if code := p.leaves(); code != tc.code {
				t.Errorf("exit code %d, want %d; the screen says %q", code, tc.code, p.screen())
			}
		})
	}
}

func killEngine(t *testing.T, home, name string) {
	t.Helper()
	var v sandboxView
	if err := json.Unmarshal([]byte(mustMSB(t, home, "inspect", name, "--json")), &v); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(v.EnginePID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

func TestExecOnATerminal(t *testing.T) {
	home := sandboxHome(t)
	p := sit(t, home, nil, "exec", "x", "--", "sh", "-c", "test -t 0 && read -r line && echo \"got <$line>\"; exit 4")
	p.types("some words\r")
	p.sees("got <some words>")
	if code := p.leaves(); code != 4 {
		t.Errorf("exit code %d", code)
	}
	// Ctrl-C goes through the terminal to the command.
	p = sit(t, home, nil, "exec", "x", "--", "sh", "-c", "trap 'echo interrupted; exit 5' INT; echo ready; while :; do sleep 0.05; done")
	p.sees("ready")
	p.types("\x03")
	p.sees("interrupted")
	if code := p.leaves(); code != 5 {
		t.Errorf("exit code %d", code)
	}
}

func TestResetAsks(t *testing.T) {
	home := sandboxHome(t)
	mustMSB(t, home, "stop", "x")
	p := sit(t, home, nil, "reset", "x")
	p.sees("Reset it? [y/N]")
	p.types("n\r")
	if code := p.leaves(); code != exitFailure {
		t.Errorf("exit code %d", code)
	}
	p = sit(t, home, nil, "reset", "x")
	p.sees("Reset it? [y/N]")
	p.types("y\r")
	if code := p.leaves(); code != 0 {
		t.Errorf("exit code %d: %q", code, p.screen())
	}
}

// Command shots takes the pictures of the documentation: it runs the real thing
// in a multiplexer, with a real machine and the scripted model, types, and draws
// what is on the screen. `make screenshots` runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

const (
	width, height = 116, 30
	patience      = 3 * time.Minute
	settle        = 700 * time.Millisecond // for what is still being drawn
	name          = "demo"
)

func main() {
	msb := flag.String("msb", "bin/msb", "the msb to run")
	library := flag.String("library", os.Getenv("MSB_HOME"), "a home with images and kernels")
	image := flag.String("image", "tiny", "image of the sandbox")
	out := flag.String("out", "docs/screens", "folder of the pictures")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *msb, *library, *image, *out); err != nil {
		fmt.Fprintln(os.Stderr, "shots:", err)
		os.Exit(1)
	}
}

// stage is a multiplexer with the screen in it.
type stage struct {
	ctx    context.Context
	socket string
	out    string
}

func run(ctx context.Context, msb, library, image, out string) (err error) {
	if msb, err = filepath.Abs(msb); err != nil {
		return err
	}
	home, err := os.MkdirTemp("", "shots") // a short path, for the sockets
	if err != nil {
		return err
	}
	defer os.RemoveAll(home)
	for _, dir := range []string{"images", "kernels"} {
		from, err := filepath.Abs(filepath.Join(library, dir))
		if err != nil {
			return err
		}
		if err := os.Symlink(from, filepath.Join(home, dir)); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	env := append(os.Environ(), "MSB_HOME="+home, "MSB_DEMO_PACE=0s")
	command := func(args ...string) error {
		c := exec.CommandContext(ctx, msb, args...)
		c.Env, c.Stderr = env, os.Stderr
		return c.Run()
	}
	if err := command("create", image, "-n", name, "-m", "256M"); err != nil {
		return fmt.Errorf("make the sandbox: %w", err)
	}
	defer func() {
		c := exec.Command(msb, "rm", "-f", name) // also after an interrupt
		c.Env = env
		err = errors.Join(err, c.Run())
	}()
	s := &stage{ctx, filepath.Join(home, "tmux"), out}
	if err := s.tmux("new-session", "-d", "-x", fmt.Sprint(width), "-y", fmt.Sprint(height),
		"MSB_HOME="+home+" MSB_DEMO_PACE=0s MSB_GUEST="+os.Getenv("MSB_GUEST")+" COLORTERM=truecolor "+msb+" tui "+name); err != nil {
		return err
	}
	defer s.tmux("kill-server")
	return s.play()
}

// play goes through the screen.
func (s *stage) play() error {
	for _, step := range []struct {
		keys []string
		want string
		shot string
	}{
		{nil, "machine of its own", ""},
		{[]string{"C-u"}, "ask for something", ""},
		{[]string{"-l", "Show me around"}, "› Show me around", "welcome"},
		{[]string{"Enter"}, "APPROVAL", ""},
		{nil, "y allow once", ""},
		{[]string{"y"}, "uname", ""},
		{nil, "y allow once", "approval"},
		{[]string{"y"}, "─ done", "turn"},
		{[]string{"M-2"}, "$", ""},
		{[]string{"-l", "ls -l /; top -b -n 1 | head -12"}, "top -b", ""},
		{[]string{"Enter"}, "Mem:", "shell"},
		{[]string{"C-]"}, "next shell", ""},
		{[]string{"3"}, "/", ""},
		{nil, "J", "files"},
		{[]string{"M-4"}, "session:", ""},
		{[]string{"v"}, "protocols:", "events"},
		{[]string{"M-5"}, "guest agent", ""},
		{nil, "▁", "boxes"},
		{[]string{"M-6"}, "MCP servers", "settings"},
		{[]string{"?"}, "these keys", "keys"},
	} {
		if step.keys != nil {
			press := func() error { return s.tmux(append([]string{"send-keys"}, step.keys...)...) }
			if step.keys[0] == "y" {
				press = s.allow
			}
			if err := press(); err != nil {
				return err
			}
		}
		if err := s.until(func(text string) bool { return strings.Contains(text, step.want) }, step.want); err != nil {
			return err
		}
		if step.shot == "" {
			continue
		}
		time.Sleep(settle)
		if err := s.shoot(step.shot); err != nil {
			return err
		}
	}
	return nil
}

// allow presses y when it counts.
func (s *stage) allow() error {
	counts := func(text string) bool {
		return strings.Contains(text, "APPROVAL") && !strings.Contains(text, "keys count after")
	}
	if err := s.until(counts, "keys that count"); err != nil {
		return err
	}
	return s.tmux("send-keys", "y")
}

func (s *stage) tmux(args ...string) error {
	_, err := s.ask(args...)
	return err
}

func (s *stage) ask(args ...string) (string, error) {
	out, err := exec.Command("tmux", append([]string{"-S", s.socket, "-f", "/dev/null"}, args...)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("tmux %s: %w: %s", args[0], err, out)
	}
	return string(out), nil
}

// until waits for something to be on the screen.
func (s *stage) until(ok func(string) bool, what string) error {
	late := time.After(patience)
	for {
		text, err := s.ask("capture-pane", "-p")
		if err != nil {
			return err
		}
		if ok(text) {
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-s.ctx.Done():
			return s.ctx.Err()
		case <-late:
			return fmt.Errorf("%q never came; the screen says:\n%s", what, text)
		}
	}
}

// private are paths of the machine that the pictures are taken on.
var private = regexp.MustCompile(`/tmp/shots\d+`)

// shoot draws what is on the screen.
func (s *stage) shoot(shot string) error {
	text, err := s.ask("capture-pane", "-p", "-e")
	if err != nil {
		return err
	}
	text = private.ReplaceAllString(text, "~/.msb")
	path := filepath.Join(s.out, shot+".svg")
	if err := os.WriteFile(path, []byte(svg(text, width, height)), 0o644); err != nil {
		return err
	}
	fmt.Println(path)
	return nil
}

package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"
)

// stopGrace is how long a tool gets to clean up behind itself after it was told to stop: the longest is the removal
// of a tree of a whole system on a busy disk.
const stopGrace = time.Minute

// stderrKept bounds what is kept of a tool's error output.
const stderrKept = 16 << 10

// tool is an external program to run.
type tool struct {
	name   string
	args   []string
	dir    string
	env    []string // added to the environment
	stdin  io.Reader
	stdout io.Writer
	lines  func(line string) // sees each line of the error output
}

// toolError is a tool that failed.
type toolError struct {
	name   string
	err    error
	output string // end of its error output, cleaned
}

func (e *toolError) Error() string {
	if e.output == "" {
		return fmt.Sprintf("%s: %v", e.name, e.err)
	}
	return fmt.Sprintf("%s: %v: %s", e.name, e.err, e.output)
}

func (e *toolError) Unwrap() error { return e.err }

// run runs the tool to its end. When ctx ends, the tool and its children are asked to stop (so that they remove their
// temporary files and mounts) and killed if they do not; the error is then ctx's.
func (t tool) run(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, t.name, t.args...)
	cmd.Dir, cmd.Stdin, cmd.Stdout = t.dir, t.stdin, t.stdout
	// Messages are matched and shown: C keeps them in one language. /sbin holds mkfs and is not in everybody's PATH.
	cmd.Env = append(os.Environ(), "LC_ALL=C", "PATH="+searchPath())
	cmd.Env = append(cmd.Env, t.env...)
	cmd.WaitDelay = stopGrace
	// A group of its own, as a terminal's Ctrl-C has it: mmdebstrap, for one, waits for its children and stops only
	// when these do.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		err := syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		if errors.Is(err, syscall.EPERM) { // it runs as root through sudo
			err = exec.Command("sudo", "-n", "kill", "-TERM", strconv.Itoa(cmd.Process.Pid)).Run()
		}
		return err
	}
	if path, err := lookTool(t.name); err == nil {
		cmd.Path, cmd.Err = path, nil
	}
	tail := &tailWriter{max: stderrKept, line: t.lines}
	cmd.Stderr = tail
	err := cmd.Run()
	tail.flush()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		if cmd.Process != nil {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // children that did not stop
		}
		return context.Cause(ctx)
	default:
		return &toolError{name: t.name, err: err, output: cleanText(tail.String())}
	}
}

// output runs the tool and returns what it printed.
func (t tool) output(ctx context.Context) (string, error) {
	var out bytes.Buffer
	t.stdout = &out
	err := t.run(ctx)
	return out.String(), err
}

// lookTool finds a tool in PATH and in the directories for system tools.
func lookTool(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	if !strings.Contains(name, "/") {
		for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
			if path, err := exec.LookPath(dir + "/" + name); err == nil {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("%s: %w", name, exec.ErrNotFound)
}

func searchPath() string {
	return os.Getenv("PATH") + ":/usr/local/sbin:/usr/sbin:/sbin"
}

// tailWriter keeps the end of what is written to it and hands out its lines.
type tailWriter struct {
	max  int
	line func(string)
	buf  []byte
	cur  []byte
}

func (w *tailWriter) Write(p []byte) (int, error) {
	w.buf = append(w.buf, p...)
	if n := len(w.buf) - w.max; n > 0 {
		w.buf = append(w.buf[:0], w.buf[n:]...)
	}
	if w.line != nil {
		for _, b := range p {
			if b != '\n' && b != '\r' {
				if len(w.cur) < w.max {
					w.cur = append(w.cur, b)
				}
				continue
			}
			w.flush()
		}
	}
	return len(p), nil
}

func (w *tailWriter) flush() {
	if w.line != nil && len(w.cur) > 0 {
		w.line(string(w.cur))
	}
	w.cur = w.cur[:0]
}

func (w *tailWriter) String() string { return string(w.buf) }

// cleanText makes foreign text fit for an error message: the last lines of it, without control characters.
func cleanText(s string) string {
	lines := strings.FieldsFunc(strings.ToValidUTF8(s, "�"), func(r rune) bool { return r == '\n' || r == '\r' })
	var keep []string
	for _, line := range lines {
		line = strings.TrimSpace(strings.Map(func(r rune) rune {
			if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) {
				return ' '
			}
			return r
		}, line))
		if line != "" {
			keep = append(keep, line)
		}
	}
	const most = 6
	if len(keep) > most {
		keep = keep[len(keep)-most:]
	}
	text := strings.Join(keep, "; ")
	const longest = 1200
	if len(text) > longest {
		text = strings.ToValidUTF8(text[len(text)-longest:], "")
	}
	return text
}

package creds

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Limits of a credential.
const (
	MaxSize        = 64 << 10 // bytes
	CommandTimeout = 15 * time.Second
	keyringTimeout = 15 * time.Second
)

// ErrNotFound reports a credential that is not where its reference says.
var ErrNotFound = errors.New("credential not found")

// Resolve reads a credential now. The error names the place and never holds
// any of what was read.
func (s *Store) Resolve(ctx context.Context, r Ref) (Secret, error) {
	if err := r.Check(); err != nil {
		return Secret{}, err
	}
	var text string
	var err error
	switch r.Source {
	case SourceEnv:
		text = os.Getenv(r.Name)
		if text == "" {
			err = fmt.Errorf("%w: %s is not set where the sandbox was started; set it and restart the sandbox, or use a keyring or file credential", ErrNotFound, r.Name)
		}
	case SourceKeyring:
		text, err = s.keyringGet(ctx, r.Name)
	case SourceFile:
		text, err = readSecret(s.filePath(r.Name))
	case SourceCommand:
		text, err = runCommand(ctx, r.Command)
	case SourceSandbox:
		text, err = s.sandboxSecret(r)
	}
	if err == nil {
		text, err = clean(text)
	}
	if err != nil {
		return Secret{}, fmt.Errorf("credential from %s: %w", r, err)
	}
	return NewSecret(text), nil
}

func (s *Store) sandboxSecret(r Ref) (string, error) {
	switch {
	case s.sandbox == nil:
		return "", errors.New("only a running sandbox has its secrets, and only its turns can use them; `msb inspect NAME` lists them and the hosts that they are for")
	case r.host == "":
		return "", errors.New("a secret of a sandbox goes to the hosts that it is for, and to no program of this machine")
	}
	return s.sandbox(r.Name, r.host)
}

// clean takes the line end off and refuses what cannot be in a header.
func clean(text string) (string, error) {
	text = strings.TrimRight(text, "\r\n")
	switch {
	case text == "":
		return "", fmt.Errorf("%w: it is empty", ErrNotFound)
	case len(text) > MaxSize:
		return "", fmt.Errorf("it has more than %d bytes", MaxSize)
	case strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c > '~' }):
		return "", errors.New("it is not one line of printable ASCII")
	}
	return text, nil
}

// filePath is where a file credential is.
func (s *Store) filePath(name string) string {
	if rest, ok := strings.CutPrefix(name, "~/"); ok {
		if home, err := os.UserHomeDir(); err == nil {
			return filepath.Join(home, rest)
		}
	}
	if strings.Contains(name, "/") {
		return name
	}
	return filepath.Join(s.dir, name)
}

// readSecret reads a file that only its owner can.
func readSecret(path string) (string, error) {
	// No waiting for the writer of a FIFO.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%w: there is no file %s; make it with `msb creds set %s`", ErrNotFound, path, filepath.Base(path))
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return "", err
	}
	if !st.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a regular file", path)
	}
	if perm := st.Mode().Perm(); perm&0o077 != 0 {
		return "", fmt.Errorf("%s has mode %04o and others can get at it: run chmod 600 on it", path, perm)
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok && int(sys.Uid) != os.Geteuid() {
		return "", fmt.Errorf("%s belongs to another user", path)
	}
	b, err := io.ReadAll(io.LimitReader(f, MaxSize+2))
	return string(b), err
}

// runCommand returns what a command prints. It has its own process group,
// which is killed with all that is left in it.
func runCommand(ctx context.Context, argv []string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, CommandTimeout, fmt.Errorf("it took longer than %v", CommandTimeout))
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	out := &limited{cancel: cancel}
	cmd.Stdout = out
	err := cmd.Run()
	if cmd.Process != nil {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // children that stayed behind
	}
	switch {
	case out.over:
		return "", fmt.Errorf("it printed more than %d bytes", MaxSize)
	case ctx.Err() != nil && err != nil:
		return "", context.Cause(ctx)
	case errors.Is(err, exec.ErrWaitDelay): // a child kept the pipe
	case err != nil:
		return "", err // the exit status; what it printed may be secret
	}
	return out.b.String(), nil
}

// limited collects output and ends its writer when there is too much.
type limited struct {
	b      bytes.Buffer // not embedded: io.Copy must not find its ReadFrom
	over   bool
	cancel context.CancelFunc
}

func (l *limited) Write(p []byte) (int, error) {
	if l.b.Len()+len(p) > MaxSize+2 {
		l.over = true
		l.cancel()
		return 0, io.ErrShortWrite
	}
	return l.b.Write(p)
}

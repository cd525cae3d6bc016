package workspace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// environ is the environment of every git that is run: nothing of a hook or a
// shell that points it elsewhere, nothing that writes, asks or fetches.
func environ(extra ...string) []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "GIT_") && !strings.HasPrefix(kv, "LC_ALL=") {
			env = append(env, kv)
		}
	}
	return append(append(env, "LC_ALL=C", "GIT_OPTIONAL_LOCKS=0", "GIT_NO_LAZY_FETCH=1", "GIT_TERMINAL_PROMPT=0",
		"GIT_NO_REPLACE_OBJECTS=1"), extra...)
}

// repo is the private bare repository. Nothing of the user's configuration
// holds in it, and nothing of attributes that are part of a tree.
type repo struct{ dir string }

func (r repo) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "git", append([]string{"--git-dir=" + r.dir,
		"-c", "core.protectNTFS=true", "-c", "core.protectHFS=true", "-c", "core.bigFileThreshold=32m",
		"-c", "pack.compression=1", "-c", "gc.auto=0", "-c", "core.quotePath=true"}, args...)...)
	cmd.Dir = r.dir
	cmd.Env = environ("GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_ATTR_NOSYSTEM=1", "HOME="+r.dir, "XDG_CONFIG_HOME="+r.dir)
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// run runs git and returns its output.
func (r repo) run(ctx context.Context, args ...string) ([]byte, error) {
	return output(ctx, r.command(ctx, args...))
}

// output runs a command and returns what it wrote; an error has what it said.
func output(ctx context.Context, cmd *exec.Cmd) ([]byte, error) {
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return out.Bytes(), failure(ctx, cmd, err, said.String())
	}
	return out.Bytes(), nil
}

// gitError is a git that failed.
type gitError struct {
	what string
	said string
	err  error
}

func (e *gitError) Error() string {
	said := strings.TrimSpace(e.said)
	if said == "" {
		return fmt.Sprintf("git %s: %v", e.what, e.err)
	}
	return fmt.Sprintf("git %s: %s", e.what, said)
}

func (e *gitError) Unwrap() error { return e.err }

func failure(ctx context.Context, cmd *exec.Cmd, err error, said string) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, exec.ErrNotFound) {
		return ErrNoGit
	}
	what := ""
	for _, a := range cmd.Args[1:] {
		if !strings.HasPrefix(a, "-") && !strings.Contains(a, "=") && !strings.Contains(a, "/") {
			what = a
			break
		}
	}
	const most = 2000
	return &gitError{what: what, said: said[:min(len(said), most)], err: err}
}

// open makes the private repository if it is not there, with object names of a
// format.
func (w *Workspace) open(ctx context.Context, format string) (repo, error) {
	r := repo{dir: filepath.Join(w.dir, "objects.git")}
	if _, err := os.Stat(filepath.Join(r.dir, "HEAD")); err == nil {
		return r, nil
	}
	return r, initRepo(ctx, r.dir, format)
}

// initRepo makes a bare repository with nothing in it but the layout.
func initRepo(ctx context.Context, dir, format string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	r := repo{dir: dir}
	_, err := r.run(ctx, "init", "-q", "--bare", "--template=", "--object-format="+format, dir)
	return err
}

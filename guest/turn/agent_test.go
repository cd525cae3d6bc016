package turn_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"msb/guest/turn"
	"msb/guest/turn/tree"
	"msb/guest/turn/turntest"
	"msb/protocol/turnrpc"
)

// session is an agent over a pipe, with a scripted host.
type session struct {
	*turntest.Host
	repo, state string
	runner      *localRunner
	done        chan error
}

func config(t testing.TB, repo, state string) turn.Config {
	files, err := tree.New(repo, 2, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(files.Close)
	return turn.Config{
		Guest: turnrpc.GuestConfig{
			SessionID: "sid", Capability: "cap", RepoDir: repo, Model: turnrpc.GuestModel{Name: "m1"},
		},
		ImageID: "image", Tree: files, Runner: &localRunner{}, Machine: &fakeMachine{}, State: state,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
}

// start starts an agent.
func start(t testing.TB, s turntest.Script) *session { return resume(t, s, t.TempDir(), t.TempDir()) }

// resume starts an agent in a workspace and session that may have been used before.
func resume(t testing.TB, s turntest.Script, repo, state string) *session {
	t.Helper()
	cfg := config(t, repo, state)
	ours, theirs := net.Pipe()
	a := &session{repo: repo, state: state, runner: cfg.Runner.(*localRunner), done: make(chan error, 1)}
	go func() { a.done <- turn.Serve(context.Background(), theirs, cfg) }()
	t.Cleanup(func() {
		ours.Close()
		select {
		case <-a.done:
		case <-time.After(turntest.Patience):
			t.Error("the agent did not end")
		}
	})
	a.Host = turntest.New(t, ours, s)
	return a
}

func (a *session) write(t testing.TB, name, text string) {
	t.Helper()
	path := filepath.Join(a.repo, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func extensions(h turnrpc.Hello) turnrpc.HelloResult {
	return turnrpc.HelloResult{Accepted: true, Protocol: 4, Extensions: h.Extensions}
}

func allow(turnrpc.ApprovalRequest) turnrpc.Approval {
	return turnrpc.Approval{Decision: turnrpc.DecisionAllowOnce}
}

// localRunner runs commands as this test's user. noGit makes the sandbox one without git.
type localRunner struct {
	mu      sync.Mutex
	noGit   bool
	running int
	started []string
}

func (r *localRunner) Start(_ context.Context, c turn.Command) (turn.Process, error) {
	r.mu.Lock()
	noGit := r.noGit
	r.started = append(r.started, c.Argv[len(c.Argv)-1])
	r.mu.Unlock()
	if noGit && c.Argv[0] == "git" {
		return nil, errors.New("git is not installed in the sandbox")
	}
	cmd := exec.Command(c.Argv[0], c.Argv[1:]...)
	path, err := os.Readlink("/proc/self/fd/" + fd(c.Dir))
	if err != nil {
		return nil, err
	}
	cmd.Dir = path
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@t",
		"GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@t"}, c.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p := &localProcess{cmd: cmd, r: r}
	p.in, _ = cmd.StdinPipe()
	var outW, errW *os.File
	if p.out, outW, err = os.Pipe(); err != nil {
		return nil, err
	}
	if p.err, errW, err = os.Pipe(); err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = outW, errW
	err = cmd.Start()
	outW.Close()
	errW.Close()
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	r.running++
	r.mu.Unlock()
	return p, nil
}

func (r *localRunner) left() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.running
}

type localProcess struct {
	r        *localRunner
	cmd      *exec.Cmd
	in       io.WriteCloser
	out, err *os.File
}

func (p *localProcess) Files() (io.WriteCloser, io.ReadCloser, io.ReadCloser) {
	return p.in, p.out, p.err
}
func (p *localProcess) Kill() { _ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) }
func (p *localProcess) Wait() (turn.ExitStatus, error) {
	_ = p.cmd.Wait()
	p.Kill()
	p.r.mu.Lock()
	p.r.running--
	p.r.mu.Unlock()
	ws := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ws.Signaled() {
		return turn.ExitStatus{Code: 128 + int(ws.Signal()), Signal: int(ws.Signal())}, nil
	}
	return turn.ExitStatus{Code: ws.ExitStatus()}, nil
}

// fakeMachine remembers what was asked of it.
type fakeMachine struct {
	mu    sync.Mutex
	calls []string
}

func (m *fakeMachine) note(s string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls = append(m.calls, s)
	return nil
}
func (m *fakeMachine) Freeze(*os.File) error { return m.note("freeze") }
func (m *fakeMachine) Thaw() error           { return m.note("thaw") }
func (m *fakeMachine) SetClock(t time.Time) error {
	return m.note("clock " + t.UTC().Format(time.RFC3339))
}

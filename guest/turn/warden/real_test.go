package warden_test

import (
	"bytes"
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

	"msb/guest/turn/turntest"
	"msb/protocol/turnrpc"
)

var guest struct {
	once sync.Once
	path string
	err  error
}

// guestBinary is msb-guest as it is shipped: the one of $MSB_GUEST, or one built here.
func guestBinary(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("the turn agent is started as root")
	}
	if path := os.Getenv("MSB_GUEST"); path != "" {
		return path
	}
	guest.once.Do(func() {
		dir, err := os.MkdirTemp("", "msb-guest-test-")
		if err != nil {
			guest.err = err
			return
		}
		_ = os.Chmod(dir, 0o755)
		guest.path = filepath.Join(dir, "msb-guest")
		cmd := exec.Command("go", "build", "-o", guest.path, "msb/guest/msb-guest")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			guest.err = errors.Join(err, errors.New(string(out)))
		}
	})
	if guest.err != nil {
		t.Fatal(guest.err)
	}
	return guest.path
}

func TestMain(m *testing.M) {
	syscall.Umask(0o022) // the agent is another user, and runs what is built here
	code := m.Run()
	if guest.path != "" {
		_ = os.RemoveAll(filepath.Dir(guest.path))
	}
	os.Exit(code)
}

// session is a real agent with a scripted host.
type session struct {
	*turntest.Host
	cmd    *exec.Cmd
	repo   string
	state  string
	stderr *bytes.Buffer
	done   chan error
}

type pipes struct {
	io.Reader
	io.WriteCloser
}

// start starts the agent over stdio in a workspace that belongs to the owner of commands.
func start(t *testing.T, s turntest.Script) *session {
	t.Helper()
	bin := guestBinary(t)
	// Not the test's own folder: its parents are closed to others.
	dir, err := os.MkdirTemp("/var/tmp", "msb-turn-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	_ = os.Chmod(dir, 0o755)
	stateBase, err := os.MkdirTemp("/var/lib", "msb-turn-test-")
	if err != nil {
		t.Fatal(err)
	}
	_ = os.Chmod(stateBase, 0o755)
	t.Cleanup(func() { _ = os.RemoveAll(stateBase) })
	repo := filepath.Join(dir, "repo")
	if err := os.Mkdir(repo, 0o755); err != nil {
		t.Fatal(err)
	}
	_ = os.Chown(repo, 1000, 1000)
	a := &session{repo: repo, state: stateBase, stderr: new(bytes.Buffer), done: make(chan error, 1)}
	a.cmd = exec.Command(bin, "turn", "--rpc", "stdio", "--state", stateBase)
	in, _ := a.cmd.StdinPipe()
	out, _ := a.cmd.StdoutPipe()
	a.cmd.Stderr = a.stderr
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { a.done <- a.cmd.Wait() }()
	line, _ := json.Marshal(turnrpc.GuestConfig{SessionID: "sid", Capability: "cap", RepoDir: repo, Model: turnrpc.GuestModel{Name: "m"}})
	if _, err := in.Write(append(line, '\n')); err != nil {
		t.Fatal(err)
	}
	a.Host = turntest.New(t, pipes{out, in}, s)
	t.Cleanup(func() {
		in.Close()
		select {
		case <-a.done:
		case <-time.After(time.Minute):
			_ = a.cmd.Process.Kill()
			t.Error("the agent did not end with its input")
		}
		if t.Failed() {
			t.Logf("stderr: %s", a.stderr)
		}
	})
	return a
}

func allow(turnrpc.ApprovalRequest) turnrpc.Approval {
	return turnrpc.Approval{Decision: turnrpc.DecisionAllowOnce}
}

// run lets the model run one command and returns what it was told.
func run(t *testing.T, command string) (*session, string) {
	t.Helper()
	var result string
	a := start(t, turntest.Script{
		Approve: allow,
		Model: func(n int, r turnrpc.ProviderRequest) []turnrpc.ProviderEvent {
			if n == 0 {
				return turntest.Use(turntest.Command(command))
			}
			result = turntest.Last(r)
			return turntest.Say("done")
		},
	})
	if _, err := a.Start(turnrpc.UserTurn{Text: "go"}).Wait(); err != nil {
		t.Fatalf("turn: %v\n%s", err, a.stderr)
	}
	return a, result
}

func TestCommandRunsAsOwner(t *testing.T) {
	_, got := run(t, `id -u; id -g; pwd; ls -l /proc/self/fd | tail -n +2 | awk '{print $9}' | tr '\n' ' '; grep -E 'NoNewPrivs|CapEff|CapBnd' /proc/self/status; env | sort`)
	t.Log(got)
	if !strings.HasPrefix(got, "exit=0\n1000\n1000\n") {
		t.Errorf("got %q", got)
	}
}

// runGuest runs the agent over stdio with nothing but this input.
func runGuest(t *testing.T, bin, input string) (output string, code int) {
	t.Helper()
	cmd := exec.Command(bin, "turn", "--rpc", "stdio", "--state", t.TempDir())
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// runAs runs the agent as an ordinary user.
func runAs(t *testing.T, bin string, uid uint32) (output string, code int) {
	t.Helper()
	cmd := exec.Command(bin, "turn", "--rpc", "stdio")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, _ := cmd.CombinedOutput()
	return string(out), cmd.ProcessState.ExitCode()
}

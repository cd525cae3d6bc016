package exec

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"msb/guest/port"
	"msb/protocol/agent"
)

func TestMain(m *testing.M) {
	LimitedMain()
	HideDescriptors()
	os.Exit(m.Run())
}

// message is what a client would have received.
type message struct {
	id      uint32
	t       agent.Type
	payload any
}

// host records what the service sends.
type host struct {
	mu   sync.Mutex
	cond sync.Cond
	got  []message
}

func newHost() *host {
	h := &host{}
	h.cond.L = &h.mu
	return h
}

func (h *host) Send(id uint32, t agent.Type, payload any) error {
	if d, ok := payload.(agent.Data); ok {
		payload = agent.Data{Data: bytes.Clone(d.Data)}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.got = append(h.got, message{id, t, payload})
	h.cond.Broadcast()
	return nil
}

func (h *host) SendBulk(uint32, byte, byte, uint64, []byte) error { panic("exec sends no bulk") }

// await waits until a message that fits has been sent, and returns it.
func (h *host) await(t *testing.T, id uint32, fits func([]message) bool) []message {
	t.Helper()
	timer := time.AfterFunc(time.Minute, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.got = append(h.got, message{id, agent.Error, "the test waited too long"})
		h.cond.Broadcast()
	})
	defer timer.Stop()
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		var mine []message
		for _, m := range h.got {
			if m.id == id {
				mine = append(mine, m)
			}
		}
		if fits(mine) {
			return mine
		}
		for _, m := range mine {
			if m.t == agent.Error {
				t.Fatalf("timeout; got %v", mine)
			}
		}
		h.cond.Wait()
	}
}

func terminal(ms []message) bool {
	return len(ms) > 0 && (ms[len(ms)-1].t == agent.ExecExited || ms[len(ms)-1].t == agent.ExecFailed)
}

func started(ms []message) bool { return len(ms) > 0 && ms[0].t == agent.ExecStarted }

func text(ms []message, t agent.Type) string {
	var b strings.Builder
	for _, m := range ms {
		if m.t == t {
			b.Write(m.payload.(agent.Data).Data)
		}
	}
	return b.String()
}

func code(t *testing.T, ms []message) int {
	t.Helper()
	p, ok := ms[len(ms)-1].payload.(agent.ExecExitedPayload)
	if !ok {
		t.Fatalf("no exit: %v", ms)
	}
	return int(p.Code)
}

func newService(t *testing.T, cfg Config) (*Service, *host) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("commands of other users need root")
	}
	h := newHost()
	cfg.Out = h
	cfg.Reaper = NewReaper()
	if cfg.Env == nil {
		cfg.Env = BaseEnv(nil)
	}
	s := New(cfg)
	t.Cleanup(func() { s.Close(); cfg.Reaper.Close() })
	return s, h
}

func shell(script string) agent.ExecRequestPayload {
	return agent.ExecRequestPayload{Cmd: "sh", Args: []string{"-c", script}}
}

func ptr[T any](v T) *T { return &v }

func TestCommands(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "plain"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "garbage"), []byte("\x00\x01"), 0o755); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name    string
		request agent.ExecRequestPayload
		stdout  string
		stderr  string
		code    int
		failed  string // kind/stage/errno name
	}{
		{name: "both outputs and the code", request: shell("echo out; echo err 1>&2; exit 3"), stdout: "out\n", stderr: "err\n", code: 3},
		{name: "scripts folder in PATH", request: shell("echo $PATH"), stdout: "/.msb/scripts:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"},
		{name: "PATH of the request", request: agent.ExecRequestPayload{Cmd: "/bin/sh", Args: []string{"-c", "echo $PATH"}, Env: []string{"PATH=/x", "broken"}}, stdout: "/.msb/scripts:/x\n"},
		{name: "home of root", request: shell("echo $HOME"), stdout: "/root\n"},
		{name: "home of the request", request: agent.ExecRequestPayload{Cmd: "sh", Args: []string{"-c", "echo $HOME"}, Env: []string{"HOME=/h"}}, stdout: "/h\n"},
		{name: "binary safe", request: shell(`printf '\000\377\r\n'`), stdout: "\x00\xff\r\n"},
		{name: "default cwd", request: shell("pwd"), stdout: "/\n"},
		{name: "cwd", request: agent.ExecRequestPayload{Cmd: "pwd", Cwd: ptr("/usr")}, stdout: "/usr\n"},
		{name: "uid and gid", request: agent.ExecRequestPayload{Cmd: "sh", Args: []string{"-c", "id -u; id -g; id -G"}, User: ptr("1234:55")}, stdout: "1234\n55\n55\n"},
		{name: "named user", request: agent.ExecRequestPayload{Cmd: "sh", Args: []string{"-c", "id -un; id -gn; echo $HOME $USER"}, User: ptr("daemon")}, stdout: "daemon\ndaemon\n/usr/sbin daemon\n"},
		{name: "blank user is root", request: agent.ExecRequestPayload{Cmd: "id", Args: []string{"-u"}, User: ptr(" ")}, stdout: "0\n"},
		{name: "killed by a signal", request: shell("kill -9 $$"), code: -1},
		{name: "session leader", request: shell(`read pid comm state ppid pgrp sid rest </proc/self/stat; test $pgrp = $sid && test $sid = $$ && echo yes`), stdout: "yes\n"},
		{name: "no inherited descriptors", request: shell("ls /proc/self/fd"), stdout: "0\n1\n2\n3\n"},
		{name: "rlimits", request: agent.ExecRequestPayload{Cmd: "sh", Args: []string{"-c", "ulimit -n; ulimit -Hn; id -u; pwd; ls /proc/self/fd | wc -l"}, User: ptr("daemon"), Cwd: ptr("/usr"),
			Rlimits: []agent.Rlimit{{Resource: "nofile", Soft: 64, Hard: 128}, {Resource: "nonsense", Soft: 1, Hard: 1}}}, stdout: "64\n128\n1\n/usr\n4\n"},
		{name: "rlimits of a missing command", request: agent.ExecRequestPayload{Cmd: "/nope", Rlimits: []agent.Rlimit{{Resource: "nofile", Soft: 64, Hard: 128}}}, failed: "not_found/Command::spawn/ENOENT"},
		{name: "soft limit above hard", request: agent.ExecRequestPayload{Cmd: "true", Rlimits: []agent.Rlimit{{Resource: "nofile", Soft: 128, Hard: 64}}}, failed: "other/Command::spawn/EINVAL"},
		{name: "not found", request: agent.ExecRequestPayload{Cmd: "/nope"}, failed: "not_found/Command::spawn/ENOENT"},
		{name: "not found in PATH", request: agent.ExecRequestPayload{Cmd: "no-such-command"}, failed: "not_found/Command::spawn/ENOENT"},
		{name: "not found on a terminal", request: agent.ExecRequestPayload{Cmd: "/nope", TTY: true}, failed: "not_found/execvp/ENOENT"},
		{name: "empty command", request: agent.ExecRequestPayload{Cmd: ""}, failed: "not_found/Command::spawn/ENOENT"},
		{name: "missing cwd", request: agent.ExecRequestPayload{Cmd: "pwd", Cwd: ptr("/nope")}, failed: "not_found/Command::spawn/ENOENT"},
		{name: "cwd is a file", request: agent.ExecRequestPayload{Cmd: "pwd", Cwd: ptr("/etc/passwd")}, failed: "bad_cwd/Command::spawn/ENOTDIR"},
		{name: "not executable", request: agent.ExecRequestPayload{Cmd: dir + "/plain"}, failed: "permission_denied/Command::spawn/EACCES"},
		{name: "no program", request: agent.ExecRequestPayload{Cmd: dir + "/garbage"}, failed: "not_executable/Command::spawn/ENOEXEC"},
		{name: "directory", request: agent.ExecRequestPayload{Cmd: "/etc"}, failed: "permission_denied/Command::spawn/EACCES"},
		{name: "too many arguments", request: agent.ExecRequestPayload{Cmd: "true", Args: []string{strings.Repeat("x", 200<<10)}}, failed: "bad_args/Command::spawn/E2BIG"},
		{name: "NUL", request: agent.ExecRequestPayload{Cmd: "true", Args: []string{"a\x00b"}}, failed: "bad_args//"},
		{name: "unknown user", request: agent.ExecRequestPayload{Cmd: "id", User: ptr("bob-the-unknown")}, failed: "other//"},
		{name: "unknown group", request: agent.ExecRequestPayload{Cmd: "id", User: ptr("root:nogroup-at-all")}, failed: "other//"},
		{name: "terminal", request: agent.ExecRequestPayload{Cmd: "sh", Args: []string{"-c", "stty size; tty >/dev/null && echo tty"}, TTY: true, Rows: 30, Cols: 100}, stdout: "30 100\r\ntty\r\n"},
		{name: "much output", request: shell("head -c 3000000 /dev/zero | tr '\\0' x"), stdout: strings.Repeat("x", 3000000)},
	}
	s, h := newService(t, Config{})
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			id := uint32(i + 1)
			s.Request(id, tt.request)
			stdin := port.Input{ID: id, Release: func() {}}
			if tt.request.Cmd == "cat" {
				s.Stdin(stdin)
			}
			ms := h.await(t, id, terminal)
			last := ms[len(ms)-1]
			if f, ok := last.payload.(agent.ExecFailedPayload); ok {
				if got := fmt.Sprintf("%s/%s/%s", f.Kind, deref(f.Stage), deref(f.ErrnoName)); got != tt.failed {
					t.Fatalf("failed %s (%s), want %q", got, f.Message, tt.failed)
				}
				return
			}
			if tt.failed != "" {
				t.Fatalf("started, want %s", tt.failed)
			}
			if got := text(ms, agent.ExecStdout); got != tt.stdout {
				t.Errorf("stdout %.200q, want %.200q", got, tt.stdout)
			}
			if got := text(ms, agent.ExecStderr); got != tt.stderr {
				t.Errorf("stderr %.200q, want %.200q", got, tt.stderr)
			}
			if got := code(t, ms); got != tt.code {
				t.Errorf("code %d, want %d", got, tt.code)
			}
			if !started(ms) {
				t.Errorf("the first message is %v", ms[0])
			}
		})
	}
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// write sends input and reports whether its credit came back.
func write(s *Service, id uint32, data string, released *sync.WaitGroup) {
	released.Add(1)
	s.Stdin(port.Input{ID: id, Data: []byte(data), Release: released.Done})
}

func TestStdin(t *testing.T) {
	s, h := newService(t, Config{})
	var released sync.WaitGroup
	s.Request(1, agent.ExecRequestPayload{Cmd: "cat"})
	write(s, 1, "hello ", &released) // before it runs
	write(s, 1, "world", &released)
	write(s, 1, "", &released)
	write(s, 1, "", &released) // clients send the end twice
	ms := h.await(t, 1, terminal)
	if got := text(ms, agent.ExecStdout); got != "hello world" {
		t.Errorf("got %q", got)
	}
	write(s, 1, "late", &released)
	released.Wait()
}

func TestStdinNobodyReads(t *testing.T) {
	s, h := newService(t, Config{})
	var released sync.WaitGroup
	s.Request(1, shell("exec 0<&-; echo closed; sleep 0.3"))
	h.await(t, 1, func(ms []message) bool { return text(ms, agent.ExecStdout) != "" })
	write(s, 1, "zzz", &released)
	ms := h.await(t, 1, terminal)
	var e agent.ExecStdinErrorPayload
	for _, m := range ms {
		if m.t == agent.ExecStdinError {
			e = m.payload.(agent.ExecStdinErrorPayload)
		}
	}
	if e.Errno == nil || *e.Errno != 32 || deref(e.ErrnoName) != "EPIPE" || e.Message != "io error: Broken pipe (os error 32)" {
		t.Errorf("stdin error %+v", e)
	}
	if code(t, ms) != 0 {
		t.Errorf("code %d", code(t, ms))
	}
	released.Wait()
}

func TestStalledStdinReleasesItsInputAtTheEnd(t *testing.T) {
	s, h := newService(t, Config{})
	var released sync.WaitGroup
	s.Request(1, shell("echo up; sleep 100"))
	h.await(t, 1, func(ms []message) bool { return text(ms, agent.ExecStdout) != "" })
	for range 20 {
		write(s, 1, strings.Repeat("x", 64<<10), &released)
	}
	s.Signal(1, 9)
	h.await(t, 1, terminal)
	released.Wait()
}

func TestTerminal(t *testing.T) {
	s, h := newService(t, Config{})
	var released sync.WaitGroup
	s.Request(1, agent.ExecRequestPayload{Cmd: "sh", Args: []string{"-c", "stty size; read x; stty size; cat"}, TTY: true, Rows: 24, Cols: 80})
	h.await(t, 1, func(ms []message) bool { return strings.Contains(text(ms, agent.ExecStdout), "24 80") })
	write(s, 1, "", &released) // nothing on a terminal
	s.Resize(1, 40, 120)
	write(s, 1, "\n", &released)
	h.await(t, 1, func(ms []message) bool { return strings.Contains(text(ms, agent.ExecStdout), "40 120") })
	write(s, 1, "x\n\x04", &released)
	ms := h.await(t, 1, terminal)
	if code(t, ms) != 0 || !strings.HasSuffix(text(ms, agent.ExecStdout), "x\r\nx\r\n") {
		t.Errorf("code %d, output %q", code(t, ms), text(ms, agent.ExecStdout))
	}
}

func TestSignalReachesTheGroup(t *testing.T) {
	s, h := newService(t, Config{})
	s.Request(1, shell("sleep 100 & echo up; wait"))
	h.await(t, 1, func(ms []message) bool { return text(ms, agent.ExecStdout) != "" })
	s.Signal(1, 9999) // ignored
	s.Signal(1, 15)
	ms := h.await(t, 1, terminal)
	if code(t, ms) != -1 {
		t.Errorf("code %d", code(t, ms))
	}
}

func TestSignalBeforeStart(t *testing.T) {
	s, h := newService(t, Config{})
	s.Request(1, agent.ExecRequestPayload{Cmd: "sleep", Args: []string{"100"}})
	s.Signal(1, 9)
	if ms := h.await(t, 1, terminal); code(t, ms) != -1 {
		t.Errorf("code %d", code(t, ms))
	}
}

// A background process keeps the session open as long as it keeps an output open, and its output arrives.
func TestBackgroundOutputBelongsToTheClient(t *testing.T) {
	s, h := newService(t, Config{})
	s.Request(1, shell("(sleep 0.2; echo late) & echo early"))
	ms := h.await(t, 1, terminal)
	if got := text(ms, agent.ExecStdout); got != "early\nlate\n" {
		t.Errorf("got %q", got)
	}
}

func TestCloseOwner(t *testing.T) {
	s, h := newService(t, Config{})
	const other = 40_000_000
	// setsid: it leaves the group and so survives the kill; it must not hold the session.
	s.Request(1, shell("setsid sleep 1000 & echo $!; sleep 100"))
	s.Request(other, shell("echo up; sleep 0.3; echo still here"))
	survivor, err := strconv.Atoi(strings.TrimSpace(text(h.await(t, 1, func(ms []message) bool { return strings.HasSuffix(text(ms, agent.ExecStdout), "\n") }), agent.ExecStdout)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Kill(survivor, unix.SIGKILL) }()
	h.await(t, other, func(ms []message) bool { return text(ms, agent.ExecStdout) != "" })
	select {
	case <-s.CloseOwner(0):
	case <-time.After(time.Minute):
		t.Fatal("the owner's commands did not end")
	}
	if s.Has(1) {
		t.Error("the command is still there")
	}
	ms := h.await(t, other, terminal)
	if got := text(ms, agent.ExecStdout); got != "up\nstill here\n" {
		t.Errorf("the other client got %q", got)
	}
	for _, m := range h.await(t, 1, func([]message) bool { return true }) {
		if m.t == agent.ExecExited {
			t.Error("a message for a client that is gone")
		}
	}
}

func TestSecondRequestTakesTheInputOver(t *testing.T) {
	s, h := newService(t, Config{})
	var released sync.WaitGroup
	s.Request(1, shell("sleep 0.3; echo first"))
	s.Request(1, agent.ExecRequestPayload{Cmd: "cat"})
	write(s, 1, "second\n", &released)
	write(s, 1, "", &released)
	h.await(t, 1, func(ms []message) bool {
		ends := 0
		for _, m := range ms {
			if m.t == agent.ExecExited {
				ends++
			}
		}
		return ends == 2 && strings.Contains(text(ms, agent.ExecStdout), "first") && strings.Contains(text(ms, agent.ExecStdout), "second")
	})
}

func TestRestricted(t *testing.T) {
	s, h := newService(t, Config{Restricted: true})
	s.Request(1, shell("grep -E 'NoNewPrivs|CapEff|CapBnd' /proc/self/status"))
	got := text(h.await(t, 1, terminal), agent.ExecStdout)
	if !strings.Contains(got, "NoNewPrivs:\t1") {
		t.Errorf("no_new_privs is not set: %s", got)
	}
	var eff, bnd uint64
	for line := range strings.Lines(got) {
		_, _ = fmt.Sscanf(line, "CapEff:\t%x", &eff)
		_, _ = fmt.Sscanf(line, "CapBnd:\t%x", &bnd)
	}
	const sysAdmin = 1 << 21
	if eff&sysAdmin != 0 || bnd&sysAdmin != 0 || eff == 0 {
		t.Errorf("capabilities: %s", got)
	}
}

func TestManyAtOnce(t *testing.T) {
	s, h := newService(t, Config{})
	const n = 200
	for id := uint32(1); id <= n; id++ {
		s.Request(id, agent.ExecRequestPayload{Cmd: "sh", Args: []string{"-c", fmt.Sprintf("exit %d", id%100)}})
	}
	for id := uint32(1); id <= n; id++ {
		if got := code(t, h.await(t, id, terminal)); got != int(id%100) {
			t.Fatalf("command %d: code %d", id, got)
		}
	}
	if s.Active() != 0 {
		t.Errorf("%d active", s.Active())
	}
}

func BenchmarkTrue(b *testing.B) {
	h := newHost()
	r := NewReaper()
	s := New(Config{Out: h, Reaper: r, Env: BaseEnv(nil)})
	defer func() { s.Close(); r.Close() }()
	for i := 0; b.Loop(); i++ {
		id := uint32(i + 1)
		s.Request(id, agent.ExecRequestPayload{Cmd: "true"})
		h.mu.Lock()
		for len(h.got) == 0 || !terminal(h.got) {
			h.cond.Wait()
		}
		h.got = h.got[:0]
		h.mu.Unlock()
	}
}

// A terminal ends with the command that it was made for, as a login does: a background job does not hold it.
func TestTerminalEndsWithItsCommand(t *testing.T) {
	s, h := newService(t, Config{})
	// Nothing that was printed before the end is lost, also when it is more than the terminal holds.
	s.Request(1, agent.ExecRequestPayload{Cmd: "sh", Args: []string{"-c", "trap '' HUP; sleep 1000 & echo $!; seq 30000; exit 7"}, TTY: true})
	ms := h.await(t, 1, terminal)
	if code(t, ms) != 7 || !strings.HasSuffix(text(ms, agent.ExecStdout), "29999\r\n30000\r\n") {
		t.Fatalf("code %d, %d bytes of output", code(t, ms), len(text(ms, agent.ExecStdout)))
	}
	var job int
	if _, err := fmt.Sscan(text(ms, agent.ExecStdout), &job); err != nil || unix.Kill(job, unix.SIGKILL) != nil {
		t.Errorf("it ended with the background job %d: %v", job, err)
	}
	// One that goes on printing ends it just as well.
	s.Request(2, agent.ExecRequestPayload{Cmd: "sh", Args: []string{"-c", "trap '' HUP; (while echo y; do sleep 0.01; done) & echo up; exit 3"}, TTY: true})
	if ms := h.await(t, 2, terminal); code(t, ms) != 3 {
		t.Errorf("code %d", code(t, ms))
	}
}

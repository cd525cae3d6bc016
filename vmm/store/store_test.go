package store

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestMain lets the test binary stand in for other processes: one that holds a lock, one that is killed
// while it creates.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "child" {
		h, err := At(os.Args[3])
		switch {
		case err != nil:
		case os.Args[2] == "lock":
			_, err = h.Lock(context.Background(), "demo")
		case os.Args[2] == "draft":
			_, err = h.Draft()
		case os.Args[2] == "mount":
			err = h.AddMount("demo", Mount{Dir: "/mnt/child", GuestPath: "/"})
		}
		fmt.Println(err)
		bufio.NewReader(os.Stdin).ReadByte()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child starts the test binary in a role; it lives until it is killed or the test ends.
func child(t *testing.T, role string, h *Home) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], "child", role, h.Root)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stdin.Close(); cmd.Process.Kill(); cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "<nil>\n" {
		t.Fatalf("%s: %q, %v", role, line, err)
	}
	return cmd
}

func kill(cmd *exec.Cmd) {
	cmd.Process.Kill()
	cmd.Wait()
}

func home(t *testing.T) *Home {
	t.Helper()
	h, err := At(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func create(t *testing.T, h *Home, name string) {
	t.Helper()
	d, err := h.Draft()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Commit(Config{Name: name, Engine: "qemu", IdleTimeout: Duration(90 * time.Second)}); err != nil {
		t.Fatal(err)
	}
}

func TestHomeFollowsTheEnvironment(t *testing.T) {
	for _, tt := range []struct {
		name           string
		env            map[string]string
		root, run, cfg string
	}{
		{"MSB_HOME", map[string]string{"MSB_HOME": "/m", "XDG_RUNTIME_DIR": "/r"}, "/m", "/m/run", "/m/config.yaml"},
		{"nothing", nil, "/h/.local/state/msb", "/h/.local/state/msb/run", "/h/.config/msb/config.yaml"},
		{"XDG", map[string]string{"XDG_STATE_HOME": "/s", "XDG_CONFIG_HOME": "/c", "XDG_RUNTIME_DIR": "/r"}, "/s/msb", "/r/msb", "/c/msb/config.yaml"},
		{"relative XDG is ignored", map[string]string{"XDG_STATE_HOME": "s", "XDG_RUNTIME_DIR": "r"}, "/h/.local/state/msb", "/h/.local/state/msb/run", "/h/.config/msb/config.yaml"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, k := range []string{"MSB_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"} {
				t.Setenv(k, tt.env[k])
			}
			t.Setenv("HOME", "/h")
			h, err := Open()
			if err != nil || h.Root != tt.root || h.Run != tt.run || h.Config != tt.cfg {
				t.Errorf("%+v, %v", h, err)
			}
		})
	}
	t.Run("no HOME", func(t *testing.T) {
		for _, k := range []string{"MSB_HOME", "XDG_STATE_HOME", "HOME"} {
			t.Setenv(k, "")
		}
		if _, err := Open(); err == nil || !strings.Contains(err.Error(), "MSB_HOME") {
			t.Errorf("error %v", err)
		}
	})
}

func TestValidateName(t *testing.T) {
	for _, good := range []string{"a", "demo", "Demo-1_x.y", "7", strings.Repeat("x", 63)} {
		if err := ValidateName(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"", ".", "..", "-x", "_x", ".x", "a/b", "../x", "a b", "a\nb", "ä", "a\x00", strings.Repeat("x", 64), strings.Repeat("x", 300)} {
		if err := ValidateName(bad); !errors.Is(err, ErrName) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestSocketPaths(t *testing.T) {
	h, _ := At("/m")
	const dir = "/m/run/sandboxes/2a97516c354b68848cdbd8f5/"
	for got, want := range map[string]string{
		h.AgentSocket("demo"): dir + "agent.sock", h.ControlSocket("demo"): dir + "control.sock", h.TurnSocket("demo"): dir + "turn.sock",
		h.LockPath("demo"): "/m/run/locks/2a97516c354b68848cdbd8f54a226a0a.lock",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	t.Setenv("MSB_HOME", "/m")
	if err := h.CheckSockets("demo"); err != nil {
		t.Error(err)
	}
	long, _ := At("/" + strings.Repeat("x", 80))
	if err := long.CheckSockets("demo"); err == nil || !strings.Contains(err.Error(), "MSB_HOME") {
		t.Errorf("error %v", err)
	}
	t.Setenv("MSB_HOME", "")
	if err := long.CheckSockets("demo"); err == nil || !strings.Contains(err.Error(), "XDG_RUNTIME_DIR") {
		t.Errorf("error %v", err)
	}
	// 107 bytes are a path that the system takes, 108 are not.
	fits := "/" + strings.Repeat("y", 106)
	if err := CheckSocketPath(fits); err != nil {
		t.Error(err)
	}
	if err := CheckSocketPath(fits + "y"); err == nil {
		t.Error("108 bytes accepted")
	}
}

func TestSandboxesOnDisk(t *testing.T) {
	h := home(t)
	if names, err := h.List(); len(names) > 0 || err != nil {
		t.Errorf("an empty home has %v, %v", names, err)
	}
	create(t, h, "demo")
	create(t, h, "another")
	c, err := h.Load("demo")
	if err != nil || c.Name != "demo" || time.Duration(c.IdleTimeout) != 90*time.Second || c.Version != ConfigVersion {
		t.Errorf("%+v, %v", c, err)
	}
	d, err := h.Draft()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Commit(Config{Name: "demo"}); !errors.Is(err, ErrExists) {
		t.Errorf("second demo: %v", err)
	}
	if err := d.Discard(); err != nil {
		t.Error(err)
	}
	if _, err := h.Load("nobody"); !errors.Is(err, ErrNotFound) {
		t.Errorf("nobody: %v", err)
	}
	if _, err := h.Load("../demo"); !errors.Is(err, ErrName) {
		t.Errorf("../demo: %v", err)
	}
	if names, err := h.List(); !slices.Equal(names, []string{"another", "demo"}) || err != nil {
		t.Errorf("%v, %v", names, err)
	}
	if err := h.Remove("demo"); err != nil {
		t.Error(err)
	}
	if err := h.Remove("demo"); !errors.Is(err, ErrNotFound) {
		t.Errorf("second removal: %v", err)
	}
	if h.Exists("demo") {
		t.Error("demo is still there")
	}
	entries, _ := os.ReadDir(h.SandboxesDir())
	if len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
}

func TestConfigsThatCannotBeRead(t *testing.T) {
	h := home(t)
	for name, text := range map[string]string{
		"garbage": "{", "empty": "", "other": `{"version":1,"name":"demo"}`, "newer": `{"version":99,"name":"newer"}`,
	} {
		os.MkdirAll(h.SandboxDir(name), 0o700)
		os.WriteFile(filepath.Join(h.SandboxDir(name), configFile), []byte(text), 0o600)
		if _, err := h.Load(name); err == nil || errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWhatAKilledCreationLeftIsSwept(t *testing.T) {
	h := home(t)
	cmd := child(t, "draft", h)
	other, err := h.Draft() // sweeps, but not what a living process makes
	if err != nil {
		t.Fatal(err)
	}
	defer other.Discard()
	if entries, _ := os.ReadDir(h.SandboxesDir()); len(entries) != 2 {
		t.Fatalf("%v", entries)
	}
	kill(cmd)
	third, err := h.Draft()
	if err != nil {
		t.Fatal(err)
	}
	defer third.Discard()
	if entries, _ := os.ReadDir(h.SandboxesDir()); len(entries) != 2 {
		t.Errorf("%v", entries)
	}
}

func TestWriteFileIsAllOrNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x")
	for _, text := range []string{"one", "two"} {
		if err := WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if b, _ := os.ReadFile(path); string(b) != text {
			t.Errorf("%q", b)
		}
	}
	if st, _ := os.Stat(path); st.Mode().Perm() != 0o600 {
		t.Error(st.Mode())
	}
	if err := WriteFile(filepath.Join(dir, "none", "x"), nil, 0o600); err == nil {
		t.Error("wrote into a directory that is not there")
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
}

func TestLockIsHeldAcrossProcessesAndFreedByDeath(t *testing.T) {
	h := home(t)
	cmd := child(t, "lock", h)
	if !h.Locked("demo") {
		t.Error("not seen as locked")
	}
	if _, err := h.Lock(context.Background(), "demo"); !errors.Is(err, ErrLocked) {
		t.Errorf("second lock: %v", err)
	}
	kill(cmd)
	if h.Locked("demo") {
		t.Error("still locked after its holder died")
	}
	l, err := h.Lock(context.Background(), "demo")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Remove(); err != nil {
		t.Error(err)
	}
	if l, err = h.Lock(context.Background(), "demo"); err != nil {
		t.Fatal(err)
	}
	l.Unlock()
	if h.Locked("never") {
		t.Error("a sandbox that never ran is locked")
	}
}

// A damaged record costs what it said, not the sandbox.
func TestDamagedState(t *testing.T) {
	h := home(t)
	create(t, h, "demo")
	for _, damage := range []string{"", "{", "null", "{}", "[1]", "\x00\x01"} {
		if err := os.WriteFile(filepath.Join(h.SandboxDir("demo"), stateFile), []byte(damage), 0o600); err != nil {
			t.Fatal(err)
		}
		if s, err := h.State("demo"); err != nil || s.Status != Crashed || !s.Forced || s.Reason == "" || s.RuntimePID != 0 {
			t.Errorf("%q: %+v, %v", damage, s, err)
		}
	}
}

// What the record says counts only as far as the lock proves it.
func TestStateIsWhatTheLockProves(t *testing.T) {
	h := home(t)
	create(t, h, "demo")
	self, err := ProcessStart(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	live := State{Status: Running, RuntimePID: os.Getpid(), RuntimeStart: self, EnginePID: 1, Generation: 9}
	gone := live
	gone.RuntimeStart++ // another process had the pid
	for _, tt := range []struct {
		name   string
		record *State
		locked bool
		want   Status
		pid    int
	}{
		{"never ran", nil, false, Stopped, 0},
		{"lock and no record", nil, true, Starting, 0},
		{"running", &live, true, Running, os.Getpid()},
		{"killed", &live, false, Crashed, 0},
		{"a new runtime after a killed one", &gone, true, Starting, 0},
		{"stopped", &State{Status: Stopped, Reason: "idle"}, false, Stopped, 0},
		{"crashed", &State{Status: Crashed, Reason: "panic"}, false, Crashed, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			os.Remove(filepath.Join(h.SandboxDir("demo"), stateFile))
			if tt.record != nil {
				if err := h.SaveState("demo", *tt.record); err != nil {
					t.Fatal(err)
				}
			}
			if tt.locked {
				l, err := h.Lock(context.Background(), "demo")
				if err != nil {
					t.Fatal(err)
				}
				defer l.Unlock()
			}
			s, err := h.State("demo")
			if err != nil || s.Status != tt.want || s.RuntimePID != tt.pid {
				t.Errorf("%+v, %v", s, err)
			}
			if s.Status == Crashed && s.Reason == "" {
				t.Error("crashed without a reason")
			}
		})
	}
}

func TestStaleSocketsAreRemoved(t *testing.T) {
	h := home(t)
	t.Setenv("MSB_HOME", h.Root)
	if err := os.MkdirAll(h.SocketDir("demo"), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: h.AgentSocket("demo"), Net: "unix"})
	if err != nil {
		t.Skipf("%v (a long temporary directory)", err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	if err := h.PrepareSockets("demo"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(h.AgentSocket("demo")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the stale socket is still there: %v", err)
	}
	if st, err := os.Stat(h.SocketDir("demo")); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
}

func TestMountsOfLivingProcesses(t *testing.T) {
	h := home(t)
	create(t, h, "demo")
	if err := h.AddMount("demo", Mount{Dir: "/mnt/own", GuestPath: "/home/dev"}); err != nil {
		t.Fatal(err)
	}
	cmd := child(t, "mount", h)
	dirs := func() (all []string) {
		mounts, err := h.Mounts("demo")
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range mounts {
			all = append(all, m.Dir)
		}
		return all
	}
	if got := dirs(); !slices.Equal(got, []string{"/mnt/child", "/mnt/own"}) {
		t.Errorf("%v", got)
	}
	if name, m, ok := h.FindMount("/mnt/child/"); !ok || name != "demo" || m.PID != cmd.Process.Pid {
		t.Errorf("%v %+v %v", name, m, ok)
	}
	kill(cmd)
	if got := dirs(); !slices.Equal(got, []string{"/mnt/own"}) {
		t.Errorf("%v", got)
	}
	if err := h.RemoveMount("demo", "/mnt/own"); err != nil {
		t.Error(err)
	}
	if got := dirs(); len(got) > 0 {
		t.Errorf("%v", got)
	}
	if mounts, err := h.Mounts("nobody"); mounts == nil || len(mounts) > 0 || err != nil {
		t.Errorf("%v, %v", mounts, err)
	}
}

func TestStockSocketsAreFoundByName(t *testing.T) {
	user, err := os.MkdirTemp("", "h") // short: the path holds a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(user) })
	t.Setenv("HOME", user)
	if _, err := StockAgentSocket("demo"); !errors.Is(err, ErrNotFound) {
		t.Errorf("error %v", err)
	}
	listen := func(path string) {
		t.Helper()
		os.MkdirAll(filepath.Dir(path), 0o700)
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
	}
	legacy := filepath.Join(user, ".microsandbox/run/agent", nameHash("demo", 16)+".sock")
	listen(legacy)
	if got, err := StockAgentSocket("demo"); got != legacy || err != nil {
		t.Errorf("%s, %v", got, err)
	}
	current := filepath.Join(user, ".microsandbox/run/sandboxes/2a97516c354b68848cdbd8f5/agent.sock")
	listen(current)
	if got, err := StockAgentSocket("demo"); got != current || err != nil {
		t.Errorf("%s, %v", got, err)
	}
	// A home of a stock installation elsewhere: both programs have MSB_HOME in common. It is not ours to write in.
	other := filepath.Join(user, "o")
	t.Setenv("MSB_HOME", other)
	t.Setenv("XDG_STATE_HOME", "")
	t.Setenv("XDG_CONFIG_HOME", "")
	if h, err := Open(); err != nil || h.Root != other {
		t.Errorf("%+v, %v", h, err)
	}
	os.MkdirAll(filepath.Join(other, "db"), 0o700)
	if err := os.WriteFile(filepath.Join(other, "db", "msb.db"), []byte("SQLite format 3"), 0o600); err != nil {
		t.Fatal(err)
	}
	if h, err := Open(); err != nil || h.Root != filepath.Join(user, ".local/state/msb") {
		t.Errorf("%+v, %v", h, err)
	}
	elsewhere := filepath.Join(other, "run/sandboxes/2a97516c354b68848cdbd8f5/agent.sock")
	listen(elsewhere)
	if got, err := StockAgentSocket("demo"); got != elsewhere || err != nil {
		t.Errorf("%s, %v", got, err)
	}
}

func TestAlive(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	start, err := ProcessStart(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if !Alive(cmd.Process.Pid, start) || Alive(cmd.Process.Pid, start+1) || Alive(0, 0) || Alive(-1, 0) {
		t.Error("wrong about a living process")
	}
	cmd.Process.Kill()
	for deadline := time.Now().Add(time.Minute); Alive(cmd.Process.Pid, start); { // a zombie is not alive
		if time.Now().After(deadline) {
			t.Fatal("a killed process is alive")
		}
		time.Sleep(time.Millisecond)
	}
	cmd.Wait()
	if Alive(cmd.Process.Pid, start) {
		t.Error("a reaped process is alive")
	}
}

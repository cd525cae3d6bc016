package vmm

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"msb/protocol/agent"
	"msb/protocol/frame"
	"msb/vmm/store"
)

const patience = time.Minute

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// client connects as any client does.
func client(t *testing.T, socket string) (net.Conn, *frame.Reader) {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(patience))
	var ids [8]byte
	if _, err := io.ReadFull(conn, ids[:]); err != nil || binary.BigEndian.Uint32(ids[:]) == 0 {
		t.Fatalf("prologue %x, %v", ids, err)
	}
	frames := frame.NewReader(conn)
	if _, err := frames.Next(); err != nil {
		t.Fatal(err)
	}
	return conn, frames
}

// run asks for a command and returns what the guest answers first.
func run(t *testing.T, socket, cmd string) (net.Conn, *frame.Reader) {
	t.Helper()
	conn, frames := client(t, socket)
	b, err := agent.AppendFrame(nil, 5, agent.ExecRequest, 9, agent.ExecRequestPayload{Cmd: cmd})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(b); err != nil {
		t.Fatal(err)
	}
	return conn, frames
}

// becomes waits until the sandbox is in a state.
func becomes(t *testing.T, h *Host, name string, want store.Status) Sandbox {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		s, err := h.Inspect(context.Background(), name)
		if err == nil && s.State == want {
			return s
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s is %s (%s), %v; want %s", name, s.State, s.Reason, err, want)
		}
	}
}

func TestLifeOfASandbox(t *testing.T) {
	h, ctx := newHost(t), within(t)
	var events []Event
	s, err := h.Create(ctx, CreateOptions{Name: "demo", Image: "plain", Labels: map[string]string{"a": "b"}}, func(e Event) { events = append(events, e) })
	if err != nil {
		t.Fatal(err)
	}
	if s.State != store.Running || s.Generation != 9 || s.Accel != "tcg" || s.RuntimePID == 0 || s.EnginePID != s.RuntimePID || s.ImageSHA256 != "5eed" ||
		s.Boot.Total <= 0 || s.AgentVersion != "scripted?[2J" || s.Hostname != "demo" || s.User != "dev" || s.Mounts == nil {
		t.Errorf("%+v", s)
	}
	warned := false
	for _, e := range events {
		warned = warned || e.Warning && strings.Contains(e.Text, "no working KVM")
	}
	if !warned {
		t.Errorf("no warning among %v", events)
	}
	if st, err := os.Stat(s.AgentSocket); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v", st, err)
	}

	if _, err := h.Create(ctx, CreateOptions{Name: "demo"}, nil); !errors.Is(err, ErrExists) {
		t.Errorf("second create: %v", err)
	}
	if _, err := h.Start(ctx, "demo", StartOptions{}, nil); !errors.Is(err, ErrRunning) {
		t.Errorf("start of a running sandbox: %v", err)
	}
	if err := h.Remove(ctx, "demo", RemoveOptions{}); !errors.Is(err, ErrRunning) {
		t.Errorf("removal of a running sandbox: %v", err)
	}
	if err := h.Reset(ctx, "demo", nil); !errors.Is(err, ErrRunning) {
		t.Errorf("reset of a running sandbox: %v", err)
	}
	second := exec.Command(os.Args[0], "runtime", "demo")
	second.Env = append(os.Environ(), h.Home.Environ()...)
	if out, err := second.CombinedOutput(); err == nil || !strings.Contains(string(out), "another process") {
		t.Errorf("second runtime: %v, %s", err, out)
	}
	if now := becomes(t, h, "demo", store.Running); now.RuntimePID != s.RuntimePID {
		t.Error("the second runtime got in")
	}

	if err := h.Stop(ctx, "demo", StopOptions{}); err != nil {
		t.Fatal(err)
	}
	s = becomes(t, h, "demo", store.Stopped)
	if s.Forced || s.RuntimePID != 0 || s.Generation != 0 {
		t.Errorf("%+v", s)
	}
	if _, err := os.Lstat(s.AgentSocket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
	if err := h.Stop(ctx, "demo", StopOptions{}); !errors.Is(err, ErrNotRunning) {
		t.Errorf("second stop: %v", err)
	}
	disk := h.Home.DiskPath("demo", "qemu")
	before, _ := os.ReadFile(disk)
	if s, err = h.Start(ctx, "demo", StartOptions{}, nil); err != nil || s.State != store.Running {
		t.Fatalf("%+v, %v", s, err)
	}
	if err := h.Stop(ctx, "demo", StopOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := h.Reset(ctx, "demo", nil); err != nil {
		t.Fatal(err)
	}
	if after, err := os.ReadFile(disk); err != nil || bytes.Equal(before, after) {
		t.Errorf("reset left the disk as it was, %v", err)
	}
	if err := h.Remove(ctx, "demo", RemoveOptions{}); err != nil {
		t.Fatal(err)
	}
	if all, err := h.List(ctx); err != nil || len(all) > 0 {
		t.Errorf("%v, %v", all, err)
	}
	if err := h.Remove(ctx, "demo", RemoveOptions{Force: true}); !errors.Is(err, ErrNotFound) {
		t.Errorf("second removal: %v", err)
	}
}

func TestUnknownSandbox(t *testing.T) {
	h, ctx := newHost(t), within(t)
	for name, do := range map[string]func(string) error{
		"inspect": func(n string) error { _, err := h.Inspect(ctx, n); return err },
		"start":   func(n string) error { _, err := h.Start(ctx, n, StartOptions{}, nil); return err },
		"stop":    func(n string) error { return h.Stop(ctx, n, StopOptions{}) },
		"remove":  func(n string) error { return h.Remove(ctx, n, RemoveOptions{}) },
		"reset":   func(n string) error { return h.Reset(ctx, n, nil) },
	} {
		if err := do("nobody"); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
		if err := do("../x"); !errors.Is(err, store.ErrName) {
			t.Errorf("%s of ../x: %v", name, err)
		}
	}
}

// A creation that fails leaves nothing, and says why.
func TestFailedCreationLeavesNothing(t *testing.T) {
	for image, why := range map[string]string{"missing": "no such image", "dies-at-boot": "kernel panic: no init", "no-kernel": "msb image build"} {
		t.Run(image, func(t *testing.T) {
			h := newHost(t)
			_, err := h.Create(within(t), CreateOptions{Name: "demo", Image: image}, nil)
			if err == nil || !strings.Contains(err.Error(), why) {
				t.Errorf("error %v", err)
			}
			if image == "dies-at-boot" && !strings.Contains(err.Error(), "Linux version") {
				t.Errorf("no console in %v", err)
			}
			if strings.ContainsRune(err.Error(), 0x1b) {
				t.Errorf("control characters of the guest in %q", err)
			}
			nothingLeft(t, h)
		})
	}
}

func nothingLeft(t *testing.T, h *Host) {
	t.Helper()
	if h.Home.Exists("demo") || h.Home.Locked("demo") {
		t.Error("something is left of the sandbox")
	}
	for _, dir := range []string{h.Home.SandboxesDir(), h.Home.SocketDir("demo")} {
		if entries, _ := os.ReadDir(dir); len(entries) > 0 {
			t.Errorf("left in %s: %v", dir, entries)
		}
	}
}

func TestInterruptedCreationLeavesNothing(t *testing.T) {
	h := newHost(t)
	ctx, cancel := context.WithCancel(within(t))
	_, err := h.Create(ctx, CreateOptions{Name: "demo", Image: "silent"}, func(e Event) {
		if strings.Contains(e.Text, "booting") {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	nothingLeft(t, h)
}

func TestInterruptedStartLeavesItStopped(t *testing.T) {
	h := newHost(t)
	if _, err := h.Create(within(t), CreateOptions{Name: "demo", Image: "silent", NoStart: true}, nil); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(within(t))
	_, err := h.Start(ctx, "demo", StartOptions{}, func(e Event) {
		if strings.Contains(e.Text, "booting") {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if s := becomes(t, h, "demo", store.Stopped); s.RuntimePID != 0 || h.Home.Locked("demo") {
		t.Errorf("%+v", s)
	}
	// A start can be stopped by somebody else too.
	failed := make(chan error, 1)
	go func() {
		_, err := h.Start(context.Background(), "demo", StartOptions{}, nil)
		failed <- err
	}()
	becomes(t, h, "demo", store.Starting)
	if err := h.Stop(within(t), "demo", StopOptions{}); err != nil && !errors.Is(err, ErrNotRunning) {
		t.Errorf("stop: %v", err)
	}
	if err := <-failed; err == nil {
		t.Error("the stopped start succeeded")
	}
	becomes(t, h, "demo", store.Stopped)
}

func TestStopByForceSaysSo(t *testing.T) {
	for name, o := range map[string]StopOptions{"timeout": {Timeout: 200 * time.Millisecond}, "asked for": {Force: true}} {
		t.Run(name, func(t *testing.T) {
			h, ctx := newHost(t), within(t)
			if _, err := h.Create(ctx, CreateOptions{Name: "demo", Image: "never-stops"}, nil); err != nil {
				t.Fatal(err)
			}
			if err := h.Stop(ctx, "demo", o); !errors.Is(err, ErrForced) {
				t.Errorf("error %v", err)
			}
			if s := becomes(t, h, "demo", store.Stopped); !s.Forced || s.Reason == "" {
				t.Errorf("%+v", s)
			}
		})
	}
}

// What becomes of a sandbox whose machine ends without msb's doing.
func TestUnexpectedEnds(t *testing.T) {
	for cmd, want := range map[string]struct {
		state  store.Status
		reason string
	}{
		"panic":    {store.Crashed, "kernel panic: test"},
		"hang-up":  {store.Crashed, "lost the link"},
		"poweroff": {store.Stopped, "powered itself off"},
	} {
		t.Run(cmd, func(t *testing.T) {
			h, ctx := newHost(t), within(t)
			s, err := h.Create(ctx, CreateOptions{Name: "demo", Image: "plain"}, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, frames := run(t, s.AgentSocket, cmd)
			if f, err := frames.Next(); err == nil {
				t.Errorf("got a frame for id %d, want the end", f.ID)
			}
			s = becomes(t, h, "demo", want.state)
			if !strings.Contains(s.Reason, want.reason) {
				t.Errorf("reason %q", s.Reason)
			}
			if _, err := os.Lstat(s.AgentSocket); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the socket is still there: %v", err)
			}
			if s, err = h.Start(ctx, "demo", StartOptions{}, nil); err != nil || s.State != store.Running {
				t.Errorf("start after it: %+v, %v", s, err)
			}
		})
	}
}

// Writes that the host failed are lost however orderly the guest powers off: stop says so.
func TestStopSaysThatTheDiskFailed(t *testing.T) {
	h, ctx := newHost(t), within(t)
	s, err := h.Create(ctx, CreateOptions{Name: "demo", Image: "plain"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, frames := run(t, s.AgentSocket, "disk-full")
	if _, err := frames.Next(); err != nil {
		t.Fatal(err)
	}
	for s.DiskError == "" { // while it runs, within ctx
		if s, err = h.Inspect(ctx, "demo"); err != nil || ctx.Err() != nil {
			t.Fatalf("the failing disk is not shown: %v, %v", err, ctx.Err())
		}
		time.Sleep(5 * time.Millisecond)
	}
	if !s.Running() || !strings.Contains(s.DiskError, "No space left") {
		t.Errorf("while it runs: %+v", s)
	}
	if err := h.Stop(ctx, "demo", StopOptions{}); !errors.Is(err, ErrForced) || !strings.Contains(err.Error(), "No space left") {
		t.Errorf("stop: %v", err)
	}
	if s := becomes(t, h, "demo", store.Stopped); !s.Forced || !strings.Contains(s.Reason, "No space left") {
		t.Errorf("%+v", s)
	}
	if s, err = h.Start(ctx, "demo", StartOptions{}, nil); err != nil || s.Forced {
		t.Errorf("start after it: %+v, %v", s, err)
	}
}

func TestKilledRuntimeIsSeenAndReplaced(t *testing.T) {
	h, ctx := newHost(t), within(t)
	s, err := h.Create(ctx, CreateOptions{Name: "demo", Image: "plain"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(s.RuntimePID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s = becomes(t, h, "demo", store.Crashed)
	if !strings.Contains(s.Reason, "killed") || !s.Forced {
		t.Errorf("%+v", s)
	}
	if _, err := os.Lstat(s.AgentSocket); err != nil {
		t.Errorf("the test needs a stale socket: %v", err)
	}
	if s, err = h.Start(ctx, "demo", StartOptions{}, nil); err != nil || s.State != store.Running {
		t.Fatalf("%+v, %v", s, err)
	}
	client(t, s.AgentSocket)
}

func TestSignalsStopInOrder(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		h, ctx := newHost(t), within(t)
		s, err := h.Create(ctx, CreateOptions{Name: "demo", Image: "plain"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		syscall.Kill(s.RuntimePID, syscall.SIGHUP) // means nothing to it
		if ignored := ignoredSignals(t, s.RuntimePID); ignored != 0 {
			t.Errorf("its children inherit ignored signals: %b", ignored)
		}
		syscall.Kill(s.RuntimePID, sig)
		if s = becomes(t, h, "demo", store.Stopped); s.Forced {
			t.Errorf("%s: %+v", sig, s)
		}
	}
}

// ignoredSignals is the set of the signals 1 to 31 that a process ignores; those above belong to thread libraries.
func ignoredSignals(t *testing.T, pid int) uint64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "\nSigIgn:\t")
	set, err := strconv.ParseUint(strings.Fields(rest)[0], 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return set & (1<<31 - 1)
}

func TestLimits(t *testing.T) {
	for reason, o := range map[string]CreateOptions{
		"idle for 3s":             {IdleTimeout: 3 * time.Second},
		"ran for 3s, its maximum": {MaxDuration: 3 * time.Second},
	} {
		t.Run(reason, func(t *testing.T) {
			h := newHost(t)
			o.Name, o.Image = "demo", "plain"
			if _, err := h.Create(within(t), o, nil); err != nil {
				t.Fatal(err)
			}
			if s := becomes(t, h, "demo", store.Stopped); s.Reason != reason || s.Forced {
				t.Errorf("%+v", s)
			}
		})
	}
	t.Run("a running command is not idle", func(t *testing.T) {
		h, ctx := newHost(t), within(t)
		s, err := h.Create(ctx, CreateOptions{Name: "demo", Image: "plain", IdleTimeout: 4 * time.Second}, nil)
		if err != nil {
			t.Fatal(err)
		}
		conn, _ := run(t, s.AgentSocket, "sleep")
		time.Sleep(6 * time.Second) // what is tested is that time passes without effect
		if s, err := h.Inspect(ctx, "demo"); err != nil || s.State != store.Running {
			t.Errorf("%s (%s), %v", s.State, s.Reason, err)
		}
		conn.Close()
		becomes(t, h, "demo", store.Stopped)
	})
}

func TestOutputOfCommandsIsLogged(t *testing.T) {
	h, ctx := newHost(t), within(t)
	s, err := h.Create(ctx, CreateOptions{Name: "demo", Image: "plain"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, frames := run(t, s.AgentSocket, "echo")
	for range 2 {
		if _, err := frames.Next(); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.Stop(ctx, "demo", StopOptions{}); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(h.Home.ExecLog("demo"))
	if err != nil {
		t.Fatal(err)
	}
	var line struct {
		T  time.Time
		S  string
		D  string
		ID uint32
	}
	if err := json.Unmarshal(b, &line); err != nil || line.S != "stdout" || line.D != "hello\ufffd\n" || line.ID != 5 || line.T.IsZero() {
		t.Errorf("%s: %+v, %v", b, line, err)
	}
}

func TestBrokenSandboxIsListed(t *testing.T) {
	h, ctx := newHost(t), within(t)
	if _, err := h.Create(ctx, CreateOptions{Name: "good", Image: "plain", NoStart: true}, nil); err != nil {
		t.Fatal(err)
	}
	os.MkdirAll(h.Home.SandboxDir("bad"), 0o700)
	os.WriteFile(h.Home.SandboxDir("bad")+"/config.json", []byte("{"), 0o600)
	all, err := h.List(ctx)
	if err != nil || len(all) != 2 || all[0].State != store.Broken || all[0].Reason == "" || all[1].State != store.Stopped {
		t.Errorf("%+v, %v", all, err)
	}
	if err := h.Remove(ctx, "bad", RemoveOptions{}); err != nil {
		t.Error(err)
	}
}

// A sandbox whose config is damaged or gone can be stopped and removed, as ls shows it.
func TestBrokenSandboxIsStoppedAndRemoved(t *testing.T) {
	h, ctx := newHost(t), within(t)
	if err := os.MkdirAll(h.Home.SandboxDir("empty"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := h.Remove(ctx, "empty", RemoveOptions{Force: true}); err != nil {
		t.Errorf("without a config: %v", err)
	}
	if _, err := h.Create(ctx, CreateOptions{Name: "demo", Image: "plain"}, nil); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(h.Home.SandboxDir("demo")+"/config.json", []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := h.Stop(ctx, "demo", StopOptions{}); err != nil {
		t.Errorf("stop: %v", err)
	}
	if h.Home.Locked("demo") {
		t.Error("it still runs")
	}
	if err := h.Remove(ctx, "demo", RemoveOptions{}); err != nil {
		t.Errorf("remove: %v", err)
	}
}

func TestSocketPathTooLong(t *testing.T) {
	home, err := store.At("/" + strings.Repeat("x", 90))
	if err != nil {
		t.Fatal(err)
	}
	_, err = New(home, Deps{}).Create(within(t), CreateOptions{Name: "demo"}, nil)
	if err == nil || !strings.Contains(err.Error(), "socket path") {
		t.Errorf("error %v", err)
	}
}

func TestCreateOptions(t *testing.T) {
	ok := func(o CreateOptions) CreateOptions { o.Name = "demo"; return o }
	for name, o := range map[string]CreateOptions{
		"-m 1":                     {MemoryMiB: 1},
		"negative memory":          {MemoryMiB: -5},
		"memory above maximum":     {MemoryMiB: 1024, MaxMemoryMiB: 512},
		"petabytes":                {MemoryMiB: 1 << 30},
		"negative CPUs":            {CPUs: -1},
		"CPUs above maximum":       {CPUs: 4, MaxCPUs: 2},
		"too many CPUs":            {CPUs: 10000},
		"tiny disk":                {RootDisk: 1},
		"huge disk":                {RootDisk: 1 << 60},
		"engine":                   {Engine: "xen"},
		"accelerator":              {Accel: "hvf"},
		"environment":              {Env: []string{"NOVALUE"}},
		"environment name":         {Env: []string{"=x"}},
		"NUL in environment":       {Env: []string{"A=\x00"}},
		"relative directory":       {Workdir: "home"},
		"newline in directory":     {Workdir: "/a\nb"},
		"user":                     {User: "-x"},
		"host name":                {Hostname: "a_b"},
		"long host name":           {Hostname: strings.Repeat("a", 64)},
		"kernel that is not there": {Kernel: "/nonexistent/vmlinuz"},
		"modules without kernel":   {Modules: "/lib/modules"},
		"negative timeout":         {IdleTimeout: -1},
		"label":                    {Labels: map[string]string{"": "x"}},
		"control in label":         {Labels: map[string]string{"a": "\x1b"}},
	} {
		if _, err := ok(o).config(); !errors.Is(err, ErrOption) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := (CreateOptions{Name: "a/b"}).config(); !errors.Is(err, store.ErrName) {
		t.Errorf("name: %v", err)
	}
	c, err := (CreateOptions{Name: "My_box.", MaxMemoryMiB: 2048, Env: []string{"A=b=c", "E="}}).config()
	if err != nil || c.Hostname != "My-box" || c.MemoryMiB != DefaultMemoryMiB || c.MaxMemoryMiB != 2048 || c.CPUs != 1 || c.MaxCPUs != 1 || !c.DualPort {
		t.Errorf("%+v, %v", c, err)
	}
}

package fusefs_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"msb/fusefs"
)

// outageLimit is how long anything may take once the sandbox is gone: far less
// than the requests of newSandbox are given.
const outageLimit = patience

func TestSandboxDies(t *testing.T) {
	s := newSandbox(t, nil)
	must(t, os.WriteFile(s.at("before"), []byte("kept"), 0o644))
	f, err := os.Create(s.at("victim"))
	must(t, err)
	defer f.Close()
	reader, err := os.Open(s.at("before"))
	must(t, err)
	defer reader.Close()

	written := make(chan error, 1)
	go func() {
		block := make([]byte, 1<<20)
		for {
			if _, err := f.Write(block); err != nil {
				written <- err
				return
			}
		}
	}()
	waitFor(t, "data in the guest", func() bool {
		info, err := os.Stat(s.in("victim"))
		return err == nil && info.Size() > 4<<20
	})
	s.agent.kill()
	fast(t, outageLimit, "the write under way", func() {
		if err := <-written; !errors.Is(err, syscall.ENOTCONN) && !errors.Is(err, syscall.EIO) {
			t.Errorf("write: %v", err)
		}
	})
	fast(t, outageLimit, "fsync", func() {
		if err := f.Sync(); err == nil {
			t.Error("fsync: lost data is not reported")
		}
	})
	fast(t, outageLimit, "ls", func() {
		out, err := exec.Command("ls", "-l", s.dir).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "not connected") {
			t.Errorf("ls: %v %s", err, out)
		}
	})
	fast(t, outageLimit, "create", func() {
		_, err := os.Create(s.at("late"))
		wantErrno(t, "create", err, syscall.ENOTCONN)
	})
	fast(t, outageLimit, "df", func() {
		if out, err := exec.Command("df", s.dir).CombinedOutput(); err != nil {
			t.Errorf("df: %v %s", err, out)
		}
	})

	// It comes back where it was.
	s.startGuest()
	waitFor(t, "the mount to heal", func() bool { _, err := os.Stat(s.at("before")); return err == nil })
	wantFile(t, s.at("before"), []byte("kept"))
	got, err := io.ReadAll(reader)
	must(t, err)
	if string(got) != "kept" {
		t.Errorf("file that was open: %q", got)
	}
	if err := f.Close(); err == nil {
		t.Error("close: lost data is not reported")
	}
	must(t, os.WriteFile(s.at("after"), []byte("new"), 0o644))
	wantFile(t, s.in("after"), []byte("new"))

	// And umount works while it is gone.
	reader.Close()
	s.agent.kill()
	fast(t, outageLimit, "unmount", func() { must(t, fusefs.Unmount(s.dir)) })
	s.mount.expect("gone")
}

func TestOpenFileThatChangedMeanwhile(t *testing.T) {
	eachBackend(t, openFileThatChangedMeanwhile)
}

func openFileThatChangedMeanwhile(t *testing.T, stock bool) {
	s := newSandbox(t, func(s *sandbox) { s.stock = stock })
	must(t, os.WriteFile(s.at("f"), bytes.Repeat([]byte("first"), 1<<15), 0o644))
	f, err := os.Open(s.at("f"))
	must(t, err)
	defer f.Close()
	if _, err := f.Stat(); err != nil {
		t.Fatal(err)
	}
	s.agent.kill()
	must(t, os.Rename(s.in("f"), s.in("g")))
	must(t, os.WriteFile(s.in("f"), []byte("a different file"), 0o644))
	s.startGuest()
	waitFor(t, "the mount to heal", func() bool { _, err := os.Stat(s.at("g")); return err == nil })
	if data, err := io.ReadAll(f); err == nil && bytes.Contains(data, []byte("different")) {
		t.Fatalf("an open file turned into another one: %.40q", data)
	} else if !stock && (err != nil || !bytes.HasPrefix(data, []byte("first"))) {
		t.Errorf("read: %.40q %v, want the file that has another name now", data, err)
	} else if stock && !errors.Is(err, syscall.ESTALE) {
		t.Errorf("read: %.40q %v, want ESTALE", data, err)
	}
}

// stop stops a process and returns when none of its threads runs any more.
func stop(t *testing.T, p *os.Process) {
	t.Helper()
	must(t, p.Signal(syscall.SIGSTOP))
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		running := 0
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", p.Pid))
		must(t, err)
		for _, status := range threads {
			if b, err := os.ReadFile(status); err == nil && !strings.Contains(string(b), "\nState:\tT") {
				running++
			}
		}
		if running == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatal("the process does not stop")
		}
	}
}

func TestHungGuest(t *testing.T) {
	s := newSandbox(t, func(s *sandbox) {
		s.opts.NameTimeout, s.opts.DataTimeout = 3*time.Second, 3*time.Second
	})
	must(t, os.WriteFile(s.at("f"), []byte("x"), 0o644))
	f, err := os.OpenFile(s.at("f"), os.O_RDWR, 0)
	must(t, err)
	stop(t, s.agent.cmd.Process)
	fast(t, patience, "stat", func() {
		_, err := os.Stat(s.at("unknown"))
		wantErrno(t, "stat", err, syscall.EIO)
	})
	fast(t, patience, "write and fsync", func() {
		_, err := f.Write([]byte("y"))
		must(t, err)
		if err := f.Sync(); err == nil {
			t.Error("fsync: data that the guest does not take is not reported")
		}
	})
	s.agent.cmd.Process.Signal(syscall.SIGCONT)
	waitFor(t, "the guest to go on", func() bool { _, err := os.ReadFile(s.at("f")); return err == nil })
	f.Close()
}

// A signal ends a request long before its time. (SIGTERM, because SIGINT is
// ignored in what a shell has started in the background.)
func TestInterruptedRequest(t *testing.T) {
	s := newSandbox(t, func(s *sandbox) { s.opts.NameTimeout = time.Hour })
	stop(t, s.agent.cmd.Process)
	cmd := exec.Command("cat", s.at("unknown"))
	cmd.Dir = "/"
	must(t, cmd.Start())
	time.Sleep(100 * time.Millisecond) // it most likely waits by now; if not, the test shows less
	must(t, cmd.Process.Signal(syscall.SIGTERM))
	fast(t, patience, "the signal", func() { cmd.Wait() })
	must(t, s.agent.cmd.Process.Signal(syscall.SIGCONT))
	waitFor(t, "the guest to go on", func() bool { _, err := os.ReadDir(s.dir); return err == nil })
}

func TestMountProcessDies(t *testing.T) {
	s := newSandbox(t, nil)
	must(t, os.WriteFile(s.at("f"), []byte("x"), 0o644))
	s.mount.kill()
	_, err := os.Stat(s.at("f"))
	wantErrno(t, "stat of a dead mount", err, syscall.ENOTCONN)
	s.startMount() // on the same place, without cleaning up by hand
	wantFile(t, s.at("f"), []byte("x"))
	s.mount.kill()
	fast(t, outageLimit, "unmount of a dead mount", func() { must(t, fusefs.Unmount(s.dir)) })
	if err := fusefs.Unmount(s.dir); !errors.Is(err, fusefs.ErrNotMounted) {
		t.Errorf("second unmount: %v", err)
	}
}

func TestUnmountInUse(t *testing.T) {
	s := newSandbox(t, nil)
	f, err := os.Create(s.at("f"))
	must(t, err)
	_, err = f.WriteString("still ")
	must(t, err)
	must(t, fusefs.Unmount(s.dir))
	if entries, _ := os.ReadDir(s.dir); len(entries) > 0 {
		t.Error("the mount is still there")
	}
	_, err = f.WriteString("stored")
	must(t, err)
	must(t, f.Close())
	wantFile(t, s.in("f"), []byte("still stored"))
	s.mount.expect("gone")
}

// waitFor asks until cond holds.
func waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if cond() {
			return
		}
	}
	t.Fatalf("waited in vain for %s", what)
}

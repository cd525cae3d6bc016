package fusefs_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"msb/fusefs"
)

// A sandbox that stands still, as it does when the host was suspended or the
// runtime is stopped: what asks it ends with an error in time, what is known is
// given, and afterwards everything goes on, with what changed meanwhile.
func TestSandboxStandsStill(t *testing.T) {
	s := newSandbox(t, func(s *sandbox) {
		s.opts.NameTimeout, s.opts.DataTimeout = 300*time.Millisecond, 600*time.Millisecond
	})
	must(t, os.WriteFile(s.at("f"), []byte("before"), 0o644))
	f, err := os.OpenFile(s.at("f"), os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	stop(t, s.agent.cmd.Process)
	for what, do := range map[string]func() error{
		"lookup": func() error { _, err := os.Stat(s.at("never looked up")); return err },
		"create": func() error { return os.WriteFile(s.at("new"), nil, 0o644) },
		"list":   func() error { _, err := os.ReadDir(s.dir); return err },
		"fsync": func() error {
			if _, err := f.WriteAt([]byte("B"), 0); err != nil {
				return err
			}
			return f.Sync()
		},
	} {
		fast(t, outageLimit, what, func() {
			if err := do(); err == nil || errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: %v", what, err)
			}
		})
	}
	must(t, os.WriteFile(s.in("meanwhile"), []byte("there"), 0o644))
	must(t, s.agent.cmd.Process.Signal(syscall.SIGCONT))
	s.text("meanwhile", "there")
	s.await("a file made again", func() bool { return os.WriteFile(s.at("again"), []byte("x"), 0o644) == nil })
	wantFile(t, s.in("again"), []byte("x"))
}

// The same for the process that serves the mount.
func TestMountStandsStill(t *testing.T) {
	s := newSandbox(t, nil)
	must(t, os.WriteFile(s.at("f"), []byte("before"), 0o644))
	stop(t, s.mount.cmd.Process)
	written := make(chan error, 1)
	go func() { written <- os.WriteFile(s.at("g"), []byte("late"), 0o644) }()
	must(t, os.WriteFile(s.in("f"), []byte("after it"), 0o644))
	must(t, s.mount.cmd.Process.Signal(syscall.SIGCONT))
	select {
	case err := <-written:
		must(t, err)
	case <-time.After(patience):
		t.Fatal("the write hangs")
	}
	s.text("f", "after it")
	wantFile(t, s.in("g"), []byte("late"))
}

// A mount of a sandbox that is not there yet is refused, and nobody hangs on its
// mount point; once the sandbox is there it works.
func TestMountBeforeSandbox(t *testing.T) {
	s := newSandbox(t, nil)
	s.mount.stop()
	s.agent.kill()
	early := start(t, "mount", config{Socket: s.socket, Dir: s.dir, Options: s.opts}, nil)
	select {
	case line := <-early.lines:
		if !strings.HasPrefix(line, "error: ") {
			t.Fatalf("said %q", line)
		}
	case <-time.After(patience):
		t.Fatal("neither refused nor mounted")
	}
	fast(t, outageLimit, "the first reader", func() {
		if names, err := os.ReadDir(s.dir); err != nil || len(names) != 0 {
			t.Errorf("%v %v", names, err)
		}
	})
	s.startGuest()
	s.startMount()
	must(t, os.WriteFile(s.at("f"), []byte("x"), 0o644))
	wantFile(t, s.in("f"), []byte("x"))
}

// Files that are made, opened, removed while they are open and closed, over and
// over, leave nothing behind, in the mount or in the guest, and their directory
// can be removed.
func TestOpenCloseUnlink(t *testing.T) {
	eachBackend(t, func(t *testing.T, stock bool) {
		s := newSandbox(t, func(s *sandbox) { s.stock = stock })
		must(t, os.Mkdir(s.at("d"), 0o755))
		rounds := 100
		if soak() {
			rounds = 5000
		}
		var all sync.WaitGroup
		for w := range 4 {
			all.Go(func() {
				for i := range rounds {
					name := s.at(fmt.Sprintf("d/%d-%d", w, i%7))
					f, err := os.Create(name)
					if err != nil {
						t.Error(err)
						return
					}
					fmt.Fprintf(f, "%d", i)
					if i%2 == 0 {
						err = errors.Join(os.Remove(name), f.Close())
					} else {
						err = errors.Join(f.Close(), os.Remove(name))
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
		for _, dir := range []string{s.at("d"), s.in("d")} {
			if names, err := os.ReadDir(dir); err != nil || len(names) > 0 {
				t.Errorf("%s: %v %v", dir, names, err)
			}
		}
		must(t, os.Remove(s.at("d")))
	})
}

// ACLs are refused, cleanly: programs that look for them go on without, and one
// that has been told to copy one says that it could not.
func TestACLsAreRefused(t *testing.T) {
	s := newSandbox(t, nil)
	must(t, os.WriteFile(s.at("f"), []byte("x"), 0o640))
	// Version 2, user::rw- user:1:rw- group::r-- mask::rw- other::---
	acl := []byte{2, 0, 0, 0,
		1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 6, 0, 1, 0, 0, 0, 4, 0, 4, 0, 255, 255, 255, 255,
		16, 0, 6, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255}
	for _, name := range []string{"system.posix_acl_access", "system.posix_acl_default"} {
		if err := unix.Setxattr(s.dir, name, acl, 0); err != unix.EOPNOTSUPP {
			t.Errorf("set %s: %v", name, err)
		}
		if _, err := unix.Getxattr(s.dir, name, make([]byte, 100)); err != unix.EOPNOTSUPP {
			t.Errorf("get %s: %v", name, err)
		}
	}
	local := publicDir(t)
	must(t, os.WriteFile(filepath.Join(local, "g"), []byte("y"), 0o644))
	_ = unix.Setxattr(filepath.Join(local, "g"), "system.posix_acl_access", acl, 0)
	s.sh("ls -l f && cp -a f " + local + "/f && cp " + local + "/g h && test \"$(cat h)\" = y")
}

// A file can have as many names as in the guest, and no more.
func TestLinkLimit(t *testing.T) {
	if !soak() {
		t.Skip("makes 65000 names: MSB_SOAK=1")
	}
	s := newSandbox(t, nil)
	must(t, os.WriteFile(s.at("f"), nil, 0o644))
	links := func(dir string) (int, error) {
		must(t, os.Mkdir(filepath.Join(dir, "many"), 0o755))
		defer os.RemoveAll(filepath.Join(dir, "many"))
		for i := range 70000 {
			if err := os.Link(filepath.Join(dir, "f"), filepath.Join(dir, "many", fmt.Sprint(i))); err != nil {
				return i, errors.Unwrap(err)
			}
		}
		return 70000, nil
	}
	here, herr := links(s.dir)
	there, terr := links(s.guest)
	if here != there || !errors.Is(herr, terr) {
		t.Errorf("%d names, then %v; in the guest %d, then %v", here, herr, there, terr)
	}
}

// A directory of a million entries is listed whole, each entry once.
func TestMillionEntries(t *testing.T) {
	if !soak() {
		t.Skip("makes a million files: MSB_SOAK=1")
	}
	s := newSandbox(t, nil)
	const n = 1000000
	must(t, os.Mkdir(s.in("d"), 0o755))
	for i := range n {
		f, err := os.Create(s.in(fmt.Sprint("d/", i)))
		must(t, err)
		f.Close()
	}
	out, err := exec.Command("sh", "-c", "ls -f "+s.at("d")+" | sort -u | wc -l").Output()
	must(t, err)
	if got := strings.TrimSpace(string(out)); got != fmt.Sprint(n+2) {
		t.Errorf("%s names", got)
	}
	fast(t, time.Hour, "rm", func() { must(t, os.RemoveAll(s.at("d"))) })
	must(t, fusefs.Unmount(s.dir))
}

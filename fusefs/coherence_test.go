package fusefs_test

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"msb/fusefs"
)

// coherent starts a sandbox whose changes are told, and waits until they are: a
// change made there is seen although names and attributes are kept for an hour.
func coherent(t *testing.T) *sandbox {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("the changes of a file system are told to root only")
	}
	s := newSandbox(t, func(s *sandbox) { s.opts.WatchTimeout = time.Hour })
	s.watched()
	return s
}

// watched waits until changes are told: what was kept for a second is then kept
// for longer, so a look at a file costs no request any more.
func (s *sandbox) watched() {
	s.t.Helper()
	must(s.t, os.WriteFile(s.in(".probe"), nil, 0o644))
	for end := time.Now().Add(patience); ; {
		_, err := os.Stat(s.at(".probe"))
		must(s.t, err)
		if strings.Contains(s.mount.log.String(), "the guest tells what changes") {
			break
		}
		if strings.Contains(s.mount.log.String(), "does not tell what changes") {
			s.t.Skip("this file system cannot be watched")
		}
		if time.Now().After(end) {
			s.t.Fatalf("no watch\n%s", s.mount.log)
		}
		time.Sleep(time.Millisecond)
	}
	must(s.t, os.Remove(s.in(".probe")))
}

// settled waits until all that the guest did has been acted on: the last of it is
// a name that the kernel believes to be absent.
func (s *sandbox) settled() {
	s.t.Helper()
	_, err := os.Lstat(s.at(".settled"))
	wantErrno(s.t, "stat", err, unix.ENOENT)
	must(s.t, os.WriteFile(s.in(".settled"), nil, 0o644))
	s.await("the last change", func() bool { _, err := os.Lstat(s.at(".settled")); return err == nil })
	must(s.t, os.Remove(s.at(".settled")))
}

// text waits until a file of the mount has a content.
func (s *sandbox) text(name, want string) {
	s.t.Helper()
	s.await(fmt.Sprintf("%q in %s", want, name), func() bool {
		data, err := os.ReadFile(s.at(name))
		return err == nil && string(data) == want
	})
}

// guestSh runs a script in the guest's directory.
func (s *sandbox) guestSh(script string) {
	s.t.Helper()
	cmd := exec.Command("sh", "-ec", script)
	cmd.Dir = s.guest
	cmd.Env = gitEnv()
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Fatalf("%s\n%v\n%s", script, err, out)
	}
}

func gitEnv() []string {
	return append(os.Environ(), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b")
}

// Everything that the guest can do to a file that the host has in its caches is
// seen there.
func TestGuestChangesAreSeen(t *testing.T) {
	s := coherent(t)
	for _, c := range []struct{ name, before, change, look, want string }{
		{"rewritten in place", "echo old >f", "echo other >f", "cat f", "other\n"},
		{"rewritten by rename", "echo old >f", "echo new >f.tmp; mv f.tmp f", "cat f", "new\n"},
		{"appended", "echo one >f", "echo two >>f", "cat f", "one\ntwo\n"},
		{"same size", "echo one >f", "printf two | dd of=f conv=notrunc 2>/dev/null", "cat f", "two\n"},
		{"cut", "echo long >f", "truncate -s 2 f", "cat f", "lo"},
		{"lengthened", "echo x >f", "truncate -s 5 f", "stat -c %s f", "5\n"},
		{"emptied and written", "echo long >f", ": >f; echo s >f", "cat f", "s\n"},
		{"removed", "echo x >f", "rm f", "cat f 2>/dev/null || echo gone", "gone\n"},
		{"appeared", "", "echo x >f", "cat f 2>/dev/null || echo none", "x\n"},
		{"appeared as a directory", "", "mkdir f", "test -d f && echo yes || echo no", "yes\n"},
		{"file became a directory", "echo x >f", "rm f; mkdir f", "test -d f && echo yes || echo no", "yes\n"},
		{"directory became a symlink", "mkdir f; echo x >g", "rmdir f; ln -s g f", "cat f 2>/dev/null || echo no", "x\n"},
		{"moved", "echo x >f", "mv f g", "test ! -e f && cat g 2>/dev/null || echo no", "x\n"},
		{"moved between directories", "mkdir a b; echo x >a/f", "mv a/f b/f", "ls a; cat b/f 2>/dev/null || echo no", "x\n"},
		{"exchanged", "echo x >f; echo y >g", "mv f h; mv g f; mv h g", "cat f g", "y\nx\n"},
		{"a directory moved", "mkdir -p a/b; echo x >a/b/f", "mv a c", "test ! -e a && cat c/b/f 2>/dev/null || echo no", "x\n"},
		{"a tree removed", "mkdir -p a/b; echo x >a/b/f", "rm -r a", "test -e a && echo yes || echo no", "no\n"},
		{"mode", "echo x >f", "chmod 600 f", "stat -c %a f", "600\n"},
		{"owner", "echo x >f", "chown 7:8 f", "stat -c %u:%g f", "7:8\n"},
		{"times", "echo x >f", "touch -d @1000000000 f", "stat -c %Y f", "1000000000\n"},
		{"hard link", "echo x >f", "ln f g", "stat -c %h f", "2\n"},
		{"hard link removed", "echo x >f; ln f g", "rm g", "stat -c %h f", "1\n"},
		{"written by another name", "mkdir a b; echo x >a/f; ln a/f b/f; cat b/f", "echo yy >a/f", "cat b/f", "yy\n"},
		{"symlink retargeted", "echo x >x; echo y >y; ln -s x f", "ln -sf y f", "cat f", "y\n"},
		{"new in a listing", "mkdir d; touch d/a", "touch d/b", "ls d", "a\nb\n"},
		{"gone from a listing", "mkdir d; touch d/a d/b", "rm d/a", "ls d", "b\n"},
		{"size in a listing", "mkdir d; touch d/a", "echo xyz >d/a", "ls -l d | awk '{print $5}' | tail -1", "4\n"},
		{"mapped and written", "head -c 8192 /dev/zero >f", `python3 -c "
import mmap,os
f=os.open('f',os.O_RDWR)
m=mmap.mmap(f,0)
m[0:2]=b'hi'
m.close()
os.close(f)"`, "head -c 2 f | tr -d '\\0'", "hi"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := strings.ReplaceAll(c.name, " ", "_")
			must(t, os.Mkdir(s.at(dir), 0o755))
			run := func(where, script string) string {
				cmd := exec.Command("sh", "-c", script)
				cmd.Dir = filepath.Join(where, dir)
				out, err := cmd.CombinedOutput()
				if err != nil && len(out) > 0 {
					return string(out) + err.Error()
				}
				return string(out)
			}
			if out := run(s.dir, c.before); out != "" && c.name != "written by another name" {
				t.Fatal(out)
			}
			if out := run(s.dir, c.look); out == c.want {
				t.Fatalf("nothing to see: %q", out)
			}
			run(s.dir, "ls -lR . >/dev/null; cat * >/dev/null 2>&1") // all into the caches
			if out := run(s.guest, c.change); out != "" {
				t.Fatal(out)
			}
			var got string
			for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
				if got = run(s.dir, c.look); got == c.want {
					return
				}
				if time.Now().After(end) {
					t.Fatalf("the host sees %q, want %q", got, c.want)
				}
			}
		})
	}
}

// What is seen once stays seen: an answer that was under way when the guest
// changed the file does not come back. A writer in the guest, readers here.
func TestNothingOldComesBack(t *testing.T) {
	s := coherent(t)
	rounds := 300
	if os.Getenv("MSB_SOAK") != "" {
		rounds = 20000
	}
	must(t, os.Mkdir(s.in("d"), 0o755))
	write := func(i int) {
		text := fmt.Sprintf("%08d", i)
		switch i % 4 {
		case 0:
			// In place, and never cut: a reader who has the file open may see zeros where
			// a file was cut and has grown again.
			f, err := os.OpenFile(s.in("d/f"), os.O_WRONLY|os.O_CREATE, 0o644)
			must(t, err)
			_, err = f.WriteString(text)
			must(t, err)
			must(t, f.Close())
		case 1, 2:
			must(t, os.WriteFile(s.in("d/new"), []byte(text), 0o644))
			must(t, os.Rename(s.in("d/new"), s.in("d/f")))
		case 3:
			must(t, os.Remove(s.in("d/f")))
			must(t, os.WriteFile(s.in("d/f"), []byte(text), 0o644))
		}
	}
	write(0)
	stop := make(chan struct{})
	failed := make(chan string, 8)
	for range 4 {
		go func() {
			last := ""
			for {
				select {
				case <-stop:
					failed <- ""
					return
				default:
				}
				data, err := os.ReadFile(s.at("d/f"))
				if err != nil || len(data) == 0 || data[0] == 0 {
					continue // between two versions
				}
				if string(data) < last {
					failed <- fmt.Sprintf("%s after %s", data, last)
					return
				}
				last = string(data)
			}
		}()
	}
	for i := 1; i <= rounds; i++ {
		write(i)
		if i%10 == 0 {
			s.text("d/f", fmt.Sprintf("%08d", i))
		}
	}
	s.text("d/f", fmt.Sprintf("%08d", rounds))
	close(stop)
	for range 4 {
		if text := <-failed; text != "" {
			t.Error(text)
		}
	}
}

// tail -f shows what the guest appends, and starts again when it cuts the file.
func TestTailFollows(t *testing.T) {
	s := coherent(t)
	must(t, os.WriteFile(s.in("log"), []byte("line 0\n"), 0o644))
	cmd := exec.Command("tail", "-s", "0.02", "-n", "+1", "-f", s.at("log"))
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	defer func() {
		cmd.Process.Kill()
		cmd.Wait()
	}()
	lines := make(chan string, 100)
	go func() {
		for in := bufio.NewScanner(out); in.Scan(); {
			lines <- in.Text()
		}
	}()
	expect := func(want string) {
		t.Helper()
		select {
		case line := <-lines:
			if line != want {
				t.Fatalf("tail shows %q, want %q", line, want)
			}
		case <-time.After(patience):
			t.Fatalf("tail does not show %q", want)
		}
	}
	expect("line 0")
	f, err := os.OpenFile(s.in("log"), os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	defer f.Close()
	for i := 1; i < 20; i++ {
		fmt.Fprintf(f, "line %d\n", i)
		expect(fmt.Sprintf("line %d", i))
	}
}

// Either side cuts a file that the other one has open and mapped.
func TestTruncatedByEitherSide(t *testing.T) {
	s := coherent(t)
	must(t, os.WriteFile(s.in("f"), bytes.Repeat([]byte("x"), 100000), 0o644))
	f, err := os.OpenFile(s.at("f"), os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	buf := make([]byte, 100000)
	if n, _ := f.ReadAt(buf, 0); n != 100000 {
		t.Fatalf("%d bytes", n)
	}
	must(t, os.Truncate(s.in("f"), 10))
	s.await("the cut file", func() bool { n, _ := f.ReadAt(buf, 0); return n == 10 })
	must(t, os.Truncate(s.in("f"), 20))
	s.await("the longer file", func() bool {
		n, _ := f.ReadAt(buf, 0)
		return n == 20 && bytes.Equal(buf[:20], append(bytes.Repeat([]byte("x"), 10), make([]byte, 10)...))
	})
	must(t, f.Truncate(5))
	wantFile(t, s.in("f"), []byte("xxxxx"))
}

// git sees right after a change on one side what it is on the other.
func TestGitOnBothSides(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is missing: apt-get install git")
	}
	s := coherent(t)
	s.guestSh(`git init -q . && git config core.trustctime true && mkdir sub && for i in $(seq 50); do echo $i >sub/f$i; done && git add -A && git commit -qm first`)
	status := func(dir string) string {
		cmd := exec.Command("git", "-c", "safe.directory=*", "status", "--porcelain")
		cmd.Dir, cmd.Env = dir, gitEnv()
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Sprintf("%v %s", err, out)
		}
		return string(out)
	}
	head := func(dir string) string {
		data, err := os.ReadFile(filepath.Join(dir, ".git/HEAD"))
		if err != nil {
			return err.Error()
		}
		return string(data)
	}
	clean := func(dir string) {
		t.Helper()
		s.await("a clean tree in "+dir, func() bool { return status(dir) == "" })
	}
	clean(s.dir)
	rounds := 6
	if os.Getenv("MSB_SOAK") != "" {
		rounds = 200
	}
	for i := range rounds {
		// A change of the guest, its commit, a branch with a longer name.
		s.guestSh(fmt.Sprintf("echo changed %d >>sub/f%d", i, i+1))
		s.await("the guest's change", func() bool { return status(s.dir) == fmt.Sprintf(" M sub/f%d\n", i+1) })
		s.guestSh(fmt.Sprintf("git commit -qam c%d && git checkout -q -b a-branch-with-a-rather-long-name-%d", i, i))
		clean(s.dir)
		s.await("the guest's HEAD", func() bool { return head(s.dir) == head(s.guest) })
		// The same here, and back to the short name there.
		s.sh(fmt.Sprintf("echo there %d >>sub/f%d", i, i+2))
		if got := status(s.guest); got != fmt.Sprintf(" M sub/f%d\n", i+2) {
			t.Fatalf("the guest's status after a change here: %q", got)
		}
		s.sh(fmt.Sprintf("git -c safe.directory='*' commit -qam h%d && git -c safe.directory='*' checkout -q -B b", i))
		if got := status(s.guest); got != "" {
			t.Fatalf("the guest's status after a commit here: %q", got)
		}
		if head(s.guest) != head(s.dir) || head(s.dir) != "ref: refs/heads/b\n" {
			t.Fatalf("HEAD: %q and %q", head(s.guest), head(s.dir))
		}
		clean(s.dir)
	}
	s.guestSh("git fsck --strict 2>/dev/null")
}

// make builds what is out of date and nothing else, whichever side has changed
// the source, and the times do not move.
func TestMakeOnBothSides(t *testing.T) {
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip("make is missing: apt-get install make")
	}
	s := coherent(t)
	must(t, os.WriteFile(s.in("Makefile"), []byte("out: in\n\tcp in out\n"), 0o644))
	must(t, os.WriteFile(s.in("in"), []byte("1"), 0o644))
	const done = "make: 'out' is up to date.\n"
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "MAKE") }) // of a make that runs the tests
	run := func(dir string) string {
		cmd := exec.Command("make", "out")
		cmd.Dir, cmd.Env = dir, append(env, "LC_ALL=C")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v %s", err, out)
		}
		return string(out)
	}
	run(s.dir)
	for i := range 5 {
		for _, dir := range []string{s.dir, s.guest, s.dir} {
			if got := run(dir); got != done {
				t.Fatalf("built again: %s", got)
			}
		}
		time.Sleep(20 * time.Millisecond) // the clock that files are stamped with
		must(t, os.WriteFile(s.in("in"), []byte(fmt.Sprint(i)), 0o644))
		s.await("a source that is newer", func() bool { return run(s.dir) != done })
		wantFile(t, s.in("out"), []byte(fmt.Sprint(i)))
		time.Sleep(20 * time.Millisecond)
		must(t, os.WriteFile(s.at("in"), []byte("here"), 0o644))
		if run(s.guest) == done {
			t.Fatal("a source that was changed here is not newer in the guest")
		}
		s.seen("out")
	}
}

// When changes are not told any more, everything that was kept is asked for
// again, and so it is when they were too many.
func TestLostWatch(t *testing.T) {
	s := coherent(t)
	must(t, os.WriteFile(s.in("f"), []byte("old"), 0o644))
	wantFile(t, s.at("f"), []byte("old"))
	_, err := os.Stat(s.at("none"))
	wantErrno(t, "stat", err, unix.ENOENT)
	must(t, s.agent.cmd.Process.Kill())
	<-s.agent.done
	must(t, os.WriteFile(s.in("f"), []byte("new one"), 0o644))
	must(t, os.WriteFile(s.in("none"), []byte("there"), 0o644))
	s.startGuest()
	s.text("f", "new one")
	s.text("none", "there")
	s.guestSh("echo again >f")
	s.text("f", "again\n")
}

func TestManyChanges(t *testing.T) {
	s := coherent(t)
	n := 500
	if os.Getenv("MSB_SOAK") != "" {
		n = 60000
	}
	s.guestSh(fmt.Sprintf("mkdir d; cd d; for i in $(seq %d); do : >f$i; done", n))
	s.await("all names", func() bool { names, _ := os.ReadDir(s.at("d")); return len(names) == n })
	s.sh("ls -l d >/dev/null")
	s.guestSh("cd d; for f in *; do echo x >$f; done")
	for _, i := range []int{1, n / 2, n} {
		s.text(fmt.Sprint("d/f", i), "x\n")
	}
	s.await("all sizes", func() bool {
		names, err := os.ReadDir(s.at("d"))
		if err != nil {
			return false
		}
		for _, e := range names {
			if info, err := e.Info(); err != nil || info.Size() != 2 {
				return false
			}
		}
		return true
	})
	s.guestSh("rm -r d")
	s.await("that all is gone", func() bool { _, err := os.Stat(s.at("d")); return os.IsNotExist(err) })
}

// Two mounts of the same files see each other's changes.
func TestTwoMounts(t *testing.T) {
	s := coherent(t)
	other := *s
	other.dir = filepath.Join(publicDir(t), "mnt")
	must(t, os.Mkdir(other.dir, 0o755))
	other.mount = start(t, "mount", config{Socket: s.socket, Dir: other.dir, Options: s.opts}, nil)
	t.Cleanup(func() { fusefs.Unmount(other.dir) })
	other.mount.expect("ready")
	other.watched()
	for i := range 20 {
		text := fmt.Sprint("version ", i)
		must(t, os.WriteFile(s.at("f"), []byte(text), 0o644))
		other.text("f", text)
		must(t, os.WriteFile(other.at("g"), []byte(text), 0o644))
		must(t, os.Rename(other.at("g"), other.at("f")))
		s.text("f", text)
		_, err := os.Stat(s.at("h"))
		wantErrno(t, "stat", err, unix.ENOENT)
		must(t, os.WriteFile(other.at("h"), nil, 0o644))
		s.text("h", "")
		must(t, os.Remove(s.at("h")))
		other.await("that h is gone", func() bool { _, err := os.Stat(other.at("h")); return os.IsNotExist(err) })
	}
}

package fusefs_test

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What only a guest with msb.fs offers.
func TestNodeFeatures(t *testing.T) {
	s := newSandbox(t, func(s *sandbox) { s.opts.WatchTimeout = -1 }) // what the guest does is seen at the next open
	for _, c := range features {
		t.Run(c.name, func(t *testing.T) {
			sub := *s
			sub.t = t
			name := strings.ReplaceAll(c.name, " ", "_")
			sub.dir, sub.guest = filepath.Join(s.dir, name), filepath.Join(s.guest, name)
			must(t, os.Mkdir(sub.guest, 0o755))
			c.run(t, &sub)
		})
	}
	s.mount.stop()
	s.mount.expect("gone")
}

func lstat(t *testing.T, path string) (st unix.Stat_t) {
	t.Helper()
	must(t, unix.Lstat(path, &st))
	return st
}

var features = []struct {
	name string
	run  func(t *testing.T, s *sandbox)
}{
	{"stat is the guest's", func(t *testing.T, s *sandbox) {
		s.sh(`echo data >f; ln f g; mkdir d; ln -s f l; mkfifo p; mknod b b 7 300; truncate -s 1M sparse`)
		for _, name := range []string{"f", "g", "d", "l", "p", "b", "sparse"} {
			here, there := lstat(t, s.at(name)), lstat(t, s.in(name))
			here.Dev, there.Dev = 0, 0
			there.Uid, there.Gid = 0, 0 // the mounting user is dev
			if here != there {
				t.Errorf("%s: %+v, in the guest %+v", name, here, there)
			}
		}
		var here, there unix.Statfs_t
		must(t, unix.Statfs(s.dir, &here))
		must(t, unix.Statfs(s.guest, &there))
		if here.Blocks != there.Blocks || here.Files != there.Files || here.Bsize != there.Bsize {
			t.Errorf("statfs %+v, in the guest %+v", here, there)
		}
	}},
	{"xattrs", func(t *testing.T, s *sandbox) {
		must(t, os.WriteFile(s.at("f"), nil, 0o644))
		must(t, unix.Setxattr(s.at("f"), "user.a", []byte("value"), unix.XATTR_CREATE))
		wantErrno(t, "XATTR_CREATE", unix.Setxattr(s.at("f"), "user.a", nil, unix.XATTR_CREATE), syscall.EEXIST)
		buf := make([]byte, 100)
		n, err := unix.Getxattr(s.in("f"), "user.a", buf)
		must(t, err)
		if string(buf[:n]) != "value" {
			t.Errorf("%q", buf[:n])
		}
		n, err = unix.Listxattr(s.at("f"), buf)
		must(t, err)
		if string(buf[:n]) != "user.a\x00" {
			t.Errorf("list %q", buf[:n])
		}
		_, err = unix.Getxattr(s.at("f"), "user.none", buf)
		wantErrno(t, "missing", err, syscall.ENODATA)
		_, err = unix.Getxattr(s.at("f"), "user.a", buf[:2])
		wantErrno(t, "too small", err, syscall.ERANGE)
		must(t, unix.Removexattr(s.at("f"), "user.a"))
		wantErrno(t, "an ACL", unix.Setxattr(s.at("f"), "system.posix_acl_access", make([]byte, 28), 0), syscall.EOPNOTSUPP)
	}},
	{"space", func(t *testing.T, s *sandbox) {
		f, err := os.Create(s.at("f"))
		must(t, err)
		defer f.Close()
		fd := int(f.Fd())
		must(t, unix.Fallocate(fd, 0, 0, 1<<20))
		if st := lstat(t, s.in("f")); st.Size != 1<<20 || st.Blocks < 2048 {
			t.Errorf("size %d, %d blocks", st.Size, st.Blocks)
		}
		must(t, unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, 1<<20, 1<<20))
		_, err = f.WriteAt(bytes.Repeat([]byte("x"), 1<<20), 0)
		must(t, err)
		must(t, unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 64<<10, 64<<10))
		buf := make([]byte, 64<<10)
		_, err = f.ReadAt(buf, 64<<10)
		must(t, err)
		if !bytes.Equal(buf, make([]byte, len(buf))) {
			t.Error("no hole was punched")
		}
		must(t, f.Sync())
		hole, err := unix.Seek(fd, 0, unix.SEEK_HOLE)
		must(t, err)
		data, err := unix.Seek(fd, hole, unix.SEEK_DATA)
		must(t, err)
		if hole != 64<<10 || data != 128<<10 {
			t.Errorf("hole at %d, data at %d", hole, data)
		}
		must(t, f.Truncate(8<<40))
		_, err = f.WriteAt([]byte("end"), 8<<40-3)
		must(t, err)
		must(t, f.Close())
		if st := lstat(t, s.in("f")); st.Size != 8<<40 {
			t.Errorf("size %d", st.Size)
		}
		r, err := os.Open(s.at("f"))
		must(t, err)
		defer r.Close()
		_, err = r.ReadAt(buf[:3], 8<<40-3)
		must(t, err)
		if string(buf[:3]) != "end" {
			t.Errorf("%q", buf[:3])
		}
	}},
	{"copy in the guest", func(t *testing.T, s *sandbox) {
		data := random(3<<20, 1)
		must(t, os.WriteFile(s.at("a"), data, 0o644))
		from, err := os.Open(s.at("a"))
		must(t, err)
		defer from.Close()
		to, err := os.Create(s.at("b"))
		must(t, err)
		defer to.Close()
		for done := 0; done < len(data); {
			n, err := unix.CopyFileRange(int(from.Fd()), nil, int(to.Fd()), nil, len(data)-done, 0)
			must(t, err)
			if n == 0 {
				t.Fatal("ends early")
			}
			done += n
		}
		wantFile(t, s.at("b"), data)
		wantFile(t, s.in("b"), data)
	}},
	{"locks exclude the guest", func(t *testing.T, s *sandbox) {
		must(t, os.WriteFile(s.at("f"), []byte("0123456789"), 0o644))
		here, err := os.OpenFile(s.at("f"), os.O_RDWR, 0)
		must(t, err)
		defer here.Close()
		there, err := os.OpenFile(s.in("f"), os.O_RDWR, 0)
		must(t, err)
		defer there.Close()
		must(t, unix.Flock(int(here.Fd()), unix.LOCK_EX))
		wantErrno(t, "flock in the guest", unix.Flock(int(there.Fd()), unix.LOCK_EX|unix.LOCK_NB), syscall.EWOULDBLOCK)
		got := make(chan error, 1)
		go func() { got <- unix.Flock(int(there.Fd()), unix.LOCK_EX) }()
		must(t, unix.Flock(int(here.Fd()), unix.LOCK_UN))
		must(t, <-got)
		waiting := make(chan error, 1)
		go func() { waiting <- unix.Flock(int(here.Fd()), unix.LOCK_SH) }()
		must(t, unix.Flock(int(there.Fd()), unix.LOCK_UN))
		must(t, <-waiting)
		must(t, unix.Flock(int(here.Fd()), unix.LOCK_UN))

		lock := unix.Flock_t{Type: unix.F_WRLCK, Start: 2, Len: 3}
		must(t, unix.FcntlFlock(here.Fd(), unix.F_SETLK, &lock))
		other := unix.Flock_t{Type: unix.F_WRLCK, Start: 4, Len: 1}
		wantErrno(t, "lock in the guest", unix.FcntlFlock(there.Fd(), unix.F_OFD_SETLK, &other), syscall.EAGAIN)
		other.Start = 5
		must(t, unix.FcntlFlock(there.Fd(), unix.F_OFD_SETLK, &other))
		probe := unix.Flock_t{Type: unix.F_WRLCK}
		must(t, unix.FcntlFlock(here.Fd(), unix.F_GETLK, &probe))
		if probe.Type != unix.F_WRLCK || probe.Start != 5 || probe.Len != 1 {
			t.Errorf("lock in the way: %+v", probe)
		}
		// A close of any descriptor drops the process's locks.
		second, err := os.Open(s.at("f"))
		must(t, err)
		must(t, second.Close())
		other = unix.Flock_t{Type: unix.F_WRLCK, Start: 2, Len: 1}
		must(t, unix.FcntlFlock(there.Fd(), unix.F_OFD_SETLK, &other))
	}},
	{"many waiters", func(t *testing.T, s *sandbox) {
		must(t, os.WriteFile(s.at("f"), []byte("0"), 0o644))
		var wg sync.WaitGroup
		for range 24 {
			wg.Go(func() {
				f, err := os.OpenFile(s.at("f"), os.O_RDWR, 0)
				if err != nil {
					t.Error(err)
					return
				}
				defer f.Close()
				for range 3 {
					if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
						t.Error(err)
						return
					}
					var n int
					b := make([]byte, 20)
					m, _ := f.ReadAt(b, 0)
					fmt.Sscan(string(b[:m]), &n)
					f.WriteAt([]byte(fmt.Sprint(n+1)), 0)
					f.Sync()
					unix.Flock(int(f.Fd()), unix.LOCK_UN)
				}
			})
		}
		wg.Wait()
		wantFile(t, s.in("f"), []byte("72"))
	}},
	{"a large directory", func(t *testing.T, s *sandbox) {
		const n = 5000
		for i := range n {
			must(t, os.WriteFile(s.in(fmt.Sprint("entry with a name of some length ", i)), nil, 0o644))
		}
		d, err := os.Open(s.dir)
		must(t, err)
		defer d.Close()
		seen := map[string]bool{}
		for i := 0; ; i++ {
			names, err := d.Readdirnames(100)
			for _, name := range names {
				if seen[name] {
					t.Fatalf("%s comes twice", name)
				}
				seen[name] = true
			}
			if err != nil {
				break
			}
			if i == 5 { // entries that go and come while it is read
				must(t, os.Remove(s.in(names[0])))
				must(t, os.WriteFile(s.in("newcomer"), nil, 0o644))
			}
		}
		delete(seen, "newcomer")
		if len(seen) < n-1 {
			t.Errorf("%d of %d entries", len(seen), n)
		}
		if out := s.sh("ls -l | wc -l; rm -rf ./*; ls | wc -l"); strings.Join(strings.Fields(out), " ") != fmt.Sprint(n+1, 0) {
			t.Errorf("%q", out)
		}
	}},
	{"a file that is gone", func(t *testing.T, s *sandbox) {
		must(t, os.WriteFile(s.at("f"), []byte("still here"), 0o644))
		f, err := os.Open(s.at("f"))
		must(t, err)
		defer f.Close()
		must(t, os.Remove(s.at("f")))
		again, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
		must(t, err)
		defer again.Close()
		time.Sleep(1100 * time.Millisecond) // what was read at the open is too old
		wantFile(t, fmt.Sprintf("/proc/self/fd/%d", f.Fd()), []byte("still here"))
		var st unix.Stat_t
		must(t, unix.Fstat(int(f.Fd()), &st))
		if st.Nlink != 0 {
			t.Errorf("%d links", st.Nlink)
		}
		names, err := os.ReadDir(s.in("."))
		must(t, err)
		if len(names) != 0 {
			t.Errorf("left behind: %v", names)
		}
	}},
	{"what was closed can be run at once", func(t *testing.T, s *sandbox) {
		prog, err := os.ReadFile("/bin/true")
		must(t, err)
		for i := range 20 {
			name := fmt.Sprint("prog", i)
			must(t, os.WriteFile(s.at(name), prog, 0o755))
			must(t, exec.Command(s.in(name)).Run())
		}
	}},
	{"deep paths", func(t *testing.T, s *sandbox) {
		must(t, os.Chdir(s.dir))
		defer os.Chdir("/")
		for range 30 { // 30 * 201 bytes are more than PATH_MAX
			name := strings.Repeat("d", 200)
			must(t, os.Mkdir(name, 0o755))
			must(t, os.Chdir(name))
		}
		must(t, os.WriteFile("bottom", []byte("x"), 0o644))
		must(t, os.Chdir("/"))
		s.sh("rm -rf d*")
	}},
	{"two sides append", func(t *testing.T, s *sandbox) {
		var wg sync.WaitGroup
		for i, path := range []string{s.at("log"), s.in("log"), s.at("log")} {
			wg.Go(func() {
				f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
				if err != nil {
					t.Error(err)
					return
				}
				defer f.Close()
				for j := range 200 {
					if _, err := fmt.Fprintf(f, "%d %d\n", i, j); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		data, err := os.ReadFile(s.in("log"))
		must(t, err)
		if n := bytes.Count(data, []byte("\n")); n != 600 {
			t.Errorf("%d lines", n)
		}
		wantFile(t, s.at("log"), data)
	}},
	{"sqlite", func(t *testing.T, s *sandbox) {
		if _, err := exec.LookPath("sqlite3"); err != nil {
			t.Skip("sqlite3 is missing: apt-get install sqlite3")
		}
		for _, mode := range []string{"delete", "truncate", "persist", "wal"} {
			s.sh(fmt.Sprintf(`
				sqlite3 %[1]s.db 'pragma journal_mode=%[1]s; create table t(i integer primary key, s text);' >/dev/null
				for p in 1 2 3; do
					for n in $(seq 15); do echo "insert into t(s) values (hex(randomblob(300)));"; done | sqlite3 -cmd '.timeout 240000' %[1]s.db &
				done; wait
				test "$(sqlite3 %[1]s.db 'select count(*) from t')" = 45
				test "$(sqlite3 %[1]s.db 'pragma integrity_check')" = ok
				test "$(sqlite3 "$GUEST/sqlite/%[1]s.db" 'pragma integrity_check')" = ok || test "$(sqlite3 "$GUEST/%[1]s.db" 'pragma integrity_check')" = ok`, mode))
		}
	}},
	{"odd values", func(t *testing.T, s *sandbox) {
		must(t, os.WriteFile(s.at("f"), nil, 0o644))
		old := time.Unix(-5, 123)
		must(t, os.Chtimes(s.at("f"), old, time.Unix(1<<33, 999999999)))
		info, err := os.Stat(s.at("f"))
		must(t, err)
		if !info.ModTime().Equal(time.Unix(1<<33, 999999999)) {
			t.Errorf("%v", info.ModTime())
		}
		f, err := os.OpenFile(s.at("f"), os.O_RDWR, 0)
		must(t, err)
		defer f.Close()
		_, err = f.WriteAt([]byte("x"), math.MaxInt64-10)
		if cerr := f.Sync(); err == nil && cerr == nil {
			t.Error("a write beyond all sizes is taken")
		}
	}},
}

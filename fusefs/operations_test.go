package fusefs_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// random returns n bytes that are the same for the same seed.
func random(n int, seed uint64) []byte {
	data := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(data)
	return data
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErrno(t *testing.T, what string, err error, want syscall.Errno) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got %v, want %v", what, err, want)
	}
}

func wantFile(t *testing.T, path string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(path)
	must(t, err)
	if !bytes.Equal(got, want) {
		t.Fatalf("%s: %d bytes %x, want %d bytes %x", path, len(got), sha256.Sum256(got), len(want), sha256.Sum256(want))
	}
}

func TestOperations(t *testing.T) {
	for _, v := range []struct {
		name, env string
		stock     bool
	}{
		{"nodes", "GOMAXPROCS=2", false}, {"nodes, one thread", "GOMAXPROCS=1", false},
		{"stock", "GOMAXPROCS=2", true}, {"stock, one thread", "GOMAXPROCS=1", true},
	} {
		t.Run(v.name, func(t *testing.T) {
			s := newSandbox(t, func(s *sandbox) { s.stock, s.opts.WatchTimeout = v.stock, -1 }) // what the guest does is seen at the next open
			s.mount.stop()
			s.startMount(v.env)
			for _, c := range operations {
				t.Run(c.name, func(t *testing.T) {
					sub := *s
					sub.t = t
					sub.dir, sub.guest = filepath.Join(s.dir, c.name), filepath.Join(s.guest, c.name)
					must(t, os.Mkdir(sub.guest, 0o755))
					c.run(t, &sub)
				})
			}
			s.mount.stop()
			s.mount.expect("gone")
		})
	}
}

var operations = []struct {
	name string
	run  func(t *testing.T, s *sandbox)
}{
	{"data of all sizes goes both ways", func(t *testing.T, s *sandbox) {
		for i, n := range []int{0, 1, 4095, 4096, 65536, 131072, 131073, 1 << 20, 5<<20 + 17} {
			data := random(n, uint64(i))
			name := fmt.Sprint("up", n)
			must(t, os.WriteFile(s.at(name), data, 0o644))
			wantFile(t, s.in(name), data)
			wantFile(t, s.at(name), data)
			name = fmt.Sprint("down", n)
			must(t, os.WriteFile(s.in(name), data, 0o644))
			s.seen(name)
			wantFile(t, s.at(name), data)
		}
	}},
	{"reads in small steps and at random places", func(t *testing.T, s *sandbox) {
		data := random(3<<20+5, 1)
		must(t, os.WriteFile(s.in("f"), data, 0o644))
		f, err := os.Open(s.at("f"))
		must(t, err)
		defer f.Close()
		var got bytes.Buffer
		_, err = io.CopyBuffer(struct{ io.Writer }{&got}, struct{ io.Reader }{f}, make([]byte, 777))
		must(t, err)
		if !bytes.Equal(got.Bytes(), data) {
			t.Fatal("sequential data differs")
		}
		r := rand.New(rand.NewPCG(1, 2))
		for range 300 {
			off, n := r.IntN(len(data)), 1+r.IntN(200000)
			buf := make([]byte, n)
			m, err := f.ReadAt(buf, int64(off))
			want := data[off:min(len(data), off+n)]
			if (err != nil && err != io.EOF) || !bytes.Equal(buf[:m], want) {
				t.Fatalf("ReadAt(%d, %d): %d bytes, %v", off, n, m, err)
			}
		}
	}},
	{"writes at random places", func(t *testing.T, s *sandbox) {
		const size = 2 << 20
		model := make([]byte, size)
		f, err := os.OpenFile(s.at("f"), os.O_RDWR|os.O_CREATE, 0o644)
		must(t, err)
		must(t, f.Truncate(size))
		r := rand.New(rand.NewPCG(3, 4))
		for i := range 500 {
			off := r.IntN(size - 70000)
			data := random(1+r.IntN(70000), uint64(i))
			_, err := f.WriteAt(data, int64(off))
			must(t, err)
			copy(model[off:], data)
			if i%50 == 0 {
				buf := make([]byte, 9000)
				_, err := f.ReadAt(buf, int64(off))
				must(t, err)
				if !bytes.Equal(buf, model[off:off+9000]) {
					t.Fatal("a write is not seen by a read")
				}
			}
		}
		must(t, f.Close())
		wantFile(t, s.in("f"), model)
	}},
	{"two descriptors of one file", func(t *testing.T, s *sandbox) {
		a, err := os.Create(s.at("f"))
		must(t, err)
		b, err := os.OpenFile(s.at("f"), os.O_RDWR, 0)
		must(t, err)
		for i := range 64 {
			_, err := []*os.File{a, b}[i%2].WriteAt(bytes.Repeat([]byte{byte('a' + i%26)}, 1000), int64(i*500))
			must(t, err)
		}
		var want []byte
		for i := range 64 {
			want = append(want[:i*500], bytes.Repeat([]byte{byte('a' + i%26)}, 1000)...)
		}
		must(t, a.Close())
		must(t, b.Close())
		wantFile(t, s.in("f"), want)
	}},
	{"what fsync and close promise is in the guest", func(t *testing.T, s *sandbox) {
		f, err := os.Create(s.at("f"))
		must(t, err)
		_, err = f.WriteString("one")
		must(t, err)
		must(t, f.Sync())
		wantFile(t, s.in("f"), []byte("one"))
		_, err = f.WriteString("two")
		must(t, err)
		must(t, f.Close())
		wantFile(t, s.in("f"), []byte("onetwo"))
	}},
	{"size and time follow writes", func(t *testing.T, s *sandbox) {
		begun := time.Now()
		f, err := os.Create(s.at("f"))
		must(t, err)
		defer f.Close()
		for i := 1; i <= 5; i++ {
			_, err = f.Write(make([]byte, 1000))
			must(t, err)
			for _, stat := range []func() (os.FileInfo, error){f.Stat, func() (os.FileInfo, error) { return os.Stat(s.at("f")) }} {
				info, err := stat()
				must(t, err)
				if info.Size() != int64(i*1000) {
					t.Fatalf("size %d after %d bytes", info.Size(), i*1000)
				}
				if at := info.ModTime(); at.Before(begun.Add(-time.Second)) || at.After(time.Now().Add(time.Second)) {
					t.Fatalf("modified at %v, the test began at %v", at, begun)
				}
			}
		}
	}},
	{"open flags", func(t *testing.T, s *sandbox) {
		must(t, os.WriteFile(s.in("old"), []byte("0123456789"), 0o644))
		_, err := os.OpenFile(s.at("old"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		wantErrno(t, "O_EXCL on a file that exists", err, syscall.EEXIST)
		f, err := os.OpenFile(s.at("new"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o640)
		must(t, err)
		must(t, f.Close())
		f, err = os.OpenFile(s.at("old"), os.O_WRONLY|os.O_TRUNC, 0)
		must(t, err)
		must(t, f.Close())
		wantFile(t, s.in("old"), nil)
		must(t, os.WriteFile(s.in("cut"), []byte("0123456789"), 0o644))
		s.seen("cut")
		f, err = os.OpenFile(s.at("cut"), os.O_WRONLY|os.O_TRUNC|os.O_APPEND, 0)
		must(t, err)
		_, err = f.WriteString("new")
		must(t, err)
		must(t, f.Close())
		wantFile(t, s.in("cut"), []byte("new"))
		_, err = os.Open(s.at("missing"))
		wantErrno(t, "open of a missing file", err, syscall.ENOENT)
		must(t, os.Mkdir(s.at("d"), 0o755))
		_, err = os.OpenFile(s.at("d"), os.O_WRONLY, 0)
		wantErrno(t, "write to a directory", err, syscall.EISDIR)
		must(t, os.Symlink("old", s.at("l")))
		_, err = os.OpenFile(s.at("l"), os.O_RDONLY|syscall.O_NOFOLLOW, 0)
		wantErrno(t, "O_NOFOLLOW on a symlink", err, syscall.ELOOP)
		f, err = os.Open(s.at("old"))
		must(t, err)
		_, err = f.Write([]byte("x"))
		wantErrno(t, "write to a descriptor for reading", err, syscall.EBADF)
		f.Close()
		f, err = os.OpenFile(s.at("odirect"), os.O_CREATE|os.O_RDWR|syscall.O_DIRECT, 0o644)
		must(t, err)
		defer f.Close()
	}},
	{"append by two writers and the guest", func(t *testing.T, s *sandbox) {
		const lines = 200
		write := func(path, who string) error {
			f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
			if err != nil {
				return err
			}
			for i := range lines {
				if _, err := fmt.Fprintf(f, "%s %04d\n", who, i); err != nil {
					return err
				}
			}
			return f.Close()
		}
		var wg sync.WaitGroup
		errs := make([]error, 3)
		for i, path := range []string{s.at("log"), s.at("log"), s.in("log")} {
			wg.Go(func() { errs[i] = write(path, fmt.Sprint("writer", i)) })
		}
		wg.Wait()
		must(t, errors.Join(errs...))
		data, err := os.ReadFile(s.in("log"))
		must(t, err)
		got := strings.Split(strings.TrimSpace(string(data)), "\n")
		sort.Strings(got)
		var want []string
		for i := range 3 {
			for j := range lines {
				want = append(want, fmt.Sprintf("writer%d %04d", i, j))
			}
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Fatalf("%d lines, want %d, or they are torn", len(got), len(want))
		}
		wantFile(t, s.at("log"), data)
	}},
	{"stat while descriptors come and go", func(t *testing.T, s *sandbox) {
		must(t, os.WriteFile(s.at("f"), nil, 0o644))
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for _, flags := range []int{os.O_WRONLY | os.O_APPEND, os.O_RDONLY, os.O_RDWR} {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					f, err := os.OpenFile(s.at("f"), flags, 0)
					if err != nil {
						t.Error(err)
						return
					}
					f.Close()
				}
			})
		}
		for range 500 {
			// A change makes the kernel ask for the attributes anew.
			if err := os.Chmod(s.at("f"), 0o644); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(s.at("f")); err != nil {
				t.Error(err)
			}
		}
		close(stop)
		wg.Wait()
	}},
	{"truncate by path and by descriptor", func(t *testing.T, s *sandbox) {
		data := random(100000, 9)
		must(t, os.WriteFile(s.at("f"), data, 0o644))
		must(t, os.Truncate(s.at("f"), 12345))
		wantFile(t, s.in("f"), data[:12345])
		wantFile(t, s.at("f"), data[:12345])
		f, err := os.OpenFile(s.at("f"), os.O_RDWR, 0)
		must(t, err)
		defer f.Close()
		must(t, f.Truncate(20000))
		want := append(append([]byte(nil), data[:12345]...), make([]byte, 20000-12345)...)
		wantFile(t, s.in("f"), want)
		got := make([]byte, 20000)
		_, err = f.ReadAt(got, 0)
		must(t, err)
		if !bytes.Equal(got, want) {
			t.Fatal("data after truncate differs")
		}
		must(t, f.Truncate(0))
		_, err = f.WriteAt([]byte("xyz"), 5)
		must(t, err)
		must(t, f.Sync())
		wantFile(t, s.in("f"), []byte("\x00\x00\x00\x00\x00xyz"))
	}},
	{"unlink of an open file", func(t *testing.T, s *sandbox) {
		data := random(300000, 4)
		must(t, os.WriteFile(s.at("f"), data, 0o600))
		f, err := os.OpenFile(s.at("f"), os.O_RDWR, 0)
		must(t, err)
		must(t, os.Remove(s.at("f")))
		_, err = os.Stat(s.at("f"))
		wantErrno(t, "stat of a removed file", err, syscall.ENOENT)
		got, err := io.ReadAll(f)
		must(t, err)
		if !bytes.Equal(got, data) {
			t.Fatal("data of a removed open file differs")
		}
		info, err := f.Stat()
		must(t, err)
		if info.Size() != int64(len(data)) {
			t.Fatalf("size %d", info.Size())
		}
		must(t, f.Truncate(10))
		_, err = f.WriteAt([]byte("!"), 10)
		must(t, err)
		must(t, f.Chmod(0o644))
		must(t, f.Close())
		must(t, os.WriteFile(s.at("f"), []byte("new"), 0o600))
		wantFile(t, s.in("f"), []byte("new"))
		must(t, os.Remove(s.at("f")))
		must(t, os.Remove(s.dir)) // nothing is left behind
		must(t, os.Mkdir(s.dir, 0o755))
	}},
	{"rename", func(t *testing.T, s *sandbox) {
		must(t, os.WriteFile(s.at("a"), []byte("A"), 0o644))
		must(t, os.WriteFile(s.at("b"), []byte("B"), 0o644))
		open, err := os.Open(s.at("b"))
		must(t, err)
		defer open.Close()
		must(t, os.Rename(s.at("a"), s.at("b")))
		wantFile(t, s.at("b"), []byte("A"))
		old, err := io.ReadAll(open)
		must(t, err)
		if string(old) != "B" {
			t.Fatalf("replaced open file reads %q", old)
		}
		must(t, os.MkdirAll(s.at("d/e"), 0o755))
		must(t, os.WriteFile(s.at("d/e/f"), []byte("F"), 0o644))
		inner, err := os.OpenFile(s.at("d/e/f"), os.O_RDWR, 0)
		must(t, err)
		must(t, os.Rename(s.at("d"), s.at("D")))
		wantFile(t, s.at("D/e/f"), []byte("F"))
		_, err = inner.WriteAt([]byte("G"), 0)
		must(t, err)
		must(t, inner.Close())
		wantFile(t, s.in("D/e/f"), []byte("G"))
		wantErrno(t, "rename over a directory that is not empty", os.Rename(s.at("b"), s.at("D")), syscall.EEXIST)
		must(t, os.Mkdir(s.at("full"), 0o755))
		must(t, os.WriteFile(s.at("full/x"), nil, 0o644))
		wantErrno(t, "rename of a directory over one that is not empty", syscall.Rename(s.at("D"), s.at("full")), syscall.ENOTEMPTY)
		wantErrno(t, "rename into itself", syscall.Rename(s.at("D"), s.at("D/e/x")), syscall.EINVAL)
		if !s.stock {
			return
		}
		wantErrno(t, "NOREPLACE", unix.Renameat2(unix.AT_FDCWD, s.at("b"), unix.AT_FDCWD, s.at("c"), unix.RENAME_NOREPLACE), syscall.EINVAL)
		wantErrno(t, "EXCHANGE", unix.Renameat2(unix.AT_FDCWD, s.at("b"), unix.AT_FDCWD, s.at("full"), unix.RENAME_EXCHANGE), syscall.EINVAL)
		wantFile(t, s.at("b"), []byte("A"))
	}},
	{"directories", func(t *testing.T, s *sandbox) {
		must(t, os.Mkdir(s.at("d"), 0o750))
		wantErrno(t, "mkdir of one that exists", os.Mkdir(s.at("d"), 0o755), syscall.EEXIST)
		info, err := os.Stat(s.in("d"))
		must(t, err)
		if info.Mode().Perm() != 0o750 {
			t.Errorf("mode %v", info.Mode())
		}
		must(t, os.WriteFile(s.at("d/f"), nil, 0o644))
		wantErrno(t, "rmdir of one that is not empty", syscall.Rmdir(s.at("d")), syscall.ENOTEMPTY)
		wantErrno(t, "rmdir of a file", syscall.Rmdir(s.at("d/f")), syscall.ENOTDIR)
		wantErrno(t, "unlink of a directory", syscall.Unlink(s.at("d")), syscall.EISDIR)
		wantErrno(t, "a file as a directory", os.Mkdir(s.at("d/f/g"), 0o755), syscall.ENOTDIR)
		must(t, os.Remove(s.at("d/f")))
		must(t, syscall.Rmdir(s.at("d")))
		wantErrno(t, "name too long", os.Mkdir(s.at(strings.Repeat("n", 256)), 0o755), syscall.ENAMETOOLONG)
		must(t, os.Mkdir(s.at(strings.Repeat("n", 255)), 0o755))
	}},
	{"listings", func(t *testing.T, s *sandbox) {
		const n = 3000
		want := map[string]bool{}
		for i := range n {
			name := fmt.Sprintf("entry-with-a-rather-long-name-%05d", i)
			want[name] = true
			must(t, os.WriteFile(s.in(name), []byte(name), 0o644))
		}
		for range 2 {
			entries, err := os.ReadDir(s.dir)
			must(t, err)
			seen := map[string]bool{}
			for _, e := range entries {
				if seen[e.Name()] || !want[e.Name()] {
					t.Fatalf("entry %q doubled or made up", e.Name())
				}
				seen[e.Name()] = true
				info, err := e.Info()
				must(t, err)
				if info.Size() != int64(len(e.Name())) || !info.Mode().IsRegular() {
					t.Fatalf("entry %q: %v", e.Name(), info)
				}
			}
			if len(seen) != n {
				t.Fatalf("%d entries, want %d", len(seen), n)
			}
		}
		d, err := os.Open(s.dir)
		must(t, err)
		defer d.Close()
		first, err := d.Readdirnames(10)
		must(t, err)
		_, err = d.Seek(0, io.SeekStart)
		must(t, err)
		again, err := d.Readdirnames(-1)
		must(t, err)
		if len(again) != n {
			t.Fatalf("after rewinding: %d entries, want %d (began with %v)", len(again), n, first)
		}
		s.sh("rm -rf ./entry*; test -z \"$(ls -A)\"; test -z \"$(ls -A $GUEST/listings)\"")
	}},
	{"mode, times and owner", func(t *testing.T, s *sandbox) {
		must(t, os.WriteFile(s.at("f"), []byte("x"), 0o666))
		must(t, syscall.Chmod(s.at("f"), 0o4751))
		when := time.Unix(1234567890, 0)
		must(t, os.Chtimes(s.at("f"), time.Unix(1111111111, 0), when))
		info, err := os.Stat(s.in("f"))
		must(t, err)
		if info.Mode().Perm() != 0o751 || info.Mode()&os.ModeSetuid == 0 || !info.ModTime().Equal(when) {
			t.Errorf("guest sees %v %v", info.Mode(), info.ModTime())
		}
		info, err = os.Stat(s.at("f"))
		must(t, err)
		if !info.ModTime().Equal(when) {
			t.Errorf("host sees %v", info.ModTime())
		}
		if os.Geteuid() == 0 {
			must(t, os.Chown(s.at("f"), 1234, 2345))
			info, err := os.Stat(s.in("f"))
			must(t, err)
			if st := info.Sys().(*syscall.Stat_t); st.Uid != 1234 || st.Gid != 2345 {
				t.Errorf("owner %d:%d", st.Uid, st.Gid)
			}
		}
		must(t, os.Symlink("nowhere", s.at("l")))
		must(t, unix.UtimesNanoAt(unix.AT_FDCWD, s.at("l"), []unix.Timespec{{Sec: 5}, {Sec: 6}}, unix.AT_SYMLINK_NOFOLLOW))
		must(t, os.Lchown(s.at("l"), os.Getuid(), os.Getgid()))
	}},
	{"inode numbers are stable", func(t *testing.T, s *sandbox) {
		must(t, os.WriteFile(s.at("f"), nil, 0o644))
		ino := func() uint64 {
			var st syscall.Stat_t
			must(t, syscall.Stat(s.at("f"), &st))
			return st.Ino
		}
		before := ino()
		if os.Geteuid() == 0 {
			must(t, os.WriteFile("/proc/sys/vm/drop_caches", []byte("2"), 0))
		}
		if after := ino(); after != before {
			t.Errorf("inode %d became %d", before, after)
		}
	}},
	{"symlinks", func(t *testing.T, s *sandbox) {
		must(t, os.WriteFile(s.at("f"), []byte("F"), 0o644))
		must(t, os.Symlink("f", s.at("l")))
		got, err := os.Readlink(s.at("l"))
		must(t, err)
		if got != "f" {
			t.Errorf("target %q", got)
		}
		wantFile(t, s.at("l"), []byte("F"))
		// Absolute in the guest: seen below the mount point, and back.
		must(t, os.Symlink(s.in("f"), s.in("abs")))
		got, err = os.Readlink(s.at("abs"))
		must(t, err)
		if got != s.at("f") {
			t.Errorf("absolute target %q, want %q", got, s.at("f"))
		}
		wantFile(t, s.at("abs"), []byte("F"))
		must(t, os.Symlink(s.at("f"), s.at("made")))
		got, err = os.Readlink(s.in("made"))
		must(t, err)
		if got != s.in("f") {
			t.Errorf("target made through the mount is %q, want %q", got, s.in("f"))
		}
		// Out of the mount: no program of this host gets there.
		must(t, os.Symlink("/etc/passwd", s.in("out")))
		_, err = os.ReadFile(s.at("out"))
		wantErrno(t, "absolute symlink out", err, syscall.ENOENT)
		s.sh("cp -a out copy; test \"$(readlink $GUEST/symlinks/copy)\" = /etc/passwd || test \"$(readlink \"$GUEST/copy\")\" = /etc/passwd")
		must(t, os.Symlink("../../../../../../../../../../etc/passwd", s.in("climb")))
		_, err = os.ReadFile(s.at("climb"))
		wantErrno(t, "symlink that climbs out", err, syscall.ENOENT)
	}},
	{"what the protocol cannot do is refused", func(t *testing.T, s *sandbox) {
		if !s.stock {
			t.Skip("our agent can")
		}
		must(t, os.WriteFile(s.at("f"), []byte("0123456789"), 0o644))
		wantErrno(t, "hard link", os.Link(s.at("f"), s.at("g")), syscall.EPERM)
		wantErrno(t, "fifo", unix.Mkfifo(s.at("p"), 0o644), syscall.EPERM)
		must(t, unix.Mknod(s.at("reg"), unix.S_IFREG|0o600, 0))
		wantErrno(t, "setxattr", unix.Setxattr(s.at("f"), "user.a", []byte("b"), 0), syscall.EOPNOTSUPP)
		f, err := os.OpenFile(s.at("f"), os.O_RDWR, 0)
		must(t, err)
		defer f.Close()
		wantErrno(t, "fallocate", unix.Fallocate(int(f.Fd()), 0, 0, 100), syscall.EOPNOTSUPP)
		wantErrno(t, "not UTF-8", os.WriteFile(s.at("\xff"), nil, 0o644), syscall.EILSEQ)
		_, err = os.Stat(s.at("\xff"))
		wantErrno(t, "stat of a name that is not UTF-8", err, syscall.ENOENT)
		if off, err := f.Seek(3, unix.SEEK_DATA); err != nil || off != 3 {
			t.Errorf("SEEK_DATA: %d %v", off, err)
		}
		var st unix.Statfs_t
		must(t, unix.Statfs(s.dir, &st))
		if st.Blocks == 0 || st.Bavail == 0 {
			t.Error("statfs says the disk is full")
		}
	}},
	{"changes in the guest are seen", func(t *testing.T, s *sandbox) {
		must(t, os.WriteFile(s.in("HEAD"), []byte("short\n"), 0o644))
		wantFile(t, s.at("HEAD"), []byte("short\n"))
		for i := range 20 { // also within the second that attributes are kept
			want := []byte(strings.Repeat("longer ", i+2))
			must(t, os.WriteFile(s.in("HEAD"), want, 0o644))
			s.seen("HEAD")
			wantFile(t, s.at("HEAD"), want)
			must(t, os.WriteFile(s.in("new"), []byte("s"), 0o644))
			must(t, os.Rename(s.in("new"), s.in("HEAD")))
			s.seen("HEAD")
			wantFile(t, s.at("HEAD"), []byte("s"))
		}
		// A file replaced in the guest while it is open here.
		f, err := os.Open(s.at("HEAD"))
		must(t, err)
		defer f.Close()
		must(t, os.WriteFile(s.in("new"), []byte("replacement"), 0o644))
		must(t, os.Rename(s.in("new"), s.in("HEAD")))
		s.seen("HEAD")
		wantFile(t, s.at("HEAD"), []byte("replacement"))
		old, err := io.ReadAll(f)
		must(t, err)
		if string(old) != "s" {
			t.Errorf("the replaced file reads %q", old)
		}
	}},
	{"programs", func(t *testing.T, s *sandbox) {
		s.sh(`
			mkdir repo && cd repo && git init -q . && printf 'one\n' >f && mkdir sub && head -c 300000 /dev/urandom >sub/big
			git add -A && git commit -qm first && test -z "$(git status --porcelain)"
			printf 'two\n' >>f && test "$(git status --porcelain)" = " M f"
			git commit -qam second && git checkout -q HEAD~1 && test "$(cat f)" = one && git checkout -q -
			git gc -q && git fsck --strict 2>/dev/null && test -z "$(git status --porcelain)"
			cd .. && cp -a repo copy && diff -r repo copy
			tar cf - repo | (mkdir un && cd un && tar xf -) && diff -r repo un/repo
			printf x >edit && printf y >edit.tmp && mv edit.tmp edit && test "$(cat edit)" = y
			sed -i s/y/z/ edit && test "$(cat edit)" = z
			cp -r copy again && rm -rf copy again un && test ! -e copy
		`)
	}},
	{"mmap", func(t *testing.T, s *sandbox) {
		// From a shell's child: a fault in this process could stop its runtime.
		s.sh(`command -v python3 >/dev/null || exit 0
			head -c 100000 /dev/zero >m
			python3 - <<'E'
import mmap
with open('m','r+b') as f:
    m=mmap.mmap(f.fileno(),0)
    m[5000:5005]=b'hello'
    m.flush()
    m[90000:90003]=b'end'
    m.close()
E
			cmp -s -n 5 -i 5000:0 m /dev/stdin <<E && true
hello
E
			test "$(dd if=m bs=1 skip=5000 count=5 2>/dev/null)" = hello
			test "$(dd if=m bs=1 skip=90000 count=3 2>/dev/null)" = end`)
	}},
}

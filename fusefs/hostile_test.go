package fusefs_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

func hostile(t *testing.T, script string) *sandbox {
	return newSandbox(t, func(s *sandbox) { s.script = script })
}

func TestHostileNames(t *testing.T) {
	s := hostile(t, "names")
	d, err := os.Open(s.dir)
	must(t, err)
	defer d.Close()
	got, err := d.Readdirnames(-1)
	must(t, err)
	slices.Sort(got)
	if want := []string{"also good", "good", "passwd"}; !slices.Equal(got, want) {
		t.Errorf("names %q, want %q", got, want)
	}
}

func TestHostileAttributes(t *testing.T) {
	s := hostile(t, "lies")
	for _, name := range []string{"kind", "mode", "made-up", "huge", "late", "early"} {
		_, err := os.Lstat(s.at(name))
		wantErrno(t, name, err, syscall.EIO)
	}
	info, err := os.Lstat(s.at("timeless"))
	must(t, err)
	if info.ModTime().Unix() != 0 {
		t.Errorf("timeless: %v", info.ModTime())
	}
	info, err = os.Lstat(s.at("changes"))
	must(t, err)
	if !info.Mode().IsRegular() {
		t.Errorf("changes: %v", info.Mode())
	}
	becomesDirectory(t, s)
	// A device is inert.
	_, err = os.Open(s.at("device"))
	wantErrno(t, "open of a device", err, syscall.EACCES)
	// A file that is shorter than it says ends where it ends.
	must(t, os.WriteFile(s.in("long"), []byte("abc"), 0o644))
	f, err := os.Open(s.at("long"))
	must(t, err)
	defer f.Close()
	fast(t, patience, "reading a file that lies about its size", func() {
		buf := make([]byte, 1<<20)
		for range 10 {
			n, err := f.Read(buf)
			if err == io.EOF {
				return
			}
			if err != nil {
				t.Error(err)
				return
			}
			if n > 3 && strings.Trim(string(buf[3:n]), "\x00") != "" {
				t.Error("data from nowhere")
			}
		}
	})
}

// becomesDirectory tells the guest to make "changes" a directory and waits until
// the host sees one, when what it keeps of the file is too old.
func becomesDirectory(t *testing.T, s *sandbox) {
	t.Helper()
	os.Lstat(s.at("change"))
	waitFor(t, "a file that became a directory", func() bool {
		info, err := os.Lstat(s.at("changes"))
		must(t, err)
		return info.IsDir()
	})
}

func TestEndlessDirectory(t *testing.T) {
	s := hostile(t, "endless")
	fast(t, 5*patience, "a directory without an end", func() {
		d, err := os.Open(s.dir)
		must(t, err)
		defer d.Close()
		for {
			if _, err = d.Readdirnames(100000); err != nil {
				break
			}
		}
		if !errors.Is(err, syscall.EIO) {
			t.Errorf("got %v, want EIO", err)
		}
	})
}

func TestHostileSymlinks(t *testing.T) {
	s := hostile(t, "targets")
	secret := filepath.Join(filepath.Dir(s.dir), "etc/passwd")
	must(t, os.Mkdir(filepath.Dir(secret), 0o755))
	must(t, os.WriteFile(secret, []byte("secret"), 0o644))
	must(t, os.MkdirAll(s.in("a/b"), 0o755))
	for _, dir := range []string{"", "a", "a/b"} {
		for i, target := range hostileTargets {
			name := s.at(fmt.Sprintf("%s/t%d", dir, i))
			shown, err := os.Readlink(name)
			if err != nil {
				if target != "" && len(target) < 4000 && !strings.Contains(target, "\x00") {
					t.Errorf("%q: %v", target, err)
				}
				continue
			}
			// The host must not get out of the mount.
			resolved, err := filepath.EvalSymlinks(name)
			if err == nil && resolved != s.dir && !strings.HasPrefix(resolved, s.dir+"/") {
				t.Errorf("%q in %q is shown as %q and leads to %q", target, dir, shown, resolved)
			}
			if _, err := os.ReadFile(name); err == nil {
				t.Errorf("%q in %q is shown as %q and leads to a file", target, dir, shown)
			}
		}
	}
}

func TestHostileErrors(t *testing.T) {
	s := hostile(t, "errors")
	for name, want := range map[string]syscall.Errno{
		"enosys": syscall.EOPNOTSUPP, "beyond": syscall.EIO, "nothing": syscall.EIO, "wordy": syscall.EIO, "wrong": syscall.EIO, "path": syscall.EIO,
	} {
		_, err := os.Lstat(s.at(name))
		wantErrno(t, name, err, want)
	}
	must(t, os.WriteFile(s.in("f"), []byte("x"), 0o644))
	wantFile(t, s.at("f"), []byte("x"))
}

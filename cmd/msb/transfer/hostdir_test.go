package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// tree is a source that says whatever a guest could say.
type tree struct {
	entries map[string][]Info
	links   map[string]string
	data    map[string]io.Reader
}

func (t tree) Stat(_ context.Context, path string, _ bool) (Info, error) {
	return Info{Name: slashBase(path), Mode: fs.ModeDir | 0o755}, nil
}
func (t tree) List(_ context.Context, path string) ([]Info, error)     { return t.entries[path], nil }
func (t tree) Readlink(_ context.Context, path string) (string, error) { return t.links[path], nil }
func (t tree) Open(_ context.Context, path string) (io.ReadCloser, error) {
	r := t.data[path]
	if r == nil {
		r = strings.NewReader("from the guest")
	}
	return io.NopCloser(r), nil
}
func (t tree) Join(dir, name string) string { return dir + "/" + name }
func (t tree) Base(path string) string      { return slashBase(path) }

func copyTree(t *testing.T, src tree, dst string) error {
	t.Helper()
	d, err := OpenHostDir(dst)
	if err != nil {
		t.Fatal(err)
	}
	c := &Copier{From: src, Warn: func(f string, a ...any) { t.Logf(f, a...) }}
	err = c.Copy(t.Context(), "/r", Info{Name: "r", Mode: fs.ModeDir | 0o755}, d)
	if ferr := d.Finish(t.Context(), nil); err == nil {
		err = ferr
	}
	return err
}

func TestHostileGuestStaysInside(t *testing.T) {
	file := func(name string) Info { return Info{Name: name, Mode: 0o644} }
	link := func(name string) Info { return Info{Name: name, Mode: fs.ModeSymlink | 0o777} }
	dir := func(name string) Info { return Info{Name: name, Mode: fs.ModeDir | 0o755} }
	for _, tc := range []struct {
		name string
		src  tree
		ok   bool
	}{
		{"dot dot", tree{entries: map[string][]Info{"/r": {file("..")}}}, false},
		{"slash in a name", tree{entries: map[string][]Info{"/r": {file("../victim")}}}, false},
		{"absolute name", tree{entries: map[string][]Info{"/r": {file("/victim")}}}, false},
		{"NUL in a name", tree{entries: map[string][]Info{"/r": {file("a\x00b")}}}, false},
		{"empty name", tree{entries: map[string][]Info{"/r": {file("")}}}, false},
		{"name of 300 bytes", tree{entries: map[string][]Info{"/r": {file(strings.Repeat("x", 300))}}}, false},
		{"symlink first, then a directory of that name",
			tree{entries: map[string][]Info{"/r": {link("a"), dir("a")}, "/r/a": {file("victim")}}, links: map[string]string{"/r/a": "../../out"}}, false},
		{"symlink first, then a file of that name",
			tree{entries: map[string][]Info{"/r": {link("a"), file("a")}}, links: map[string]string{"/r/a": "../../out/victim"}}, true},
		{"symlink out stays a symlink",
			tree{entries: map[string][]Info{"/r": {link("a")}}, links: map[string]string{"/r/a": "/etc/passwd"}}, true},
		{"empty symlink", tree{entries: map[string][]Info{"/r": {link("a")}}}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			base := t.TempDir()
			out, dst := filepath.Join(base, "out"), filepath.Join(base, "dst")
			for _, d := range []string{out, dst} {
				if err := os.Mkdir(d, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(out, "victim"), []byte("mine"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := copyTree(t, tc.src, dst); (err == nil) != tc.ok {
				t.Errorf("err = %v, want success %v", err, tc.ok)
			}
			if b, _ := os.ReadFile(filepath.Join(out, "victim")); string(b) != "mine" {
				t.Errorf("a file outside the destination was written: %q", b)
			}
			if got, _ := filepath.Glob(base + "/*"); len(got) != 2 {
				t.Errorf("something appeared beside the destination: %v", got)
			}
			if got, _ := filepath.Glob(out + "/*"); len(got) != 1 {
				t.Errorf("something appeared outside: %v", got)
			}
		})
	}
}

func TestEndlessDirectories(t *testing.T) {
	src := endless{}
	d, err := OpenHostDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Finish(t.Context(), nil)
	c := &Copier{From: src, Warn: t.Logf}
	err = c.Copy(t.Context(), "/r", Info{Name: "r", Mode: fs.ModeDir | 0o755}, d)
	if err == nil || !strings.Contains(err.Error(), "deep") {
		t.Errorf("err = %v", err)
	}
}

type endless struct{ tree }

func (endless) List(context.Context, string) ([]Info, error) {
	return []Info{{Name: "d", Mode: fs.ModeDir | 0o755}}, nil
}

func TestFailedCopyKeepsTheOldFile(t *testing.T) {
	dst := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dst, "r"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dst, "r", "f"), []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	lost := errors.New("connection lost")
	src := tree{
		entries: map[string][]Info{"/r": {{Name: "f", Mode: 0o644}}},
		data:    map[string]io.Reader{"/r/f": io.MultiReader(strings.NewReader("half"), broken{lost})},
	}
	if err := copyTree(t, src, dst); !errors.Is(err, lost) {
		t.Errorf("err = %v", err)
	}
	if b, _ := os.ReadFile(filepath.Join(dst, "r", "f")); string(b) != "old" {
		t.Errorf("file is %q", b)
	}
	if got, _ := os.ReadDir(filepath.Join(dst, "r")); len(got) != 1 {
		t.Errorf("left over: %v", got)
	}
}

// unreadable fails where a guest does: at names it cannot say, at files that vanished, at what it may not read.
type unreadable struct{ tree }

func (u unreadable) List(ctx context.Context, path string) ([]Info, error) {
	if strings.HasSuffix(path, "closed") {
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrPermission}
	}
	return u.tree.List(ctx, path)
}

func (u unreadable) Open(ctx context.Context, path string) (io.ReadCloser, error) {
	switch {
	case strings.HasSuffix(path, "secret"):
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrPermission}
	case strings.HasSuffix(path, "gone"), strings.Contains(path, "\uFFFD"):
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	return u.tree.Open(ctx, path)
}

func TestOneFileDoesNotCostTheTree(t *testing.T) {
	dst := t.TempDir()
	file := func(name string) Info { return Info{Name: name, Mode: 0o644} }
	src := unreadable{tree{entries: map[string][]Info{
		"/r":     {file("a"), file("bad\uFFFDname"), file("bad\xffname"), file("gone"), {Name: "sub", Mode: fs.ModeDir | 0o755}, file("z")},
		"/r/sub": {file("secret"), {Name: "closed", Mode: fs.ModeDir | 0o755}, file("y")},
	}}}
	var warned []string
	d, err := OpenHostDir(dst)
	must(t, err)
	c := &Copier{From: src, Warn: func(f string, a ...any) { warned = append(warned, fmt.Sprintf(f, a...)) }}
	err = c.Copy(t.Context(), "/r", Info{Name: "r", Mode: fs.ModeDir | 0o755}, d)
	must(t, d.Finish(t.Context(), nil))
	if !errors.Is(err, ErrSkipped) || len(warned) != 5 {
		t.Errorf("err = %v, warned %q", err, warned)
	}
	for _, name := range []string{"a", "z", "sub/y"} {
		if b, err := os.ReadFile(filepath.Join(dst, "r", name)); err != nil || string(b) != "from the guest" {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	// What the user named himself is not passed over.
	d, err = OpenHostDir(dst)
	must(t, err)
	c = &Copier{From: src, Warn: t.Logf}
	if err := c.Copy(t.Context(), "/r/gone", file("gone"), d); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("err = %v", err)
	}
	must(t, d.Finish(t.Context(), nil))
}

type broken struct{ err error }

func (b broken) Read([]byte) (int, error) { return 0, b.err }

func TestHostToHostKeepsModesTimesAndLinks(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	when := time.Unix(1_000_000_000, 0)
	root := filepath.Join(src, "r")
	must(t, os.MkdirAll(filepath.Join(root, "sub"), 0o755))
	must(t, os.WriteFile(filepath.Join(root, "sub", "f"), []byte{0, 1, 255, '\n'}, 0o640))
	must(t, os.Symlink("sub/f", filepath.Join(root, "l")))
	must(t, os.WriteFile(filepath.Join(root, "suid"), nil, 0o755))
	must(t, os.Chmod(filepath.Join(root, "suid"), 0o755|fs.ModeSetuid))
	must(t, os.Chtimes(filepath.Join(root, "sub", "f"), when, when))
	must(t, os.Chmod(filepath.Join(root, "sub"), 0o555))
	must(t, os.Chtimes(filepath.Join(root, "sub"), when, when))
	t.Cleanup(func() { os.Chmod(filepath.Join(root, "sub"), 0o755); os.Chmod(filepath.Join(dst, "r", "sub"), 0o755) })

	d, err := OpenHostDir(dst)
	must(t, err)
	info, err := HostSource{}.Stat(t.Context(), root, false)
	must(t, err)
	must(t, (&Copier{From: HostSource{}, Warn: t.Logf}).Copy(t.Context(), root, info, d))
	must(t, d.Finish(t.Context(), nil))

	got := map[string]string{}
	must(t, filepath.Walk(filepath.Join(dst, "r"), func(p string, fi fs.FileInfo, err error) error {
		rel, _ := filepath.Rel(dst, p)
		got[rel] = fmt.Sprint(fi.Mode())
		return err
	}))
	for name, mode := range map[string]string{"r/sub": "dr-xr-xr-x", "r/sub/f": "-rw-r-----", "r/l": "Lrwxrwxrwx", "r/suid": "-rwxr-xr-x"} {
		if got[name] != mode {
			t.Errorf("%s: mode %s, want %s", name, got[name], mode)
		}
	}
	for _, name := range []string{"r/sub", "r/sub/f"} {
		if fi, err := os.Stat(filepath.Join(dst, name)); err != nil || !fi.ModTime().Equal(when) {
			t.Errorf("%s: time %v, %v", name, fi.ModTime(), err)
		}
	}
	if l, _ := os.Readlink(filepath.Join(dst, "r", "l")); l != "sub/f" {
		t.Errorf("link to %q", l)
	}
	if b, _ := os.ReadFile(filepath.Join(dst, "r", "sub", "f")); string(b) != "\x00\x01\xff\n" {
		t.Errorf("content %q", b)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

package boot

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// entry is one file of an archive; a text makes it a regular file.
type entry struct {
	tar.Header
	text string
}

func archive(t *testing.T, entries ...entry) io.Reader {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		e.Size = int64(len(e.text))
		if e.Mode == 0 {
			e.Mode = 0o644
		}
		if err := w.WriteHeader(&e.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

func file(name, text string) entry { return entry{tar.Header{Name: name, Typeflag: tar.TypeReg}, text} }
func folder(name string) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}, ""}
}
func link(name, to string) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to}, ""}
}
func hardLink(name, to string) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: to}, ""}
}

func TestUnpackTar(t *testing.T) {
	for _, tc := range []struct {
		name    string
		entries []entry
		want    map[string]string // text of files; "→ x" for links, "/" for folders
	}{
		{"folders that nobody named", []entry{file("a/b/c", "deep")}, map[string]string{"a/b/c": "deep", "a/b": "/"}},
		{"the last one counts", []entry{file("x", "old"), file("x", "new")}, map[string]string{"x": "new"}},
		{"a file becomes a folder", []entry{file("x", "old"), folder("x"), file("x/y", "in")}, map[string]string{"x/y": "in"}},
		{"a folder becomes a file", []entry{folder("x"), file("x", "file")}, map[string]string{"x": "file"}},
		{"a link is replaced, not written through", []entry{file("t", "kept"), link("x", "t"), file("x", "new")}, map[string]string{"t": "kept", "x": "new"}},
		{"a link to a folder stays", []entry{folder("usr/bin"), link("bin", "usr/bin"), folder("bin"), file("bin/sh", "#!")},
			map[string]string{"bin": "→ usr/bin", "usr/bin/sh": "#!"}},
		{"a hard link", []entry{file("a", "one"), hardLink("b", "a")}, map[string]string{"b": "one"}},
		{"zeros", []entry{file("z", strings.Repeat("\x00", 600<<10)+"end")}, map[string]string{"z": strings.Repeat("\x00", 600<<10) + "end"}},
		{"only zeros", []entry{file("z", strings.Repeat("\x00", 300<<10))}, map[string]string{"z": strings.Repeat("\x00", 300<<10)}},
		{"names that climb out", []entry{file("../../up", "in"), file("/abs", "in"), file("a/../../b", "in")}, map[string]string{"up": "in", "abs": "in", "b": "in"}},
		{"a link that climbs out", []entry{link("out", "../../../../../.."), file("out/dropped", "in")}, map[string]string{"dropped": "in"}},
		{"the root itself", []entry{folder("./"), file("./x", "in")}, map[string]string{"x": "in"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			a := archive(t, tc.entries...)
			if err := inRoot(t, dir, func() error { return unpackTar(a) }); err != nil {
				t.Fatal(err)
			}
			for name, want := range tc.want {
				if got := look(filepath.Join(dir, name)); got != want {
					t.Errorf("%s is %.40q, want %.40q", name, got, want)
				}
			}
		})
	}
}

func look(path string) string {
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		return err.Error()
	case info.IsDir():
		return "/"
	case info.Mode().Type() == os.ModeSymlink:
		to, _ := os.Readlink(path)
		return "→ " + to
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// What an image says of its files is what they are, folders that were filled later included.
func TestUnpackTarAttributes(t *testing.T) {
	dir, when := t.TempDir(), time.Date(2020, 2, 3, 4, 5, 6, 0, time.UTC)
	d, x, l := folder("d"), file("d/su", "x"), link("d/l", "su")
	d.Mode, d.Uid, d.Gid, d.ModTime = 0o2750, 7, 8, when
	x.Mode, x.Uid, x.Gid, x.ModTime = 0o4711, 1000, 1001, when
	l.Uid, l.Gid, l.ModTime = 3, 4, when
	fifo := entry{tar.Header{Name: "d/fifo", Typeflag: tar.TypeFifo, Mode: 0o600, ModTime: when}, ""}
	a := archive(t, d, x, l, fifo)
	if err := inRoot(t, dir, func() error { return unpackTar(a) }); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]struct {
		mode     os.FileMode
		uid, gid uint32
	}{
		"d":      {os.ModeDir | os.ModeSetgid | 0o750, 7, 8},
		"d/su":   {os.ModeSetuid | 0o711, 1000, 1001},
		"d/l":    {os.ModeSymlink | 0o777, 3, 4},
		"d/fifo": {os.ModeNamedPipe | 0o600, 0, 0},
	} {
		info, err := os.Lstat(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
			continue
		}
		st := info.Sys().(*syscall.Stat_t)
		if info.Mode() != want.mode || st.Uid != want.uid || st.Gid != want.gid || !info.ModTime().Equal(when) {
			t.Errorf("%s: %v %d:%d of %v, want %v %d:%d of %v", name, info.Mode(), st.Uid, st.Gid, info.ModTime(), want.mode, want.uid, want.gid, when)
		}
	}
}

func TestUnpackTarRefusals(t *testing.T) {
	whole, err := io.ReadAll(archive(t, file("x", strings.Repeat("text", 1000))))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name    string
		archive io.Reader
		want    string
	}{
		{"nothing in it", archive(t), "the archive is empty"},
		{"no archive", strings.NewReader(strings.Repeat("no tar ", 1000)), "read the archive"},
		{"cut off", bytes.NewReader(whole[:1024]), "unexpected EOF"},
		{"a hard link to nothing", archive(t, hardLink("b", "a")), `unpack "b": hard link to "a"`},
		{"a loop of links", archive(t, link("a", "a"), file("a/x", "")), `unpack "a/x"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := inRoot(t, t.TempDir(), func() error { return unpackTar(tc.archive) })
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v; want %q in it", err, tc.want)
			}
		})
	}
}

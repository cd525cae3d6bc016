package tree

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

func newTree(t *testing.T) (*Tree, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "repo")
	tr, err := New(dir, 2, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.Close)
	if err := tr.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	return tr, dir
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, target, path string) {
	t.Helper()
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}

// hostile is a tree that tries to lead outside in every way.
func hostile(t *testing.T) (*Tree, string) {
	tr, dir := newTree(t)
	outside := filepath.Join(filepath.Dir(dir), "outside")
	put(t, filepath.Join(outside, "secret"), "secret\n")
	put(t, filepath.Join(dir, "in/file"), "inside\n")
	link(t, "../outside", filepath.Join(dir, "updir"))
	link(t, "../outside/secret", filepath.Join(dir, "upfile"))
	link(t, outside, filepath.Join(dir, "absdir"))
	link(t, filepath.Join(outside, "secret"), filepath.Join(dir, "absfile"))
	link(t, "/proc/self/root/etc/passwd", filepath.Join(dir, "magic"))
	link(t, "/proc/self/cwd", filepath.Join(dir, "cwd"))
	link(t, "in", filepath.Join(dir, "gooddir"))
	link(t, "in/file", filepath.Join(dir, "goodfile"))
	link(t, "loop", filepath.Join(dir, "loop"))
	if err := unix.Mkfifo(filepath.Join(dir, "fifo"), 0o666); err != nil {
		t.Fatal(err)
	}
	if l, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0); err == nil {
		_ = unix.Bind(l, &unix.SockaddrUnix{Name: filepath.Join(dir, "sock")})
		t.Cleanup(func() { unix.Close(l) })
	}
	if os.Getuid() == 0 {
		if err := unix.Mknod(filepath.Join(dir, "zero"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))); err != nil {
			t.Fatal(err)
		}
	}
	return tr, dir
}

func TestReadStaysInside(t *testing.T) {
	tr, dir := hostile(t)
	for _, name := range []string{
		"../outside/secret", "in/../../outside/secret", "updir/secret", "upfile", "absdir/secret", "absfile", "magic",
		"cwd/tree.go", "loop", "fifo", "sock", "zero", "in", ".", "", "a\x00b", "/etc/passwd", "//etc/passwd",
		filepath.Dir(dir) + "/outside/secret", dir + "x/../outside/secret", "none", strings.Repeat("x/", 4000), strings.Repeat("y", 300),
	} {
		if got, err := tr.ReadText(t.Context(), name, ReadOptions{MaxBytes: 100}); err == nil {
			t.Errorf("read %.60q: %q", name, got.Content)
		}
	}
	for _, name := range []string{"in/file", "gooddir/file", "goodfile", "./in/../in/file", dir + "/in/file"} {
		if got, err := tr.ReadText(t.Context(), name, ReadOptions{MaxBytes: 100}); err != nil || got.Content != "inside\n" {
			t.Errorf("read %s: %q, %v", name, got.Content, err)
		}
	}
}

func TestListAndSearchStayInside(t *testing.T) {
	tr, _ := hostile(t)
	list, more, err := tr.List(t.Context(), ".", ListOptions{Depth: 8, Limit: 100})
	if err != nil || more {
		t.Fatal(err, more)
	}
	for _, e := range list {
		if strings.Contains(e.Path, "secret") {
			t.Errorf("listed %s", e.Path)
		}
	}
	found, err := tr.Search(t.Context(), "", SearchOptions{Query: "s", Limit: 100})
	if err != nil || len(found.Matches) != 1 || found.Matches[0] != (Match{"in/file", 1, "inside"}) {
		t.Errorf("found %+v, %v", found, err)
	}
	for _, dir := range []string{"..", "updir", "absdir", "/", "cwd"} {
		if list, _, err := tr.List(t.Context(), dir, ListOptions{Depth: 1, Limit: 5}); err == nil {
			t.Errorf("listed %s: %v", dir, list)
		}
		if found, err := tr.Search(t.Context(), dir, SearchOptions{Query: "x", Limit: 5}); err == nil {
			t.Errorf("searched %s: %v", dir, found)
		}
		if d, err := tr.OpenDir(t.Context(), dir); err == nil {
			t.Errorf("opened %s", dir)
			d.Close()
		}
	}
}

func TestWritesStayInside(t *testing.T) {
	tr, dir := hostile(t)
	outside := filepath.Join(filepath.Dir(dir), "outside")
	for _, name := range []string{"../x", "updir/x", "absdir/x", "gooddir/x", "/tmp/msb-x", "in/../../outside/x", ".", "..", "in/file/x", "a\x00"} {
		_, err := Do(t.Context(), tr, func(_ context.Context, r *Root) (int, error) {
			return 0, r.WriteFile(name, []byte("x"), 0o644)
		})
		if err == nil {
			t.Errorf("wrote %q", name)
		}
		if _, err := Do(t.Context(), tr, func(_ context.Context, r *Root) (int, error) { return 0, r.Remove(name + "/secret") }); err == nil {
			t.Errorf("removed below %q", name)
		}
	}
	// A link in the place of the file is replaced, not followed.
	if _, err := Do(t.Context(), tr, func(_ context.Context, r *Root) (int, error) {
		return 0, r.WriteFile("upfile", []byte("mine"), 0o4755)
	}); err != nil {
		t.Error(err)
	}
	st, err := os.Lstat(filepath.Join(dir, "upfile"))
	if err != nil || st.Mode() != 0o755 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	left, _ := os.ReadDir(outside)
	b, err := os.ReadFile(filepath.Join(outside, "secret"))
	if len(left) != 1 || string(b) != "secret\n" {
		t.Errorf("outside is %v, %q, %v", left, b, err)
	}
	if hidden, _ := filepath.Glob(filepath.Join(dir, "*/.msb-*")); len(hidden) > 0 {
		t.Errorf("left over: %v", hidden)
	}
}

// Somebody swaps folders for links all the time.
func TestRaces(t *testing.T) {
	tr, dir := hostile(t)
	put(t, filepath.Join(dir, "swap/secret"), "inside\n")
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			_ = os.Rename(filepath.Join(dir, "swap"), filepath.Join(dir, "away"))
			_ = os.Symlink("../outside", filepath.Join(dir, "swap"))
			_ = os.Remove(filepath.Join(dir, "swap"))
			_ = os.Rename(filepath.Join(dir, "away"), filepath.Join(dir, "swap"))
		}
	}()
	for range 500 {
		if got, err := tr.ReadText(t.Context(), "swap/secret", ReadOptions{MaxBytes: 100}); err == nil && got.Content != "inside\n" {
			t.Fatalf("read %q", got.Content)
		}
		_, _ = Do(t.Context(), tr, func(_ context.Context, r *Root) (int, error) { return 0, r.WriteFile("swap/new", []byte("x"), 0o644) })
	}
	close(stop)
	<-done
	if _, err := os.Stat(filepath.Join(filepath.Dir(dir), "outside/new")); err == nil {
		t.Error("it wrote outside")
	}
}

func TestReadLines(t *testing.T) {
	tr, dir := newTree(t)
	put(t, filepath.Join(dir, "f"), "one\ntwo\nthree\nfour")
	put(t, filepath.Join(dir, "empty"), "")
	put(t, filepath.Join(dir, "runes"), strings.Repeat("€", 100))
	put(t, filepath.Join(dir, "latin"), "caf\xe9\n")
	put(t, filepath.Join(dir, "long"), strings.Repeat("x", 200_000)+"\nlast\n")
	huge, err := os.Create(filepath.Join(dir, "huge"))
	if err != nil {
		t.Fatal(err)
	}
	if err := huge.Truncate(1 << 40); err != nil {
		t.Fatal(err)
	}
	huge.Close()
	for _, c := range []struct {
		name string
		o    ReadOptions
		want Text
		err  string
	}{
		{"f", ReadOptions{MaxBytes: 100}, Text{Content: "one\ntwo\nthree\nfour", Start: 1, Lines: 4}, ""},
		{"f", ReadOptions{MaxBytes: 100, Start: 2, End: 3}, Text{Content: "two\nthree\n", Start: 2, Lines: 2}, ""},
		{"f", ReadOptions{MaxBytes: 100, Start: 4}, Text{Content: "four", Start: 4, Lines: 1}, ""},
		{"f", ReadOptions{MaxBytes: 100, Start: 4, End: 400}, Text{Content: "four", Start: 4, Lines: 1}, ""},
		{"f", ReadOptions{MaxBytes: 100, Start: 9}, Text{}, "only 4"},
		{"f", ReadOptions{MaxBytes: 5}, Text{Content: "one\nt", Start: 1, Lines: 2, Truncated: true}, ""},
		{"f", ReadOptions{MaxBytes: 100, End: 1}, Text{Content: "one\n", Start: 1, Lines: 1}, ""},
		{"empty", ReadOptions{MaxBytes: 100}, Text{Start: 1}, ""},
		{"runes", ReadOptions{MaxBytes: 100}, Text{Content: strings.Repeat("€", 33), Start: 1, Lines: 1, Truncated: true}, ""},
		{"latin", ReadOptions{MaxBytes: 100}, Text{Binary: true, Start: 1}, ""},
		{"long", ReadOptions{MaxBytes: 100, Start: 2}, Text{Content: "last\n", Start: 2, Lines: 1}, ""},
		{"huge", ReadOptions{MaxBytes: 100}, Text{Binary: true, Start: 1}, ""},
	} {
		got, err := tr.ReadText(t.Context(), c.name, c.o)
		got.Size = 0
		if (err == nil) != (c.err == "") || (err != nil && !strings.Contains(err.Error(), c.err)) || got != c.want {
			t.Errorf("%s %+v: %+v, %v", c.name, c.o, got, err)
		}
	}
}

func TestSearch(t *testing.T) {
	tr, dir := newTree(t)
	put(t, filepath.Join(dir, "a.txt"), "Hello\nworld\nhello again\r\n")
	put(t, filepath.Join(dir, "d/b.txt"), "say hello\n")
	put(t, filepath.Join(dir, ".git/c"), "hello\n")
	put(t, filepath.Join(dir, "bin"), "hello\x00\n")
	put(t, filepath.Join(dir, "wide"), strings.Repeat("é", 500)+"needle"+strings.Repeat("é", 500))
	big, err := os.Create(filepath.Join(dir, "big"))
	if err != nil {
		t.Fatal(err)
	}
	if err := big.Truncate(maxSearchFile + 1); err != nil {
		t.Fatal(err)
	}
	big.Close()
	found, err := tr.Search(t.Context(), "", SearchOptions{Query: "HELLO", Limit: 10})
	want := []Match{{"a.txt", 1, "Hello"}, {"a.txt", 3, "hello again"}, {"d/b.txt", 1, "say hello"}}
	if err != nil || len(found.Matches) != 3 || found.Skipped != 1 || found.More {
		t.Fatalf("%+v, %v", found, err)
	}
	for i, m := range want {
		if found.Matches[i] != m {
			t.Errorf("%+v, want %+v", found.Matches[i], m)
		}
	}
	if found, _ := tr.Search(t.Context(), "d", SearchOptions{Query: `^say\s`, Regex: true, Limit: 10}); len(found.Matches) != 1 {
		t.Errorf("%+v", found)
	}
	if found, _ := tr.Search(t.Context(), "a.txt", SearchOptions{Query: "hello", Limit: 1}); len(found.Matches) != 1 || !found.More {
		t.Errorf("%+v", found)
	}
	found, _ = tr.Search(t.Context(), "", SearchOptions{Query: "needle", Limit: 1})
	if m := found.Matches; len(m) != 1 || len(m[0].Text) > 300 || !strings.Contains(m[0].Text, "needle") || !utf8.ValidString(m[0].Text) {
		t.Errorf("%+v", m)
	}
}

func TestUnpack(t *testing.T) {
	archive := func(headers ...tar.Header) *bytes.Reader {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range headers {
			if h.Typeflag == tar.TypeReg {
				h.Size = 5
			}
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
			if h.Size > 0 {
				_, _ = w.Write([]byte("text\n"))
			}
		}
		_ = w.Close()
		return bytes.NewReader(b.Bytes())
	}
	file := func(name string) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o4755}
	}
	t.Run("good", func(t *testing.T) {
		tr, dir := newTree(t)
		err := tr.Unpack(t.Context(), archive(
			tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755}, file("a/b"), file("./c"),
			tar.Header{Name: "up", Typeflag: tar.TypeSymlink, Linkname: "../../etc"},
			tar.Header{Name: "hard", Typeflag: tar.TypeLink, Linkname: "a/b"}))
		if err != nil {
			t.Fatal(err)
		}
		st, err := os.Stat(filepath.Join(dir, "hard"))
		if err != nil || st.Mode() != 0o755 || st.Size() != 5 {
			t.Errorf("%v, %v", st, err)
		}
	})
	for name, headers := range map[string][]tar.Header{
		"dots":              {file("../x")},
		"dots inside":       {file("a/../../x")},
		"absolute":          {file("/tmp/msb-x")},
		"through a link":    {{Name: "l", Typeflag: tar.TypeSymlink, Linkname: ".."}, file("l/x")},
		"device":            {{Name: "d", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}},
		"pipe":              {{Name: "p", Typeflag: tar.TypeFifo}},
		"hard link outside": {{Name: "h", Typeflag: tar.TypeLink, Linkname: "../outside"}},
		"hard link by link": {{Name: "l", Typeflag: tar.TypeSymlink, Linkname: ".."}, {Name: "h", Typeflag: tar.TypeLink, Linkname: "l/outside"}},
		"root as file":      {file(".")},
	} {
		t.Run(name, func(t *testing.T) {
			tr, dir := newTree(t)
			put(t, filepath.Join(filepath.Dir(dir), "outside"), "secret")
			if err := tr.Unpack(t.Context(), archive(headers...)); err == nil {
				t.Error("it was unpacked")
			}
			if names, _ := os.ReadDir(filepath.Dir(dir)); len(names) != 2 {
				t.Errorf("it wrote outside: %v", names)
			}
		})
	}
	t.Run("garbage", func(t *testing.T) {
		tr, _ := newTree(t)
		if err := tr.Unpack(t.Context(), bytes.NewReader(bytes.Repeat([]byte("junk"), 1000))); err == nil {
			t.Error("it was unpacked")
		}
	})
}

func TestContextEnds(t *testing.T) {
	tr, _ := newTree(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := tr.ReadText(ctx, "x", ReadOptions{MaxBytes: 1}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

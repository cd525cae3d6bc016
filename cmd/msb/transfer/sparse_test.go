package transfer

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func blocks(t *testing.T, path string) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

// What is zero is not written, in whatever pieces it comes, and the file is the same all the same.
func TestSparseWriter(t *testing.T) {
	want := make([]byte, 5<<20+123)
	copy(want, "head")
	copy(want[2<<20+7:], "middle")
	for name, content := range map[string][]byte{
		"holes": want, "only zeros": make([]byte, 1<<20), "nothing": nil, "no hole": bytes.Repeat([]byte("x"), 100_000), "ends in data": append(make([]byte, 1<<20), 'x'),
	} {
		for _, piece := range []int{1000, 4096, 1 << 20} {
			path := filepath.Join(t.TempDir(), "f")
			f, err := os.Create(path)
			if err != nil {
				t.Fatal(err)
			}
			w := &sparseWriter{f: f}
			if n, err := io.CopyBuffer(onlyWriter{w}, struct{ io.Reader }{bytes.NewReader(content)}, make([]byte, piece)); err != nil || n != int64(len(content)) {
				t.Errorf("%s: %d, %v", name, n, err)
			}
			if err := w.finish(); err != nil {
				t.Error(err)
			}
			f.Close()
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, content) {
				t.Errorf("%s in pieces of %d: %d bytes of %d, %v", name, piece, len(got), len(content), err)
			}
			if used := blocks(t, path); name == "holes" && used > 64<<10 || name == "only zeros" && used > 0 {
				t.Errorf("%s in pieces of %d takes %d bytes", name, piece, used)
			}
		}
	}
}

func TestSparseFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, at := range []int64{1 << 20, 1<<20 + 16<<10, 8 << 20} { // the hole between the first two is a small one
		if _, err := f.WriteAt([]byte("data"), at); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(16 << 20); err != nil {
		t.Fatal(err)
	}
	if blocks(t, path) > 1<<20 {
		t.Skip("a file system without holes")
	}
	s, _, ok := openSparse(&counted{Reader: f, count: func(int64) {}})
	if !ok {
		t.Fatal("no holes were seen")
	}
	var pieces [][2]int64
	for at := int64(0); at < s.size; {
		start, end, err := s.next(at)
		if err != nil {
			t.Fatal(err)
		}
		if end > start {
			pieces = append(pieces, [2]int64{start, end})
		}
		at = max(start, end)
	}
	if len(pieces) != 2 || pieces[0][0] > 1<<20 || pieces[0][1] < 1<<20+16<<10+4 || pieces[1][0] > 8<<20 || pieces[1][1] < 8<<20+4 {
		t.Errorf("pieces %v", pieces)
	}
	if _, _, ok := openSparse(bytes.NewReader(nil)); ok {
		t.Error("what is no file has holes")
	}
}

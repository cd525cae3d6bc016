package image

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"testing"
)

// needMkfs skips on a host without the program that every image is made with.
func needMkfs(t *testing.T) {
	t.Helper()
	if _, err := lookTool("mkfs.ext4"); err != nil {
		t.Skip("mkfs.ext4 is not installed")
	}
}

// markingUnpacker stands for the machine: it reads the tar to its end and leaves a mark in the file.
func markingUnpacker(mark string) Unpacker {
	return func(_ context.Context, raw string, tar io.Reader, size int64) error {
		n, err := io.Copy(io.Discard, tar)
		if err != nil {
			return err
		}
		if n != size {
			return fmt.Errorf("got %d bytes of %d", n, size)
		}
		f, err := os.OpenFile(raw, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.WriteAt([]byte(mark), 64<<20)
		return err
	}
}

type tarFile struct{ name, body string }

func rootTar(t *testing.T, files ...tarFile) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		h := tar.Header{Name: f.name, Mode: 0o644, Size: int64(len(f.body)), Typeflag: tar.TypeReg}
		if strings.HasSuffix(f.name, "/") {
			h.Typeflag, h.Mode = tar.TypeDir, 0o755
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, f.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func smallRoot(t *testing.T) []byte {
	return rootTar(t, tarFile{"./bin/", ""}, tarFile{"./bin/sh", "#!"},
		tarFile{"./etc/os-release", "ID=x\nPRETTY_NAME=\"Some\x1b[31m Linux\"\n"})
}

func importSmall(t *testing.T, l *Library, name, mark string) Image {
	t.Helper()
	img, err := l.Import(context.Background(), name, "small.tar", bytes.NewReader(smallRoot(t)), Options{Unpack: markingUnpacker(mark)})
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func TestImportAndFind(t *testing.T) {
	needMkfs(t)
	for _, c := range []struct {
		name string
		pack func(t *testing.T, data []byte) []byte
	}{
		{"plain", func(_ *testing.T, data []byte) []byte { return data }},
		{"gzip", gzipped},
		{"xz", func(t *testing.T, data []byte) []byte { return packedWith(t, data, "xz", "-c") }},
		{"zstd", func(t *testing.T, data []byte) []byte { return packedWith(t, data, "zstd", "-qc") }},
		{"trailing garbage", func(_ *testing.T, data []byte) []byte { return append(data, "garbage"...) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := testLibrary(t)
			var last string
			img, err := l.Import(context.Background(), "mine", "small.tar", bytes.NewReader(c.pack(t, smallRoot(t))), Options{
				Unpack:   markingUnpacker("mark"),
				Progress: func(stage string, _ float64) { last = stage },
			})
			if err != nil {
				t.Fatal(err)
			}
			if img.OS != "Some [31m Linux" || img.Source != "small.tar" || img.Size%(128<<20) != 0 || last != "done" {
				t.Errorf("image is %+v, last stage %q", img, last)
			}
			info, err := os.Stat(img.Path)
			if err != nil || info.Mode() != 0o444 || info.Size() != img.Size {
				t.Errorf("file is %v, %v", info, err)
			}
			for _, ref := range []string{"mine", img.SHA256, img.SHA256[:8], "sha256:" + img.SHA256} {
				if got, err := l.Get(ref); err != nil || got != img {
					t.Errorf("Get(%q) = %+v, %v", ref, got, err)
				}
			}
			if list, err := l.List(); err != nil || len(list) != 1 || list[0] != img {
				t.Errorf("List = %+v, %v", list, err)
			}
			if err := l.Verify(context.Background(), img, func(string, float64) { t.Error("a fresh image is read again") }); err != nil {
				t.Error(err)
			}
			noTraces(t, l)
		})
	}
}

func TestImportRefuses(t *testing.T) {
	whole := smallRoot(t)
	big := rootTar(t, tarFile{"etc/", ""}, tarFile{"etc/big", strings.Repeat("x", 100_000)})
	for _, c := range []struct {
		name  string
		image string
		data  []byte
		want  string
	}{
		{"nothing", "x", nil, "empty"},
		{"a text", "x", []byte(strings.Repeat("this is no tar\n", 100)), "not a tar"},
		{"a short text", "x", []byte("hello"), "not a tar"},
		{"end marker only", "x", make([]byte, 10240), "holds no root file system"},
		{"directories only", "x", rootTar(t, tarFile{"etc/", ""}), "holds no root file system"},
		{"no end marker", "x", whole[:len(whole)-1024], "truncated"},
		{"half an end marker", "x", whole[:len(whole)-512], "truncated"},
		{"cut in a file", "x", big[:50_000], "truncated"},
		{"cut in a header", "x", big[:700], "truncated"},
		{"damaged", "x", append(append([]byte{}, whole[:512]...), bytes.Repeat([]byte("x"), 4096)...), "damaged"},
		{"cut gzip", "x", gzipped(t, big)[:100], "gzip"},
		{"all below one directory", "x", rootTar(t, tarFile{"rootfs/bin/sh", "x"}, tarFile{"rootfs/etc/passwd", "x"}), "below \"rootfs\""},
		{"no root", "x", rootTar(t, tarFile{"a", "x"}, tarFile{"b", "x"}), "no /bin"},
		{"docker save", "x", rootTar(t, tarFile{"manifest.json", "[]"}, tarFile{"0a1b/layer.tar", "x"}), "docker export"},
		{"bad name", "../x", whole, "bad image name"},
		{"checksum as a name", strings.Repeat("ab", 32), whole, "looks like a checksum"},
		{"name of a built-in one", "tiny", whole, "built-in"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := testLibrary(t)
			_, err := l.Import(context.Background(), c.image, "file", bytes.NewReader(c.data), Options{
				Unpack: func(context.Context, string, io.Reader, int64) error {
					t.Error("it is unpacked")
					return nil
				},
			})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want %q in it", err, c.want)
			}
			nothingKept(t, l)
		})
	}
}

// nothingKept fails unless the library has no image at all, finished or not.
func nothingKept(t *testing.T, l *Library) {
	t.Helper()
	entries, err := os.ReadDir(l.imagesDir())
	if err != nil || len(entries) > 0 {
		t.Errorf("the library holds %v, %v", entries, err)
	}
	noTraces(t, l)
}

func TestBuildsOfOneNameWaitForEachOther(t *testing.T) {
	needMkfs(t)
	if _, err := lookTool("busybox"); err != nil {
		t.Skip("busybox is not installed")
	}
	l := testLibrary(t)
	var built, inside atomic.Int32
	options := Options{Unpack: func(ctx context.Context, raw string, tar io.Reader, size int64) error {
		if inside.Add(1) > 1 {
			t.Error("two builds at once")
		}
		defer inside.Add(-1)
		built.Add(1)
		return markingUnpacker("x")(ctx, raw, tar, size)
	}}
	results := make(chan Image)
	for range 3 {
		go func() {
			other, err := Open(l.Dir()) // as another process would
			if err != nil {
				t.Error(err)
			}
			img, err := other.Ensure(context.Background(), "tiny", options)
			if err != nil {
				t.Error(err)
			}
			results <- img
		}()
	}
	first := <-results
	for range 2 {
		if img := <-results; img != first {
			t.Errorf("%+v and %+v", img, first)
		}
	}
	if built.Load() != 1 {
		t.Errorf("built %d times", built.Load())
	}
	noTraces(t, l)
}

func TestBuildUnknown(t *testing.T) {
	_, err := testLibrary(t).Build(context.Background(), "alpine", Options{Unpack: markingUnpacker("")})
	if err == nil || !strings.Contains(err.Error(), "debian and tiny") {
		t.Errorf("error is %v", err)
	}
}

package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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

func TestFailedUnpackLeavesNothing(t *testing.T) {
	needMkfs(t)
	boom := errors.New("boom")
	for _, c := range []struct {
		name   string
		unpack Unpacker
		want   string
	}{
		{"fails", func(context.Context, string, io.Reader, int64) error { return boom }, "boom"},
		{"destroys the file system", func(_ context.Context, raw string, _ io.Reader, _ int64) error {
			return os.Truncate(raw, 0)
		}, "EOF"},
		{"leaves another file system", func(_ context.Context, raw string, _ io.Reader, _ int64) error {
			f, err := os.OpenFile(raw, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.WriteAt([]byte{0}, 1024+56)
			return err
		}, "no ext4"},
		{"leaves it mounted", func(_ context.Context, raw string, _ io.Reader, _ int64) error {
			f, err := os.OpenFile(raw, os.O_RDWR, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			var b [1]byte
			if _, err := f.ReadAt(b[:], 1024+0x60); err != nil {
				return err
			}
			b[0] |= 4
			_, err = f.WriteAt(b[:], 1024+0x60)
			return err
		}, "not unmounted"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := testLibrary(t)
			_, err := l.Import(context.Background(), "x", "file", bytes.NewReader(smallRoot(t)), Options{Unpack: c.unpack})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want %q in it", err, c.want)
			}
			nothingKept(t, l)
		})
	}
}

func TestCancelledImportLeavesNothing(t *testing.T) {
	needMkfs(t)
	t.Run("while it reads a pipe that stalls", func(t *testing.T) {
		l := testLibrary(t)
		r, w := io.Pipe()
		defer w.Close()
		ctx, cancel := context.WithCancel(context.Background())
		go func() {
			_, _ = w.Write(smallRoot(t)[:100])
			cancel()
		}()
		if _, err := l.Import(ctx, "x", "-", r, Options{Unpack: markingUnpacker("")}); !errors.Is(err, context.Canceled) {
			t.Errorf("error is %v", err)
		}
		nothingKept(t, l)
	})
	t.Run("while it is unpacked", func(t *testing.T) {
		l := testLibrary(t)
		ctx, cancel := context.WithCancel(context.Background())
		_, err := l.Import(ctx, "x", "file", bytes.NewReader(smallRoot(t)), Options{
			Unpack: func(ctx context.Context, _ string, _ io.Reader, _ int64) error {
				cancel()
				<-ctx.Done()
				return ctx.Err()
			},
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("error is %v", err)
		}
		nothingKept(t, l)
	})
	t.Run("while it is summed", func(t *testing.T) {
		l := testLibrary(t)
		ctx, cancel := context.WithCancel(context.Background())
		_, err := l.Import(ctx, "x", "file", bytes.NewReader(smallRoot(t)), Options{
			Unpack: markingUnpacker("x"),
			Progress: func(stage string, _ float64) {
				if stage == "checksum" {
					cancel()
				}
			},
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("error is %v", err)
		}
		nothingKept(t, l)
	})
}

func TestImportOnAFullDisk(t *testing.T) {
	needMkfs(t)
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a small disk")
	}
	for _, c := range []struct {
		name string
		size string
		data []byte
		fill bool // the unpacker fills the disk
	}{
		{"while the tar is read", "size=1m", rootTar(t, tarFile{"etc/x", strings.Repeat("x", 4<<20)}), false},
		{"before the file system is made", "size=5m", rootTar(t, tarFile{"etc/x", strings.Repeat("x", 4<<20)}), false},
		{"while it is unpacked", "size=8m", smallRoot(t), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := unix.Mount("tmpfs", dir, "tmpfs", 0, c.size); err != nil {
				t.Skipf("cannot mount a tmpfs here: %v", err)
			}
			defer func() {
				if err := unix.Unmount(dir, 0); err != nil {
					t.Error(err)
				}
			}()
			l, err := Open(filepath.Join(dir, "library"))
			if err != nil {
				t.Fatal(err)
			}
			_, err = l.Import(context.Background(), "x", "file", bytes.NewReader(c.data), Options{
				Unpack: func(_ context.Context, raw string, _ io.Reader, _ int64) error {
					f, err := os.OpenFile(raw, os.O_WRONLY, 0)
					if err != nil {
						return err
					}
					defer f.Close()
					for at := int64(0); ; at += 1 << 20 {
						if _, err := f.WriteAt(make([]byte, 1<<20), 64<<20+at); err != nil {
							return err
						}
					}
				},
			})
			if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "disk is full") {
				t.Errorf("error is %v", err)
			}
			nothingKept(t, l)
		})
	}
}

func TestVerify(t *testing.T) {
	needMkfs(t)
	change := func(t *testing.T, img Image, at int64) {
		t.Helper()
		if err := os.Chmod(img.Path, 0o644); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(img.Path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteAt([]byte("changed"), at); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name string
		do   func(t *testing.T, img Image)
		want string // "" = fine
	}{
		{"copied to another inode", func(t *testing.T, img Image) {
			if err := copyFile(img.Path, img.Path+".copy"); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(img.Path+".copy", img.Path); err != nil {
				t.Fatal(err)
			}
		}, ""},
		{"touched", func(t *testing.T, img Image) {
			if err := os.Chtimes(img.Path, time.Now(), time.Now()); err != nil {
				t.Fatal(err)
			}
		}, ""},
		{"missing", func(t *testing.T, img Image) {
			if err := os.Remove(img.Path); err != nil {
				t.Fatal(err)
			}
		}, "is missing"},
		{"changed", func(t *testing.T, img Image) { change(t, img, 70<<20) }, "checksum is wrong"},
		{"cut", func(t *testing.T, img Image) {
			change(t, img, 0)
			if err := os.Truncate(img.Path, 1<<20); err != nil {
				t.Fatal(err)
			}
		}, "1048576 bytes instead of"},
		{"grown", func(t *testing.T, img Image) { change(t, img, img.Size) }, "bytes instead of"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := testLibrary(t)
			img := importSmall(t, l, "mine", "mark")
			c.do(t, img)
			err := l.Verify(context.Background(), img, nil)
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				if err := l.Verify(context.Background(), img, func(string, float64) { t.Error("read again after it was found right") }); err != nil {
					t.Fatal(err)
				}
				return
			}
			if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), img.Path) ||
				!strings.Contains(err.Error(), "msb image import") {
				t.Errorf("error is %v", err)
			}
			// What the message says is what helps.
			img = importSmall(t, l, "mine", "mark")
			if err := l.Verify(context.Background(), img, nil); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestGetMissing(t *testing.T) {
	l := testLibrary(t)
	for ref, want := range map[string]string{
		"tiny":         "run `msb image build tiny`",
		"debian":       "run `msb image build debian`",
		"alpine":       "msb image import",
		"abcdef123456": "msb image ls",
		"../../etc/x":  "none called",
		"a\x1b[31mb":   `\x1b[31m`,
		"":             "none called",
	} {
		if _, err := l.Get(ref); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), want) {
			t.Errorf("Get(%q): error is %v, want %q in it", ref, err, want)
		}
	}
}

func TestDamagedRecord(t *testing.T) {
	l := testLibrary(t)
	if err := os.WriteFile(l.recordPath("mine"), []byte(`{"name":"mine","sha256":"../../etc/passwd"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Get("mine"); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("error is %v", err)
	}
}

func TestRemove(t *testing.T) {
	needMkfs(t)
	l := testLibrary(t)
	ctx := context.Background()
	img := importSmall(t, l, "mine", "one")
	used := func(sha string) ([]string, error) {
		if sha != img.SHA256 {
			t.Errorf("asked for %s", sha)
		}
		return []string{"demo"}, nil
	}
	free := func(string) ([]string, error) { return nil, nil }
	if err := l.Remove(ctx, "mine", used); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "demo") {
		t.Errorf("removing one in use: %v", err)
	}
	release, err := l.Hold(img)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Remove(ctx, "mine", free); !errors.Is(err, ErrInUse) {
		t.Errorf("removing one that is held: %v", err)
	}
	release()
	if _, err := l.Get("mine"); err != nil {
		t.Fatal(err)
	}
	if err := l.Remove(ctx, "mine", free); err != nil {
		t.Fatal(err)
	}
	nothingKept(t, l)
	if err := l.Remove(ctx, "mine", free); !errors.Is(err, ErrNotFound) {
		t.Errorf("removing it again: %v", err)
	}
}

func TestNewBuildKeepsWhatSandboxesUse(t *testing.T) {
	needMkfs(t)
	l := testLibrary(t)
	first := importSmall(t, l, "mine", "one")
	second := importSmall(t, l, "mine", "two")
	if first.SHA256 == second.SHA256 {
		t.Fatal("both are the same")
	}
	if got, err := l.Get(first.SHA256); err != nil || got.Name != "" || got.Path != first.Path {
		t.Errorf("the former one is %+v, %v", got, err)
	}
	removed, err := l.Prune(func(sha string) ([]string, error) { return []string{"demo"}, nil })
	if err != nil || len(removed) > 0 {
		t.Errorf("pruned %v, %v", removed, err)
	}
	removed, err = l.Prune(func(sha string) ([]string, error) { return nil, nil })
	if err != nil || !slices.Equal(removed, []string{first.SHA256}) {
		t.Errorf("pruned %v, %v", removed, err)
	}
	if err := l.Verify(context.Background(), second, nil); err != nil {
		t.Error(err)
	}
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

func TestWaitForAnotherBuildCanBeCancelled(t *testing.T) {
	l := testLibrary(t)
	release, err := l.lock(context.Background(), "image-x", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	ctx, cancel := context.WithCancel(context.Background())
	_, err = l.Import(ctx, "x", "file", bytes.NewReader(smallRoot(t)), Options{
		Unpack: markingUnpacker(""),
		Progress: func(stage string, _ float64) {
			if strings.Contains(stage, "waiting") {
				cancel()
			}
		},
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
}

// TestLeftoversOfAKilledProcess: what nobody holds is removed by the next build, what somebody holds is not.
func TestLeftoversOfAKilledProcess(t *testing.T) {
	needMkfs(t)
	l := testLibrary(t)
	dead := filepath.Join(l.imagesDir(), tempPrefix+"dead")
	if err := os.WriteFile(dead, make([]byte, 100), 0o600); err != nil {
		t.Fatal(err)
	}
	alive, err := newTempFile(l.imagesDir())
	if err != nil {
		t.Fatal(err)
	}
	importSmall(t, l, "mine", "x")
	if _, err := os.Stat(dead); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the dead one: %v", err)
	}
	if _, err := os.Stat(alive.path); err != nil {
		t.Errorf("the one in use: %v", err)
	}
	alive.discard()
	noTraces(t, l)
}

func TestBuildUnknown(t *testing.T) {
	_, err := testLibrary(t).Build(context.Background(), "alpine", Options{Unpack: markingUnpacker("")})
	if err == nil || !strings.Contains(err.Error(), "debian and tiny") {
		t.Errorf("error is %v", err)
	}
}

// TestFileSystem has the file system's own checker look at what we make, empty and for big contents.
func TestFileSystem(t *testing.T) {
	needMkfs(t)
	fsck, err := lookTool("e2fsck")
	if err != nil {
		t.Skip("e2fsck is not installed")
	}
	for _, s := range []rootStats{
		{},
		{entries: 400, blocks: 600},
		{entries: 300_000, blocks: 300_000},
		{entries: 1_000_000, blocks: 10},
		{entries: 1000, blocks: 20 << 30 / fsBlock},
	} {
		t.Run(fmt.Sprint(s.entries, " ", s.blocks), func(t *testing.T) {
			g := geometryFor(s)
			path := filepath.Join(t.TempDir(), "raw")
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := makeFS(context.Background(), path, g); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command(fsck, "-fn", path).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if err := checkFS(f); err != nil {
				t.Fatal(err)
			}
			var sb [1024]byte
			if _, err := f.ReadAt(sb[:], 1024); err != nil {
				t.Fatal(err)
			}
			inodes, free := le32(sb[0:]), le32(sb[0x0c:])
			if int64(inodes) < s.entries || int64(free) < s.blocks {
				t.Errorf("%d inodes and %d free blocks for %+v", inodes, free, s)
			}
			var st unix.Stat_t
			if err := unix.Stat(path, &st); err != nil || st.Blocks*512 > 64<<20 {
				t.Errorf("an empty file system takes %d MiB of the disk (%v)", st.Blocks*512>>20, err)
			}
		})
	}
}

func le32(b []byte) uint32 {
	return uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24
}

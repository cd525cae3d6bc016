package image

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

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
	deadDir := filepath.Join(l.cacheDir(), tempPrefix+"dead") // of the machine that unpacked
	if err := os.MkdirAll(filepath.Join(deadDir, "sub"), 0o700); err != nil {
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
	if _, err := os.Stat(deadDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the dead directory in the cache: %v", err)
	}
	if _, err := os.Stat(alive.path); err != nil {
		t.Errorf("the one in use: %v", err)
	}
	alive.discard()
	noTraces(t, l)
}

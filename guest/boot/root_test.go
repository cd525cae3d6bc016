package boot

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	wire "msb/protocol/agent"
)

// inRoot runs f with dir as root directory, as the guest runs with the image's.
func inRoot(t *testing.T, dir string, f func() error) error {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("changes its root directory: root only")
	}
	return onThread(func() error {
		if err := unix.Chroot(dir); err != nil {
			return err
		}
		if err := unix.Chdir("/"); err != nil {
			return err
		}
		return f()
	})
}

func TestMountRequestedRefusals(t *testing.T) {
	for _, tc := range []struct {
		name  string
		where place
		ask   wire.BootstrapPayload
		want  string
	}{
		{"a share without a machine", namespaced, wire.BootstrapPayload{DirMounts: []wire.DirMount{{GuestPath: "/src"}}}, "folder /src cannot be shared"},
		{"a file without a machine", namespaced, wire.BootstrapPayload{FileMounts: []wire.FileMount{{GuestPath: "/f"}}}, "file /f cannot be shared"},
		{"a disk without a machine", namespaced, wire.BootstrapPayload{DiskMounts: []wire.DiskMount{{ID: "d1"}}}, "disk d1 cannot be mounted"},
		{"memory at a relative path", namespaced, wire.BootstrapPayload{TmpfsMounts: []wire.TmpfsMount{{Path: "x"}}}, `"x" is not an absolute path`},
		{"a share at a relative path", virtual, wire.BootstrapPayload{DirMounts: []wire.DirMount{{GuestPath: "x"}}}, `"x" is not an absolute path`},
		{"a file above its share", virtual, wire.BootstrapPayload{FileMounts: []wire.FileMount{{Tag: "t", Filename: ".."}}}, "not the name of a file"},
		{"a file below its share", virtual, wire.BootstrapPayload{FileMounts: []wire.FileMount{{Tag: "t", Filename: "a/b"}}}, "not the name of a file"},
		{"a disk that is not there", virtual, wire.BootstrapPayload{DiskMounts: []wire.DiskMount{{ID: "no-such-serial", GuestPath: "/d"}}}, "no disk has this serial number"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := mountRequested(&tc.ask, tc.where); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v; want %q in it", err, tc.want)
			}
		})
	}
	if err := mountRequested(&wire.BootstrapPayload{}, namespaced); err != nil {
		t.Errorf("nothing asked for: %v", err)
	}
}

func TestMountRootRefusals(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		root wire.BlockRoot
		want string
	}{
		{"unknown kind", wire.BlockRoot{Kind: "floppy"}, `kind "floppy" is unknown`},
		{"no device", wire.BlockRoot{Kind: wire.RootDiskImage}, "no device was named"},
		{"a file", wire.BlockRoot{Kind: wire.RootDiskImage, Device: file}, "is not a block device"},
		{"no upper layer", wire.BlockRoot{Kind: wire.RootOCIErofs, Lower: file}, "has no upper layer"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := mountRoot(&tc.root, t.TempDir()); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v; want %q in it", err, tc.want)
			}
		})
	}
}

func TestFlagsOf(t *testing.T) {
	all := uintptr(unix.MS_RDONLY | unix.MS_NOEXEC | unix.MS_NOSUID | unix.MS_NODEV)
	for in, want := range map[wire.MountFlags]uintptr{
		{}:                           0,
		{ReadOnly: true}:             unix.MS_RDONLY,
		{NoExec: true, NoSUID: true}: unix.MS_NOEXEC | unix.MS_NOSUID,
		{ReadOnly: true, NoExec: true, NoSUID: true, NoDev: true}: all,
	} {
		if got := flagsOf(in); got != want {
			t.Errorf("%+v: %#x, want %#x", in, got, want)
		}
	}
}

func TestReplaceFile(t *testing.T) {
	dir := t.TempDir()
	outside, path := filepath.Join(dir, "outside"), filepath.Join(dir, "inside")
	if err := errors.Join(os.WriteFile(outside, []byte("mine"), 0o600), os.Symlink(outside, path)); err != nil {
		t.Fatal(err)
	}
	if err := replaceFile(path, []byte("new"), 0o640); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != 0o640 {
		t.Errorf("it is %v, %v", info.Mode(), err)
	}
	for file, want := range map[string]string{path: "new", outside: "mine"} {
		if b, err := os.ReadFile(file); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", file, b, err)
		}
	}
	if err := replaceFile(filepath.Join(dir, "none", "x"), nil, 0o600); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("in no folder: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.msb-new")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestLoadModules(t *testing.T) {
	dir := t.TempDir()
	if err := loadModules(dir, "order"); err != nil {
		t.Errorf("no list: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "order"), []byte("nosuch.ko\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := loadModules(dir, "order"); err == nil || !strings.Contains(err.Error(), "load kernel module nosuch.ko: no such file") {
		t.Errorf("a module that is not there: %v", err)
	}
}

// A port's stream arrives as it was sent, whatever size the reads have, and ends.
func TestPortFile(t *testing.T) {
	for name, size := range map[string]int{"small reads": 100, "one page": portPiece, "many pages": 64 << 10, "more than its vector": 256 << 10} {
		t.Run(name, func(t *testing.T) {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			p, err := newPortFile(r)
			if err != nil {
				t.Fatal(err)
			}
			sent := make([]byte, 300<<10)
			for i := range sent {
				sent[i] = byte(i*7 + i>>8)
			}
			go func() { _, _ = w.Write(sent); _ = w.Close() }()
			var got bytes.Buffer
			if _, err := io.CopyBuffer(struct{ io.Writer }{&got}, struct{ io.Reader }{p}, make([]byte, size)); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got.Bytes(), sent) {
				t.Errorf("%d bytes came, and they are not the %d that were sent", got.Len(), len(sent))
			}
		})
	}
}

func TestUnpackReply(t *testing.T) {
	for want, err := range map[string]error{
		"ok\n":                        nil,
		"error: no space left\n":      errors.New("no space left"),
		"error: in two lines of it\n": errors.New("in two\nlines\tof it\n"),
	} {
		if got := reply(err); got != want {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
}

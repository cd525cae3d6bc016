package image_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"msb/vmm/engine"
	"msb/vmm/image"
	"msb/vmm/qemu"
)

// machineParts are what a test that boots a machine works with, taken from the home that MSB_TEST_HOME names and the
// guest agent that MSB_GUEST names, or made.
type machineParts struct {
	library *image.Library // of the test's own
	kernel  image.Kernel
	guest   string
}

func needMachine(t *testing.T) machineParts {
	t.Helper()
	if testing.Short() {
		t.Skip("skipped, since -short is given: boots a virtual machine")
	}
	if err := qemu.New().Check(t.Context()); err != nil {
		t.Skipf("skipped, since QEMU cannot run: %v", err)
	}
	home := os.Getenv("MSB_TEST_HOME")
	if home == "" {
		t.Skip("skipped, since there is no home with a kernel: run make test, which sets MSB_TEST_HOME")
	}
	shared, err := image.Open(home)
	if err != nil {
		t.Fatal(err)
	}
	kernel, err := shared.Kernel()
	if err != nil {
		t.Fatal(err)
	}
	l, err := image.Open(filepath.Join(t.TempDir(), "library"))
	if err != nil {
		t.Fatal(err)
	}
	return machineParts{l, kernel, guestAgent(t)}
}

func guestAgent(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("MSB_GUEST"); path != "" {
		return path
	}
	path := filepath.Join(t.TempDir(), "msb-guest")
	cmd := exec.Command("go", "build", "-o", path, "msb/guest/msb-guest")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("skipped, since the guest agent cannot be built: %v: %s", err, out)
	}
	return path
}

// checkImage looks into an image without mounting it.
func checkImage(t *testing.T, img image.Image) {
	t.Helper()
	path := os.Getenv("PATH") + ":/usr/sbin:/sbin"
	t.Setenv("PATH", path)
	if out, err := exec.Command("e2fsck", "-fn", img.Path).CombinedOutput(); err != nil {
		t.Errorf("e2fsck: %v: %s", err, out)
	}
	for _, c := range []struct{ request, want string }{
		{"stat /home/dev", "User:  1000   Group:  1000"},
		{"stat /bin/busybox", "Mode:  0755"},
		{"stat /bin/sh", "Type: symlink"},
		{"cat /etc/passwd", "dev:x:1000:1000:"},
		{"stat /tmp", "Mode:  01777"},
	} {
		out, err := exec.Command("debugfs", "-R", c.request, img.Path).Output()
		if err != nil || !strings.Contains(string(out), c.want) {
			t.Errorf("%s: %v, want %q in\n%s", c.request, err, c.want, out)
		}
	}
}

func TestTinyBuiltInAMachine(t *testing.T) {
	p := needMachine(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var stages []string
	img, err := p.library.Build(ctx, "tiny", image.Options{
		Unpack: p.library.UnpackInVM(qemu.New(), p.kernel, p.guest, engine.AccelTCG),
		Progress: func(stage string, _ float64) {
			if len(stages) == 0 || stages[len(stages)-1] != stage {
				stages = append(stages, stage)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("stages: %q", stages)
	checkImage(t, img)
	if err := p.library.Verify(ctx, img, nil); err != nil {
		t.Error(err)
	}
	nothingUnfinished(t, p.library)
}

func TestTinyBuiltOnALoopDevice(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root has loop devices")
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		t.Skipf("no loop devices here: %v", err)
	}
	l, err := image.Open(filepath.Join(t.TempDir(), "library"))
	if err != nil {
		t.Fatal(err)
	}
	img, err := l.Build(t.Context(), "tiny", image.Options{Unpack: image.UnpackOnLoop(guestAgent(t))})
	if err != nil {
		t.Fatal(err)
	}
	checkImage(t, img)
	nothingUnfinished(t, l)
	noLoopDevice(t, l)
}

// TestHostileTarInAMachine: what a tar does to whoever unpacks it stays in the machine, and only an image without it
// or no image comes of it.
func TestHostileTarInAMachine(t *testing.T) {
	p := needMachine(t)
	var data bytes.Buffer
	w := tar.NewWriter(&data)
	victim := filepath.Join(t.TempDir(), "victim")
	for _, h := range []tar.Header{
		{Name: "etc/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "etc/issue", Mode: 0o644},
		{Name: "out", Typeflag: tar.TypeSymlink, Linkname: filepath.Dir(victim)},
		{Name: "out/victim", Mode: 0o644},
		{Name: "../../../../../.." + victim, Mode: 0o644},
	} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := p.library.Import(t.Context(), "hostile", "hostile.tar", &data, image.Options{
		Unpack: p.library.UnpackInVM(qemu.New(), p.kernel, p.guest, engine.AccelTCG),
	})
	t.Logf("import says: %v", err)
	if _, err := os.Lstat(victim); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s was written on the host (%v)", victim, err)
	}
	if _, getErr := p.library.Get("hostile"); (err == nil) != (getErr == nil) {
		t.Errorf("import: %v, get: %v", err, getErr)
	}
	nothingUnfinished(t, p.library)
}

// TestCancelledInAMachine stops in the middle of the tar.
func TestCancelledInAMachine(t *testing.T) {
	p := needMachine(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	content := &endless{left: 256 << 20}
	data := io.MultiReader(bytes.NewReader(bigFileHeader(t, content.left)), content, bytes.NewReader(make([]byte, 1024)))
	_, err := p.library.Import(ctx, "big", "big.tar", data, image.Options{
		Unpack: p.library.UnpackInVM(qemu.New(), p.kernel, p.guest, engine.AccelTCG),
		Progress: func(stage string, fraction float64) {
			if stage == "unpacking" && fraction > 0.1 {
				cancel()
			}
		},
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
	if _, err := p.library.Get("big"); !errors.Is(err, image.ErrNotFound) {
		t.Errorf("there is an image: %v", err)
	}
	nothingUnfinished(t, p.library)
	noProcess(t, p.library)
}

func bigFileHeader(t *testing.T, size int64) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := tar.NewWriter(&out).WriteHeader(&tar.Header{Name: "etc/big", Mode: 0o644, Size: size}); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// endless gives left bytes.
type endless struct{ left int64 }

func (e *endless) Read(p []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	n := int(min(int64(len(p)), e.left))
	for i := range p[:n] {
		p[i] = byte(i) | 1
	}
	e.left -= int64(n)
	return n, nil
}

// nothingUnfinished fails when something temporary is left in the library.
func nothingUnfinished(t *testing.T, l *image.Library) {
	t.Helper()
	err := filepath.WalkDir(l.Dir(), func(path string, _ os.DirEntry, err error) error {
		if err == nil && strings.HasPrefix(filepath.Base(path), ".") {
			t.Errorf("left behind: %s", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// noProcess fails when a process that was started for the library still runs.
func noProcess(t *testing.T, l *image.Library) {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range lines {
		if data, err := os.ReadFile(path); err == nil && bytes.Contains(data, []byte(l.Dir())) {
			t.Errorf("still runs: %q", data)
		}
	}
}

// noLoopDevice fails when a loop device still holds a file of the library.
func noLoopDevice(t *testing.T, l *image.Library) {
	t.Helper()
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		if data, err := os.ReadFile(path); err == nil && strings.HasPrefix(string(data), l.Dir()) {
			t.Errorf("%s still holds %s", path, data)
		}
	}
}

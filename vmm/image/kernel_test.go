package image

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestUseKernelUnpacksWhatBootsByPVH(t *testing.T) {
	vmlinux := elfFile("", pvhNote())
	for _, c := range []struct {
		name    string
		kernel  func(t *testing.T) []byte
		unpacks bool
	}{
		{"gzip", func(t *testing.T) []byte { return bzImage("6.9.1-test", gzipped(t, vmlinux), false) }, true},
		{"xz", func(t *testing.T) []byte {
			return bzImage("6.9.1-test", packedWith(t, vmlinux, "xz", "-c", "--check=crc32"), true)
		}, true},
		{"zstd", func(t *testing.T) []byte {
			return bzImage("6.9.1-test", packedWith(t, vmlinux, "zstd", "-c", "-q"), true)
		}, true},
		{"lz4", func(t *testing.T) []byte { return bzImage("6.9.1-test", packedWith(t, vmlinux, "lz4", "-lc"), true) }, true},
		{"bzip2", func(t *testing.T) []byte { return bzImage("6.9.1-test", packedWith(t, vmlinux, "bzip2", "-c"), true) }, true},
		{"no PVH entry", func(t *testing.T) []byte { return bzImage("6.9.1-test", gzipped(t, elfFile("", nil)), false) }, false},
		{"damaged payload", func(t *testing.T) []byte { return bzImage("6.9.1-test", []byte("\x1f\x8b\x08 damaged"), false) }, false},
		{"unknown payload", func(t *testing.T) []byte { return bzImage("6.9.1-test", []byte("????????????"), true) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := testLibrary(t)
			path := filepath.Join(t.TempDir(), "vmlinuz")
			if err := os.WriteFile(path, c.kernel(t), 0o644); err != nil {
				t.Fatal(err)
			}
			k, err := l.UseKernel(context.Background(), path, writeTree(t, moduleFixture()))
			if err != nil {
				t.Fatal(err)
			}
			if k.Version != "6.9.1-test" || k.Image != path {
				t.Errorf("kernel is %+v", k)
			}
			if !c.unpacks {
				if k.Boot != path {
					t.Errorf("boots %s", k.Boot)
				}
				noTraces(t, l)
				return
			}
			got, err := os.ReadFile(k.Boot)
			if err != nil || k.Boot == path || !slices.Equal(got, vmlinux) {
				t.Errorf("boots %s, which has %d bytes (%v), want the %d of the payload", k.Boot, len(got), err, len(vmlinux))
			}
			again, err := l.UseKernel(context.Background(), path, k.ModulesDir)
			if err != nil || again != k {
				t.Errorf("the second time: %+v, %v", again, err)
			}
			noTraces(t, l)
		})
	}
}

func TestUseKernelRefuses(t *testing.T) {
	kernel := filepath.Join(t.TempDir(), "vmlinuz")
	if err := os.WriteFile(kernel, bzImage("6.9.2-other", gzipped(t, elfFile("", pvhNote())), false), 0o644); err != nil {
		t.Fatal(err)
	}
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("hello"), 0o644); err != nil {
		t.Fatal(err)
	}
	modules := writeTree(t, moduleFixture())
	for _, c := range []struct{ name, kernel, modules, want string }{
		{"no file", kernel + "-missing", modules, "no such file"},
		{"a text", text, modules, "not a Linux kernel"},
		{"no modules", kernel, modules + "-missing", "modules directory"},
		{"modules of another kernel", kernel, modules, "6.9.2-other but the modules in " + modules + " are for 6.9.1-test"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := testLibrary(t).UseKernel(context.Background(), c.kernel, c.modules); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want %q in it", err, c.want)
			}
		})
	}
}

func TestNoKernel(t *testing.T) {
	if _, err := testLibrary(t).Kernel(); !errors.Is(err, ErrNoKernel) || !strings.Contains(err.Error(), "--kernel") {
		t.Errorf("error is %v", err)
	}
}

func TestInitramfs(t *testing.T) {
	l := testLibrary(t)
	guest := filepath.Join(t.TempDir(), "msb-guest")
	if err := os.WriteFile(guest, elfFile("agent", nil), 0o755); err != nil {
		t.Fatal(err)
	}
	k := Kernel{Version: "6.9.1-test", ModulesDir: writeTree(t, moduleFixture())}
	path, err := l.Initramfs(context.Background(), k, guest)
	if err != nil {
		t.Fatal(err)
	}
	archive, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]cpioEntry{}
	for _, e := range readCPIO(t, archive) {
		if dir := filepath.Dir(e.name); dir != "." {
			if _, ok := files[dir]; !ok {
				t.Errorf("%s comes before its directory", e.name)
			}
		}
		files[e.name] = e
	}
	if string(files["init"].data) != string(elfFile("agent", nil)) || files["init"].mode != 0o100755 {
		t.Error("init is not the guest agent")
	}
	for _, name := range []string{"dev/console", "dev/null"} {
		if files[name].mode&0o170000 != cpioCharDev {
			t.Errorf("%s is %+v", name, files[name])
		}
	}
	order := strings.Fields(string(files["modules/order"].data))
	late := strings.Fields(string(files["modules/late"].data))
	if len(order) != 10 || len(late) != 3 {
		t.Errorf("order %v, late %v", order, late)
	}
	for _, name := range slices.Concat(order, late) {
		if len(files["modules/"+name].data) == 0 {
			t.Errorf("module %s is not there", name)
		}
	}
	again, err := l.Initramfs(context.Background(), k, guest)
	if err != nil || again != path {
		t.Errorf("the same inputs give %s, %v", again, err)
	}
	if err := os.WriteFile(guest, elfFile("agent 2", nil), 0o755); err != nil {
		t.Fatal(err)
	}
	if other, err := l.Initramfs(context.Background(), k, guest); err != nil || other == path {
		t.Errorf("another agent gives %s, %v", other, err)
	}
	noTraces(t, l)
}

func TestInitramfsRefusesAgentThatCannotBoot(t *testing.T) {
	l := testLibrary(t)
	dir := writeTree(t, map[string][]byte{"script": []byte("#!/bin/sh\n")})
	for path, want := range map[string]string{
		filepath.Join(dir, "script"):  "not a Linux program",
		filepath.Join(dir, "missing"): "no such file",
	} {
		if _, err := l.Initramfs(context.Background(), Kernel{}, path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want %q in it", err, want)
		}
	}
}

func TestCacheKeepsWhatIsUsed(t *testing.T) {
	l := testLibrary(t)
	guest := filepath.Join(t.TempDir(), "msb-guest")
	var first string
	for n := range initramfsKept + 3 {
		if err := os.WriteFile(guest, elfFile(strings.Repeat("x", n), nil), 0o755); err != nil {
			t.Fatal(err)
		}
		path, err := l.Initramfs(context.Background(), Kernel{}, guest)
		if err != nil {
			t.Fatal(err)
		}
		if first == "" {
			first = path
		}
		if _, err := os.Stat(path); err != nil {
			t.Fatal(err)
		}
	}
	left, err := filepath.Glob(filepath.Join(l.cacheDir(), "initramfs-*"))
	if err != nil || len(left) != initramfsKept || slices.Contains(left, first) {
		t.Errorf("%d are left (%v), the oldest among them: %v", len(left), err, slices.Contains(left, first))
	}
}

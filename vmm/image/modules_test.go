package image

import (
	"context"
	"maps"
	"strings"
	"testing"
)

const testVermagic = "vermagic=6.9.1-test SMP preempt mod_unload "

// moduleFixture is a module tree of the usual kind: virtio as modules, ext4 too.
func moduleFixture() map[string][]byte {
	ko := func(depends string, more ...string) []byte {
		return koFile(append([]string{"license=GPL", "depends=" + depends, testVermagic}, more...)...)
	}
	return map[string][]byte{
		"modules.builtin":                                []byte("kernel/lib/crc16.ko\nkernel/fs/fuse/fuse.ko\n"),
		"kernel/drivers/virtio/virtio.ko":                ko("virtio_ring"),
		"kernel/drivers/virtio/virtio_ring.ko":           ko(""),
		"kernel/drivers/virtio/virtio_pci.ko":            ko("virtio_pci_modern_dev,virtio,virtio_ring"),
		"kernel/drivers/virtio/virtio_pci_modern_dev.ko": ko(""),
		"kernel/drivers/virtio/virtio_mem.ko":            ko("virtio"),
		"kernel/drivers/block/virtio_blk.ko":             ko("virtio,virtio_ring"),
		"kernel/drivers/char/virtio_console.ko":          ko("virtio"),
		"kernel/drivers/char/hw_random/virtio-rng.ko":    ko("virtio"),
		"kernel/drivers/net/unrelated.ko":                ko("virtio"),
		"kernel/fs/ext4/ext4.ko":                         ko("jbd2,mbcache,crc16", "softdep=pre: crc32c post: later"),
		"kernel/fs/jbd2/jbd2.ko":                         ko(""),
		"kernel/fs/mbcache.ko":                           ko(""),
		"kernel/crypto/crc32c_generic.ko":                ko(""),
		"kernel/fs/overlayfs/overlay.ko":                 ko(""),
	}
}

func TestModuleOrder(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(t *testing.T, files map[string][]byte)
	}{
		{"plain", func(*testing.T, map[string][]byte) {}},
		{"gzip", packModules("gz", func(t *testing.T, data []byte) []byte { return gzipped(t, data) })},
		{"xz", packModules("xz", func(t *testing.T, data []byte) []byte { return packedWith(t, data, "xz", "-c", "--check=crc32") })},
		{"zstd", packModules("zst", func(t *testing.T, data []byte) []byte { return packedWith(t, data, "zstd", "-c", "-q") })},
		{"indexed", func(_ *testing.T, files map[string][]byte) {
			var dep strings.Builder
			for name := range maps.Keys(files) {
				if strings.HasSuffix(name, ".ko") {
					dep.WriteString(name + ":\n")
				}
			}
			dep.WriteString("../../../etc/virtio_net.ko: \n")
			files["modules.dep"] = []byte(dep.String())
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := moduleFixture()
			c.change(t, files)
			plan := mustPlan(t, writeTree(t, files))
			early := strings.Fields(moduleList(plan.early))
			for _, before := range [][2]string{
				{"virtio_ring.ko", "virtio.ko"}, {"virtio.ko", "virtio_pci.ko"}, {"virtio_pci_modern_dev.ko", "virtio_pci.ko"},
				{"virtio.ko", "virtio_blk.ko"}, {"virtio.ko", "virtio_console.ko"},
				{"jbd2.ko", "ext4.ko"}, {"mbcache.ko", "ext4.ko"}, {"crc32c_generic.ko", "ext4.ko"},
			} {
				if a, b := position(early, before[0]), position(early, before[1]); a < 0 || b < 0 || a > b {
					t.Errorf("%s is not before %s in %v", before[0], before[1], early)
				}
			}
			if len(early) != 10 {
				t.Errorf("%d modules: %v", len(early), early)
			}
			if late := moduleList(plan.late); late != "virtio_mem.ko\noverlay.ko\nvirtio_rng.ko\n" {
				t.Errorf("late modules are %q", late)
			}
			for _, m := range plan.early {
				if !strings.HasPrefix(string(m.data), "\x7fELF") {
					t.Errorf("%s is not unpacked", m.name)
				}
			}
		})
	}
}

func packModules(suffix string, pack func(*testing.T, []byte) []byte) func(*testing.T, map[string][]byte) {
	return func(t *testing.T, files map[string][]byte) {
		for name, data := range maps.Clone(files) {
			if strings.HasSuffix(name, ".ko") {
				delete(files, name)
				files[name+"."+suffix] = pack(t, data)
			}
		}
	}
}

func position(list []string, want string) int {
	for i, s := range list {
		if s == want {
			return i
		}
	}
	return -1
}

func mustPlan(t *testing.T, dir string) *modulePlan {
	t.Helper()
	tree, err := openModuleTree(dir)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := tree.plan(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

func TestModulePlanRefuses(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(files map[string][]byte)
		want   string
	}{
		{"required missing", func(f map[string][]byte) { delete(f, "kernel/drivers/block/virtio_blk.ko") }, "lacks virtio_blk"},
		{"no list of built-in ones", func(f map[string][]byte) {
			delete(f, "kernel/drivers/block/virtio_blk.ko")
			delete(f, "modules.builtin")
		}, "no modules.builtin"},
		{"dependency missing", func(f map[string][]byte) { delete(f, "kernel/fs/jbd2/jbd2.ko") }, "needs jbd2"},
		{"circle", func(f map[string][]byte) {
			f["kernel/drivers/virtio/virtio_ring.ko"] = koFile("depends=virtio")
		}, "circle"},
		{"not a module", func(f map[string][]byte) { f["kernel/fs/mbcache.ko"] = []byte("#!/bin/sh\n") }, "not a kernel module"},
		{"damaged", func(f map[string][]byte) {
			delete(f, "kernel/fs/mbcache.ko")
			f["kernel/fs/mbcache.ko.gz"] = []byte("\x1f\x8b\x08garbage")
		}, "damaged"},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := moduleFixture()
			c.change(files)
			tree, err := openModuleTree(writeTree(t, files))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tree.plan(context.Background()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want %q in it", err, c.want)
			}
		})
	}
}

func TestKernelWithoutModules(t *testing.T) {
	if plan := mustPlan(t, ""); len(plan.early)+len(plan.late) != 0 {
		t.Errorf("a kernel without modules gets %v", plan)
	}
	all := map[string][]byte{"modules.builtin": []byte("a/virtio_pci.ko\na/virtio-blk.ko\na/virtio_console.ko\na/ext4.ko\n")}
	if plan := mustPlan(t, writeTree(t, all)); len(plan.early)+len(plan.late) != 0 {
		t.Errorf("a kernel with all built in gets %v", plan)
	}
}

package image

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// initramfsFormat changes whenever the same inputs give another archive.
const initramfsFormat = "initramfs 1"

// initramfsKept is how many initramfs stay in the cache.
const initramfsKept = 8

// Initramfs returns the path of an initramfs for kernel k with the guest agent (a static binary) as /init. It holds
//
//	/init             the guest agent
//	/modules/order    names of the modules to load before the root file system is mounted, one a line, in that order
//	/modules/late     names of the modules to load once the guest is ready (may be empty), in that order
//	/modules/*.ko     the modules
//	/dev/console      and /dev/null
//	/proc, /sys, ...  empty directories to mount on
//
// It is built once for each set of inputs and cached. It is not compressed: unpacking costs an emulated guest more
// than reading.
func (l *Library) Initramfs(ctx context.Context, k Kernel, guest string) (string, error) {
	init, err := readGuest(guest)
	if err != nil {
		return "", err
	}
	tree, err := openModuleTree(k.ModulesDir)
	if err != nil {
		return "", err
	}
	plan, err := tree.plan(ctx)
	if err != nil {
		return "", err
	}
	if err := checkRelease(k.Version, plan.vermagic, k.ModulesDir); err != nil {
		return "", err
	}
	path := filepath.Join(l.cacheDir(), "initramfs-"+initramfsKey(init, plan)+".cpio")
	if now := time.Now(); os.Chtimes(path, now, now) == nil { // it is there; the time says that it is in use
		return path, nil
	}
	sweep(l.cacheDir())
	t, err := newTempFile(l.cacheDir())
	if err != nil {
		return "", fmt.Errorf("initramfs: %w", err)
	}
	defer t.discard()
	w := bufio.NewWriterSize(t.f, 1<<20)
	if err := writeInitramfs(newCPIOWriter(w), init, plan); err != nil {
		return "", fmt.Errorf("cannot write initramfs %s: %w", path, err)
	}
	if err := w.Flush(); err != nil {
		return "", fmt.Errorf("cannot write initramfs %s: %w", path, err)
	}
	if err := t.commit(path); err != nil {
		return "", fmt.Errorf("initramfs: %w", err)
	}
	l.trimCache("initramfs-*.cpio", initramfsKept)
	return path, nil
}

// readGuest reads the guest agent and refuses what the kernel could not run as the first process.
func readGuest(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("guest agent: %w", err)
	}
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("guest agent %s is not a Linux program: %w", path, err)
	}
	defer f.Close()
	for _, prog := range f.Progs {
		if prog.Type == elf.PT_INTERP {
			return nil, fmt.Errorf("guest agent %s is not a static binary: build it with CGO_ENABLED=0", path)
		}
	}
	return data, nil
}

func writeInitramfs(c *cpioWriter, init []byte, plan *modulePlan) error {
	for _, dir := range []string{"dev", "proc", "sys", "run", "root", "newroot", "modules"} {
		c.dir(dir, 0o755)
	}
	c.charDev("dev/console", 0o600, 5, 1)
	c.charDev("dev/null", 0o666, 1, 3)
	c.file("init", 0o755, init)
	c.file("modules/order", 0o644, []byte(moduleList(plan.early)))
	c.file("modules/late", 0o644, []byte(moduleList(plan.late)))
	for _, list := range [][]module{plan.early, plan.late} {
		for _, m := range list {
			c.file("modules/"+m.name+".ko", 0o644, m.data)
		}
	}
	return c.close()
}

func moduleList(modules []module) string {
	var b strings.Builder
	for _, m := range modules {
		b.WriteString(m.name + ".ko\n")
	}
	return b.String()
}

// initramfsKey is the checksum of all inputs.
func initramfsKey(init []byte, plan *modulePlan) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s\x00%d\x00", initramfsFormat, len(init))
	h.Write(init)
	for _, list := range [][]module{plan.early, plan.late} {
		fmt.Fprintf(h, "%d\x00", len(list))
		for _, m := range list {
			fmt.Fprintf(h, "%s\x00%d\x00", m.name, len(m.data))
			h.Write(m.data)
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:12])
}

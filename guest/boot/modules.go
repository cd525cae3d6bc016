package boot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// moduleDir is where the initramfs keeps kernel modules: `order` names those the boot needs, `late` those that may
// come after it, both in order of dependency.
const moduleDir = "/modules"

// loadModules loads what dir/list names. A missing list is an empty one.
func loadModules(dir, list string) error {
	names, err := os.ReadFile(filepath.Join(dir, list))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list of kernel modules: %w", err)
	}
	for name := range strings.FieldsSeq(string(names)) {
		if err := loadModule(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("load kernel module %s: %w", name, err)
		}
	}
	return nil
}

func loadModule(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.FinitModule(fd, "", 0); err != nil && err != unix.EEXIST {
		return err
	}
	return nil
}

// lateModules loads the optional modules of an initramfs that is not visible any more, from an open descriptor of its
// root, and gives the memory of the initramfs back. What cannot be loaded is left out: nobody has asked for it yet.
func lateModules(initramfs int) {
	defer unix.Close(initramfs)
	dir := fmt.Sprintf("/proc/self/fd/%d%s", initramfs, moduleDir)
	names, _ := os.ReadFile(filepath.Join(dir, "late"))
	for name := range strings.FieldsSeq(string(names)) {
		_ = loadModule(filepath.Join(dir, name))
	}
	_ = os.RemoveAll(dir)
}

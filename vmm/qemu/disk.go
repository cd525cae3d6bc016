package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"msb/vmm/engine/child"
)

// CreateDisk makes a qcow2 overlay over base. The overlay names base by its absolute path, so base must stay where it
// is. It appears at path complete or not at all.
func (e *Engine) CreateDisk(ctx context.Context, base, path string, sizeBytes int64) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("create disk %s: %w", path, err)
		}
	}()
	if base, err = filepath.Abs(base); err != nil {
		return err
	}
	st, err := os.Stat(base)
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return fmt.Errorf("base %s is not a regular file", base)
	}
	if sizeBytes == 0 {
		sizeBytes = st.Size()
	}
	if sizeBytes < st.Size() {
		return fmt.Errorf("%d bytes are less than the %d of its base image", sizeBytes, st.Size())
	}
	if _, err := os.Lstat(path); err == nil {
		return os.ErrExist
	}
	// qemu-img overwrites what it finds, so it works in a directory of its own.
	dir, err := os.MkdirTemp(filepath.Dir(path), ".disk-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	tmp := filepath.Join(dir, "disk")
	cmd := tool(ctx, e.img, "create", "-q", "-f", "qcow2", "-F", "raw", "-b", base, "-o", "lazy_refcounts=on",
		tmp, strconv.FormatInt(sizeBytes, 10))
	if out, err := cmd.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("qemu-img create: %w", ctx.Err())
		}
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("qemu-img is not there; %s", install)
		}
		return fmt.Errorf("qemu-img create: %w: %s", err, child.Printable(string(out)))
	}
	if err := os.Chmod(tmp, 0o600); err != nil {
		return err
	}
	// link, unlike rename, does not replace a disk that came up meanwhile.
	if err := os.Link(tmp, path); !errors.Is(err, syscall.EPERM) && !errors.Is(err, syscall.EOPNOTSUPP) {
		return err
	}
	return os.Rename(tmp, path) // a file system without links
}

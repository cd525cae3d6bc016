package fusefs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNotMounted says that there is no mount to take away.
var ErrNotMounted = errors.New("is not a mount point")

// prepare checks the mount point, frees it from a dead mount of ours, and
// returns its resolved path.
func prepare(dir string, o Options) (string, error) {
	resolved, err := resolve(dir)
	if err != nil {
		return "", fmt.Errorf("mount point %s: %w", dir, err)
	}
	for range 8 { // dead mounts may lie on top of each other
		m, err := findMount(resolved)
		if err != nil {
			return "", err
		}
		if m == nil {
			break
		}
		if m.fsType != "fuse."+fsType || !dead(resolved) {
			return "", fmt.Errorf("mount point %s: something is mounted there already (%s): unmount it first", dir, m.fsType)
		}
		if err := Unmount(resolved); err != nil {
			return "", fmt.Errorf("mount point %s: covered by a dead mount that cannot be removed: %w", dir, err)
		}
	}
	// Only now is it safe to look at it. It may be a symlink to a directory.
	final, err := filepath.EvalSymlinks(resolved)
	if err != nil {
		return "", fmt.Errorf("mount point %s: does not exist: create it with: mkdir -p %s", dir, dir)
	}
	if final != resolved {
		return prepare(final, o)
	}
	d, err := os.Open(final)
	if err != nil {
		return "", fmt.Errorf("mount point: %w", err)
	}
	defer d.Close()
	if info, err := d.Stat(); err != nil || !info.IsDir() {
		return "", fmt.Errorf("mount point %s: is not a directory", dir)
	}
	if names, _ := d.Readdirnames(1); len(names) > 0 && !o.NonEmpty {
		return "", fmt.Errorf("mount point %s: is not empty, and its files would be hidden: choose an empty directory", dir)
	}
	return final, nil
}

// resolve makes dir absolute and resolves its parent, without touching dir
// itself: a dead mount could be there.
func resolve(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if abs == "/" {
		return abs, nil
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if err != nil {
		return "", err
	}
	return filepath.Join(parent, filepath.Base(abs)), nil
}

type mounted struct{ fsType, source, device string }

// dead tells whether the process that served the mount at dir is gone. A mount
// of ours that lives answers statfs without its sandbox.
func dead(dir string) bool {
	result := make(chan error, 1)
	go func() {
		var st unix.Statfs_t
		result <- unix.Statfs(dir, &st)
	}()
	select {
	case err := <-result:
		return errors.Is(err, syscall.ENOTCONN) || errors.Is(err, syscall.ECONNABORTED)
	case <-time.After(2 * time.Second):
		return false
	}
}

// Unmount takes away the FUSE mount at dir, whoever serves it and whether that
// process lives or not; lazily when it is in use. It does not touch the mount,
// so it cannot hang with it. Without a mount at dir it returns ErrNotMounted.
func Unmount(dir string) error {
	resolved, err := resolve(dir)
	if err != nil {
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	m, err := findMount(resolved)
	if err == nil && m == nil { // perhaps a symlink to the mount point
		if target, noLink := os.Readlink(resolved); noLink == nil {
			if !filepath.IsAbs(target) {
				target = filepath.Join(filepath.Dir(resolved), target)
			}
			if there, dangles := resolve(target); dangles == nil {
				resolved = there
				m, err = findMount(resolved)
			}
		}
	}
	switch {
	case err != nil:
		return fmt.Errorf("unmount %s: %w", dir, err)
	case m == nil:
		return fmt.Errorf("unmount %s: %w", dir, ErrNotMounted)
	case m.fsType != "fuse" && !strings.HasPrefix(m.fsType, "fuse."):
		return fmt.Errorf("unmount %s: a %s file system is mounted there, not a sandbox", dir, m.fsType)
	}
	if os.Geteuid() == 0 {
		if err := detach(resolved); err != nil {
			return fmt.Errorf("unmount %s: %w", dir, err)
		}
		return nil
	}
	if exec.Command(helper, "-u", "--", resolved).Run() == nil {
		return nil
	}
	if out, err := exec.Command(helper, "-u", "-z", "--", resolved).CombinedOutput(); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return fmt.Errorf("unmount %s: %s is missing: %s", dir, helper, cure)
		}
		return fmt.Errorf("unmount %s: %w: %s", dir, err, strings.TrimSpace(string(out)))
	}
	return nil
}

package fusefs

import (
	"bufio"
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

const (
	mountInfo  = "/proc/self/mountinfo"
	fuseDevice = "/dev/fuse"
	helper     = "fusermount3"
	cure       = "install it with: apt-get install fuse3"
)

// ErrNotMounted says that there is no mount to take away.
var ErrNotMounted = errors.New("is not a mount point")

// checkHost tells what this host lacks for a mount.
func checkHost(o Options) error {
	f, err := os.OpenFile(fuseDevice, os.O_RDWR, 0)
	switch {
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%s is closed to you: open it with: sudo chmod 0666 %s", fuseDevice, fuseDevice)
	case err != nil:
		return fmt.Errorf("no FUSE on this host (%w): load it with: modprobe fuse; in a container, start it with: --device %s", err, fuseDevice)
	}
	f.Close()
	if os.Geteuid() == 0 {
		return nil
	}
	if _, err := exec.LookPath(helper); err != nil {
		return fmt.Errorf("%s is missing: %s", helper, cure)
	}
	if o.AllowOther && !userAllowOther() {
		return fmt.Errorf("allow-other: only root may, unless /etc/fuse.conf has the line user_allow_other")
	}
	return nil
}

func userAllowOther() bool {
	conf, err := os.ReadFile("/etc/fuse.conf")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(conf)) {
		if strings.TrimSpace(line) == "user_allow_other" {
			return true
		}
	}
	return false
}

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

type mounted struct{ fsType, source string }

// findMount returns the topmost mount at exactly dir, nil when there is none.
func findMount(dir string) (*mounted, error) {
	f, err := os.Open(mountInfo)
	if err != nil {
		return nil, fmt.Errorf("list of mounts: %w", err)
	}
	defer f.Close()
	var found *mounted
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		left, right, ok := strings.Cut(lines.Text(), " - ")
		where, what := strings.Fields(left), strings.Fields(right)
		if !ok || len(where) < 5 || len(what) < 2 {
			continue
		}
		if unescape(where[4]) == dir {
			found = &mounted{fsType: what[0], source: unescape(what[1])}
		}
	}
	return found, lines.Err()
}

// unescape undoes the \ooo of mountinfo.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			// In Go - binds no tighter than |, so the digit needs its parentheses.
			if c := (s[i+1]-'0')<<6 | (s[i+2]-'0')<<3 | (s[i+3] - '0'); s[i+1] <= '3' {
				b.WriteByte(c)
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

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
		if unix.Unmount(resolved, unix.UMOUNT_NOFOLLOW) == nil {
			return nil
		}
		if err := unix.Unmount(resolved, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH); err != nil {
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

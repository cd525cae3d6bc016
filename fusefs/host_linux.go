package fusefs

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	mountInfo  = "/proc/self/mountinfo"
	fuseDevice = "/dev/fuse"
	helper     = "fusermount3"
	cure       = "install it with: apt-get install fuse3"
)

// Flags of the mount that root makes without a helper.
const (
	mountInert    = syscall.MS_NOSUID | syscall.MS_NODEV
	mountReadOnly = syscall.MS_RDONLY
)

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
			found = &mounted{fsType: what[0], source: unescape(what[1]), device: where[2]}
		}
	}
	return found, lines.Err()
}

// raiseReadAhead lets the kernel read further ahead on the mount at dir than the
// 128 KiB that it begins with, which only root may. The mount itself is not
// looked at.
func raiseReadAhead(dir string, size int) {
	if os.Geteuid() != 0 {
		return
	}
	if m, err := findMount(dir); err == nil && m != nil && !strings.Contains(m.device, "/") {
		_ = os.WriteFile("/sys/class/bdi/"+m.device+"/read_ahead_kb", strconv.AppendInt(nil, int64(size>>10), 10), 0)
	}
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

// detach takes a mount away as root, lazily when it is in use.
func detach(dir string) error {
	if unix.Unmount(dir, unix.UMOUNT_NOFOLLOW) == nil {
		return nil
	}
	return unix.Unmount(dir, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
}

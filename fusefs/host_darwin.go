package fusefs

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	fuseDevice = "/dev/macfuse0"
	helper     = "umount"
	cure       = "it belongs to macOS"
)

// Flags of the mount that root makes without a helper: macFUSE always has one.
const mountInert, mountReadOnly = 0, 0

// checkHost tells what this host lacks for a mount.
func checkHost(Options) error {
	for _, dir := range []string{"/Library/Filesystems/macfuse.fs", "/Library/Filesystems/osxfuse.fs"} {
		if _, err := os.Stat(dir); err == nil {
			return nil
		}
	}
	return fmt.Errorf("no FUSE on this host: install macFUSE from https://macfuse.github.io")
}

// findMount returns the topmost mount at exactly dir, nil when there is none.
func findMount(dir string) (*mounted, error) {
	n, err := unix.Getfsstat(nil, unix.MNT_NOWAIT)
	if err != nil {
		return nil, fmt.Errorf("list of mounts: %w", err)
	}
	all := make([]unix.Statfs_t, n+8)
	if n, err = unix.Getfsstat(all, unix.MNT_NOWAIT); err != nil {
		return nil, fmt.Errorf("list of mounts: %w", err)
	}
	var found *mounted
	for i := range all[:n] {
		if unix.ByteSliceToString(all[i].Mntonname[:]) != dir {
			continue
		}
		found = &mounted{fsType: unix.ByteSliceToString(all[i].Fstypename[:]), source: unix.ByteSliceToString(all[i].Mntfromname[:])}
		if strings.Contains(found.fsType, "fuse") {
			found.fsType = "fuse." + fsType
		}
	}
	return found, nil
}

// raiseReadAhead does nothing: macFUSE reads as far ahead as it is told to at the
// mount.
func raiseReadAhead(string, int) {}

// detach takes a mount away as root, by force when it is in use.
func detach(dir string) error {
	if unix.Unmount(dir, 0) == nil {
		return nil
	}
	return unix.Unmount(dir, unix.MNT_FORCE)
}

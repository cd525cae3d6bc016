package boot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// mount is one row of a mount table.
type mount struct {
	source, target, fstype string
	flags                  uintptr
	data                   string
	optional               bool
}

const plain = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// mountAll makes the mount points below root and mounts the table on them.
func mountAll(root string, table []mount) error {
	for _, m := range table {
		target := filepath.Join(root, m.target)
		if err := os.MkdirAll(target, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			if m.optional {
				continue
			}
			return fmt.Errorf("make mount point %s: %w", m.target, err)
		}
		if err := unix.Mount(m.source, target, m.fstype, m.flags, m.data); err != nil && !m.optional {
			return fmt.Errorf("mount %s on %s: %w", m.fstype, m.target, err)
		}
	}
	return nil
}

// kernelMounts is what the machine needs before it has a root file system.
var kernelMounts = []mount{
	{source: "proc", target: "/proc", fstype: "proc", flags: plain},
	{source: "sysfs", target: "/sys", fstype: "sysfs", flags: plain},
	{source: "devtmpfs", target: "/dev", fstype: "devtmpfs", flags: unix.MS_NOSUID, data: "mode=755"},
	{source: "tmpfs", target: "/run", fstype: "tmpfs", flags: unix.MS_NOSUID | unix.MS_NODEV, data: "mode=755"},
}

// userMounts is what commands expect to find.
var userMounts = []mount{
	{source: "devpts", target: "/dev/pts", fstype: "devpts", flags: unix.MS_NOSUID | unix.MS_NOEXEC, data: "newinstance,gid=5,mode=620,ptmxmode=666"},
	{source: "tmpfs", target: "/dev/shm", fstype: "tmpfs", flags: unix.MS_NOSUID | unix.MS_NODEV, data: "mode=1777"},
	{source: "cgroup2", target: cgroupDir, fstype: "cgroup2", flags: plain, optional: true},
	{source: "tmpfs", target: heartbeatDir, fstype: "tmpfs", flags: unix.MS_NOSUID | unix.MS_NODEV, data: "mode=755,size=16m"},
}

const (
	cgroupDir = "/sys/fs/cgroup"
	// heartbeatDir is on memory, so that a write a second does not wear the disk.
	heartbeatDir = "/.msb"
)

// deviceLinks are the usual names of a process's own descriptors.
var deviceLinks = [][2]string{
	{"/proc/self/fd", "/dev/fd"},
	{"/proc/self/fd/0", "/dev/stdin"},
	{"/proc/self/fd/1", "/dev/stdout"},
	{"/proc/self/fd/2", "/dev/stderr"},
}

// finishMounts adds the user mounts to the running root.
func finishMounts() error {
	if err := mountAll("/", userMounts); err != nil {
		return err
	}
	for _, l := range deviceLinks {
		_ = os.Symlink(l[0], l[1])
	}
	for dir, mode := range map[string]os.FileMode{"/run/lock": 0o1777, "/tmp": 0o1777} {
		if err := os.Mkdir(dir, 0o755); err == nil {
			_ = unix.Chmod(dir, uint32(mode))
		}
	}
	return nil
}

// enterRoot makes the file system mounted at dir the root of the machine, the mounts of the initramfs with it.
func enterRoot(dir string) error {
	for _, m := range kernelMounts {
		target := filepath.Join(dir, m.target)
		if err := os.MkdirAll(target, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("make mount point %s on the root file system: %w", m.target, err)
		}
		if err := unix.Mount(m.target, target, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("move mount %s: %w", m.target, err)
		}
	}
	if err := unix.Chdir(dir); err != nil {
		return fmt.Errorf("enter the root file system: %w", err)
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move the root file system to /: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("enter the root file system: %w", err)
	}
	return unix.Chdir("/")
}

package boot

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"msb/protocol/agent"
)

// place is what a machine can be asked to mount.
type place bool

const (
	virtual    place = true  // a virtual machine: disks by serial number, shares by tag
	namespaced place = false // the process engine: memory only
)

// mountRequested mounts what the bootstrap asks for. What cannot be served is an error, never left out.
func mountRequested(b *agent.BootstrapPayload, where place) error {
	for _, t := range b.TmpfsMounts {
		if err := mountTmpfs(t); err != nil {
			return fmt.Errorf("mount memory on %s: %w", t.Path, err)
		}
	}
	if where == namespaced {
		switch {
		case len(b.DirMounts) > 0:
			return fmt.Errorf("folder %s cannot be shared: the process engine has no shares", b.DirMounts[0].GuestPath)
		case len(b.FileMounts) > 0:
			return fmt.Errorf("file %s cannot be shared: the process engine has no shares", b.FileMounts[0].GuestPath)
		case len(b.DiskMounts) > 0:
			return fmt.Errorf("disk %s cannot be mounted: the process engine has no disks but the root", b.DiskMounts[0].ID)
		}
		return nil
	}
	for _, d := range b.DirMounts {
		if err := mountShare(d.Tag, d.GuestPath, d.Flags); err != nil {
			return err
		}
	}
	for _, f := range b.FileMounts {
		if err := mountFile(f); err != nil {
			return err
		}
	}
	for _, d := range b.DiskMounts {
		if err := mountDisk(d); err != nil {
			return fmt.Errorf("mount disk %s on %s: %w", d.ID, d.GuestPath, err)
		}
	}
	return nil
}

func flagsOf(f agent.MountFlags) (flags uintptr) {
	for bit, on := range map[uintptr]bool{
		unix.MS_RDONLY: f.ReadOnly, unix.MS_NOEXEC: f.NoExec, unix.MS_NOSUID: f.NoSUID, unix.MS_NODEV: f.NoDev,
	} {
		if on {
			flags |= bit
		}
	}
	return flags
}

func mountTmpfs(t agent.TmpfsMount) error {
	if err := mountPoint(t.Path); err != nil {
		return err
	}
	options := []string{"mode=1777"}
	if t.Mode != nil {
		options[0] = fmt.Sprintf("mode=%o", *t.Mode&0o7777)
	}
	if size := sizeOption(t.SizeMiB); size != "" {
		options = append(options, size)
	}
	return unix.Mount("tmpfs", t.Path, "tmpfs", flagsOf(t.Flags), strings.Join(options, ","))
}

func mountPoint(path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("%q is not an absolute path", path)
	}
	return os.MkdirAll(path, 0o755)
}

// mountShare mounts a folder of the host by its tag, over virtiofs or, where the machine has that instead, 9p.
func mountShare(tag, path string, f agent.MountFlags) error {
	if err := mountPoint(path); err != nil {
		return err
	}
	err := unix.Mount(tag, path, "virtiofs", flagsOf(f), "")
	if err != nil {
		if unix.Mount(tag, path, "9p", flagsOf(f), "trans=virtio,version=9p2000.L,msize=131072") == nil {
			return nil
		}
		return fmt.Errorf("mount share %s on %s: %w: the machine has no such share, or its kernel no virtiofs", tag, path, err)
	}
	return nil
}

// mountFile mounts one file of a share.
func mountFile(m agent.FileMount) error {
	if m.Filename != filepath.Base(m.Filename) || m.Filename == ".." || m.Filename == "." {
		return fmt.Errorf("mount file %q of share %s: not the name of a file", m.Filename, m.Tag)
	}
	dir := filepath.Join("/run/msb/shares", filepath.Base(m.Tag))
	if err := mountShare(m.Tag, dir, m.Flags); err != nil {
		return err
	}
	if err := mountPoint(filepath.Dir(m.GuestPath)); err != nil {
		return err
	}
	f, err := os.OpenFile(m.GuestPath, os.O_CREATE|os.O_RDONLY, 0o644)
	if err != nil {
		return fmt.Errorf("mount file on %s: %w", m.GuestPath, err)
	}
	f.Close()
	if err := unix.Mount(filepath.Join(dir, m.Filename), m.GuestPath, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount file %s on %s: %w", m.Filename, m.GuestPath, err)
	}
	if flags := flagsOf(m.Flags); flags != 0 {
		if err := unix.Mount("", m.GuestPath, "", unix.MS_BIND|unix.MS_REMOUNT|flags, ""); err != nil {
			return fmt.Errorf("mount file %s on %s: %w", m.Filename, m.GuestPath, err)
		}
	}
	return nil
}

// mountDisk mounts the disk whose serial number is the id.
func mountDisk(d agent.DiskMount) error {
	device, err := diskBySerial(d.ID)
	if err != nil {
		return err
	}
	if err := mountPoint(d.GuestPath); err != nil {
		return err
	}
	fstype := ""
	if d.FSType != nil {
		fstype = *d.FSType
	}
	return mountDevice(device, d.GuestPath, fstype, flagsOf(d.Flags))
}

func diskBySerial(serial string) (string, error) {
	files, err := filepath.Glob("/sys/block/*/serial")
	if err != nil {
		return "", err
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err == nil && strings.TrimSpace(string(b)) == serial {
			return "/dev/" + filepath.Base(filepath.Dir(f)), nil
		}
	}
	return "", fmt.Errorf("no disk has this serial number")
}

// probeOrder is the file systems to try on a disk of which nothing is known.
func probeOrder() []string {
	kinds := []string{"ext4"}
	b, _ := os.ReadFile("/proc/filesystems")
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) == 1 && f[0] != "ext4" && f[0] != "ext3" && f[0] != "ext2" {
			kinds = append(kinds, f[0])
		}
	}
	return kinds
}

package boot

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"msb/protocol/agent"
)

// deviceTimeout bounds the wait for a disk that the kernel is still probing.
const deviceTimeout = 10 * time.Second

// mountRoot mounts what the host named as root file system at dir.
func mountRoot(r *agent.BlockRoot, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	switch r.Kind {
	case agent.RootDiskImage:
		return mountDevice(r.Device, dir, r.FSType, 0)
	case agent.RootOCIErofs:
		return mountLayers(r, dir)
	}
	return fmt.Errorf("root file system of kind %q is unknown", r.Kind)
}

// mountDevice mounts a block device, grown to the device's size where the file system can.
func mountDevice(device, dir, fstype string, flags uintptr) error {
	if device == "" {
		return fmt.Errorf("no device was named")
	}
	if err := waitDevice(device); err != nil {
		return err
	}
	kinds := []string{fstype}
	if fstype == "" {
		kinds = probeOrder()
	}
	var err error
	for _, kind := range kinds {
		if err = unix.Mount(device, dir, kind, flags, ""); err == nil {
			if kind == "ext4" && flags&unix.MS_RDONLY == 0 {
				if _, _, err := growExt4(dir, device, 0); err != nil {
					logf("%s keeps its size: %v", device, err)
				}
			}
			return nil
		}
	}
	return fmt.Errorf("mount %s (%s): %w", device, kinds[len(kinds)-1], err)
}

// waitDevice waits until the kernel has made a device's node.
func waitDevice(device string) error {
	for end := time.Now().Add(deviceTimeout); ; time.Sleep(2 * time.Millisecond) {
		var st unix.Stat_t
		err := unix.Stat(device, &st)
		if err == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK {
			return nil
		}
		if err == nil {
			return fmt.Errorf("%s is not a block device", device)
		}
		if time.Now().After(end) {
			return fmt.Errorf("device %s did not appear within %s: is its driver among the modules?", device, deviceTimeout)
		}
	}
}

// mountLayers puts a writable layer over a read-only one.
func mountLayers(r *agent.BlockRoot, dir string) error {
	if r.Upper == nil {
		return fmt.Errorf("root file system of kind %q has no upper layer", r.Kind)
	}
	const lower, upper = "/run/msb-root/lower", "/run/msb-root/upper"
	for _, d := range []string{lower, upper} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	if err := mountDevice(r.Lower, lower, "erofs", unix.MS_RDONLY); err != nil {
		return fmt.Errorf("lower layer: %w", err)
	}
	switch r.Upper.Kind {
	case agent.UpperDevice:
		if err := mountDevice(r.Upper.Device, upper, r.Upper.FSType, 0); err != nil {
			return fmt.Errorf("upper layer: %w", err)
		}
	case agent.UpperTmpfs:
		if err := unix.Mount("tmpfs", upper, "tmpfs", 0, sizeOption(r.Upper.SizeMiB)); err != nil {
			return fmt.Errorf("upper layer: %w", err)
		}
	default:
		return fmt.Errorf("upper layer of kind %q is unknown", r.Upper.Kind)
	}
	for _, d := range []string{upper + "/upper", upper + "/work"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	data := fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/work,index=on,nfs_export=on,xino=on,redirect_dir=on", lower, upper, upper)
	if err := unix.Mount("overlay", dir, "overlay", 0, data); err != nil {
		return fmt.Errorf("mount the layers: %w", err)
	}
	return nil
}

func sizeOption(mib *uint32) string {
	if mib == nil {
		return ""
	}
	return fmt.Sprintf("size=%dm", *mib)
}

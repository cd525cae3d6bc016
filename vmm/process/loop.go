package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const loopControl = "/dev/loop-control"

// loop is a loop device that goes away by itself when its last user does: this descriptor, or a mount of it. So no
// crash of anybody leaves one behind.
type loop struct {
	path string
	dev  *os.File
}

// attach puts file behind a loop device.
func attach(ctx context.Context, file string) (*loop, error) {
	backing, err := os.OpenFile(file, os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer backing.Close()
	if err := waitDetached(ctx, file); err != nil {
		return nil, err
	}
	control, err := os.OpenFile(loopControl, os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("loop devices: %w; try: modprobe loop", err)
	}
	defer control.Close()

	var last error
	for range 64 { // others race for the same free number
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find a free loop device: %w", err)
		}
		l, err := configure(n, backing)
		if err == nil {
			return l, nil
		}
		if !errors.Is(err, unix.EBUSY) && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		last = err
	}
	return nil, last
}

func configure(n int, backing *os.File) (*loop, error) {
	path := fmt.Sprintf("/dev/loop%d", n)
	dev, err := os.OpenFile(path, os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("loop device: %w", err)
	}
	config := unix.LoopConfig{Fd: uint32(backing.Fd())}
	copy(config.Info.File_name[:len(config.Info.File_name)-1], backing.Name())
	config.Info.Flags = unix.LO_FLAGS_AUTOCLEAR | unix.LO_FLAGS_DIRECT_IO
	err = unix.IoctlLoopConfigure(int(dev.Fd()), &config)
	if errors.Is(err, unix.EINVAL) { // a file system without direct I/O
		config.Info.Flags = unix.LO_FLAGS_AUTOCLEAR
		err = unix.IoctlLoopConfigure(int(dev.Fd()), &config)
	}
	if err != nil {
		dev.Close()
		return nil, fmt.Errorf("attach %s to %s: %w", backing.Name(), path, err)
	}
	return &loop{path, dev}, nil
}

// detachTime bounds the wait for a file system that is being unmounted.
const detachTime = 20 * time.Second

// release lets go of the device when no mount holds it any more: the kernel takes mounts of a namespace apart some
// time after its last process is gone, and until then the disk must not be used again.
func (l *loop) release() error {
	defer l.dev.Close()
	ctx, cancel := context.WithTimeout(context.Background(), detachTime)
	defer cancel()
	return poll(ctx, func() bool {
		f, err := os.OpenFile(l.path, os.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
		if err == nil {
			f.Close()
		}
		return !errors.Is(err, unix.EBUSY)
	}, fmt.Errorf("%s is still mounted", l.path))
}

// waitDetached waits until no loop device is on file, such as one of a run that was killed a moment ago.
func waitDetached(ctx context.Context, file string) error {
	real, err := filepath.EvalSymlinks(file)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, detachTime)
	defer cancel()
	return poll(ctx, func() bool { return !attached(real) },
		fmt.Errorf("%s is in use by a loop device (see losetup -a)", file))
}

func attached(file string) bool {
	backing, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, b := range backing {
		text, err := os.ReadFile(b)
		if err == nil && strings.TrimSuffix(string(text), "\n") == file {
			return true
		}
	}
	return false
}

// poll asks often at first and then less. When ctx ends it gives timeout.
func poll(ctx context.Context, ok func() bool, timeout error) error {
	for wait := time.Millisecond; !ok(); wait = min(2*wait, 100*time.Millisecond) {
		select {
		case <-ctx.Done():
			return timeout
		case <-time.After(wait):
		}
	}
	return nil
}

package boot

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// attachLoop makes a loop device of an image file. It detaches itself when the last user is gone: the file returned
// here and any mount.
func attachLoop(path string) (*os.File, error) {
	image, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer image.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("loop devices: %w", err)
	}
	defer control.Close()
	config := unix.LoopConfig{Fd: uint32(image.Fd())}
	config.Info.Flags = unix.LO_FLAGS_AUTOCLEAR
	for range 64 { // somebody else may take the free one first
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("free loop device: %w", err)
		}
		loop, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		err = unix.IoctlLoopConfigure(int(loop.Fd()), &config)
		if err == nil {
			return loop, nil
		}
		loop.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("attach %s to a loop device: %w", path, err)
		}
	}
	return nil, errors.New("no loop device stays free")
}

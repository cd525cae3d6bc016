package boot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// portTimeout bounds the wait for a port that the host has promised: names arrive some time after the driver.
const portTimeout = 10 * time.Second

// openPort opens the virtio-serial port with this name.
func openPort(name string) (*portFile, error) {
	for end := time.Now().Add(portTimeout); ; time.Sleep(time.Millisecond) {
		device, err := findPort(name)
		if err == nil {
			f, err := openPollable(device)
			if !errors.Is(err, os.ErrNotExist) { // the node may come after the name
				return f, err
			}
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("no virtio-serial port is named %q: is virtio_console among the modules?", name)
		}
	}
}

func findPort(name string) (device string, err error) {
	names, err := filepath.Glob("/sys/class/virtio-ports/*/name")
	if err != nil {
		return "", err
	}
	for _, n := range names {
		b, err := os.ReadFile(n)
		if err == nil && strings.TrimSpace(string(b)) == name {
			return "/dev/" + filepath.Base(filepath.Dir(n)), nil
		}
	}
	return "", os.ErrNotExist
}

// openPollable opens a port without blocking: writes are queued with the host instead of spinning until it has read
// them, and Close wakes a reader.
func openPollable(device string) (*portFile, error) {
	fd, err := unix.Open(device, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open port %s: %w", device, err)
	}
	return newPortFile(os.NewFile(uintptr(fd), device))
}

// Package boot brings a sandbox up around the guest agent and takes it down again: as PID 1 of a virtual machine, as
// PID 1 of the process engine's namespaces, and in the mode that unpacks an image.
package boot

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// logf prints a line on the console.
func logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "msb-guest: "+format+"\n", args...)
}

// openConsole points the standard outputs at the machine's console, which PID 1 of an initramfs is started without
// when the console's driver comes later.
func openConsole() {
	fd, err := unix.Open("/dev/console", unix.O_WRONLY|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		// No console at all: the kernel's log is the next best place.
		if fd, err = unix.Open("/dev/kmsg", unix.O_WRONLY|unix.O_CLOEXEC, 0); err != nil {
			return
		}
	}
	defer unix.Close(fd)
	_ = unix.Dup3(fd, 1, 0)
	_ = unix.Dup3(fd, 2, 0)
}

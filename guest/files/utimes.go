package files

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// futimens sets the times of an open file. x/sys/unix has no wrapper that takes a descriptor and nanosecond times; the
// system call does, with a null path.
func futimens(fd int, times [2]unix.Timespec) error {
	_, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(&times[0])), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

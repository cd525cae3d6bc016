package boot

import (
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// stopGrace is how long processes that no session owns get between SIGTERM and SIGKILL.
const stopGrace = 200 * time.Millisecond

// stopProcesses ends every process but this one.
func stopProcesses() {
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		if !othersLeft() {
			return
		}
		_ = unix.Kill(-1, sig)
		for end := time.Now().Add(stopGrace); othersLeft() && time.Now().Before(end); {
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// othersLeft tells whether there is a process that runs a program, other than this one. The kernel's own threads, which
// a signal to everybody counts but does not reach, run none.
func othersLeft() bool {
	proc, err := os.Open("/proc")
	if err != nil {
		return true
	}
	defer proc.Close()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return true
	}
	self := strconv.Itoa(os.Getpid())
	for _, name := range names {
		if name[0] < '0' || name[0] > '9' || name == self {
			continue
		}
		if _, err := os.Readlink("/proc/" + name + "/exe"); err == nil {
			return true
		}
	}
	return false
}

// detachFiles writes everything out and leaves no file system dirty: mounts are undone, last first, and what stays
// busy is made read-only.
func detachFiles() {
	unix.Sync()
	points := mountPoints()
	for i := len(points) - 1; i >= 0; i-- {
		p := points[i]
		if p == "/" || p == "/proc" || p == "/dev" {
			continue
		}
		if unix.Unmount(p, 0) != nil {
			_ = unix.Mount("", p, "", unix.MS_REMOUNT|unix.MS_RDONLY, "")
		}
	}
	if err := unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		logf("the root file system stays writable, its data is synced: %v", err)
	}
	unix.Sync()
}

// mountPoints lists the mount points in the order in which they were mounted.
func mountPoints() []string {
	b, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil
	}
	var points []string
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 {
			points = append(points, strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(f[1]))
		}
	}
	return points
}

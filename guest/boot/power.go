package boot

import (
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// stopGrace is how long processes that no session owns get between SIGTERM and SIGKILL.
const stopGrace = 200 * time.Millisecond

// stopProcesses ends every process but this one.
func stopProcesses() {
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		if err := unix.Kill(-1, sig); err != nil {
			return // ESRCH: nobody left
		}
		for end := time.Now().Add(stopGrace); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if unix.Kill(-1, 0) != nil {
				return
			}
		}
	}
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

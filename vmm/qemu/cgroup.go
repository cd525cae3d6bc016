package qemu

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cgroup is a control group (version 2) of a machine, for its CPU time. A nil one does nothing.
type cgroup struct{ path string }

// cgroupRoot is where systems mount the unified hierarchy.
const cgroupRoot = "/sys/fs/cgroup"

// newCgroup moves a process into a group of its own beside the group it is in. nil where that is not for us to do:
// no unified hierarchy, no CPU controller in it, or no right to change it.
func newCgroup(pid int) *cgroup {
	own, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return nil
	}
	return makeCgroup(cgroupRoot, string(own), pid)
}

func makeCgroup(root, own string, pid int) *cgroup {
	line, found := strings.CutPrefix(strings.TrimSpace(own), "0::/")
	if !found || strings.Contains(line, "\n") || strings.Contains(line, "..") {
		return nil // version 1, alone or beside version 2
	}
	parent := filepath.Join(root, filepath.Dir("/"+line))
	b, err := os.ReadFile(filepath.Join(parent, "cgroup.subtree_control"))
	if err != nil || !slices.Contains(strings.Fields(string(b)), "cpu") {
		return nil
	}
	sweepCgroups(parent)
	g := &cgroup{filepath.Join(parent, "msb-"+strconv.Itoa(pid)+".scope")}
	if err := os.Mkdir(g.path, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return nil
	}
	if err := g.write("cgroup.procs", strconv.Itoa(pid)); err != nil {
		os.Remove(g.path)
		return nil
	}
	return g
}

// sweepCgroups removes the groups of machines whose runtime was killed before it could.
func sweepCgroups(parent string) {
	all, _ := filepath.Glob(filepath.Join(parent, "msb-*.scope"))
	for _, path := range all {
		pid, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), "msb-"), ".scope"))
		if err == nil && unix.Kill(pid, 0) == unix.ESRCH {
			_ = os.Remove(path)
		}
	}
}

// limit bounds the group to the time of n CPUs; n of all is no bound.
func (g *cgroup) limit(n, all int) error {
	const period = 100_000 // µs
	quota := "max"
	if n < all {
		quota = strconv.Itoa(n * period)
	}
	return g.write("cpu.max", fmt.Sprintf("%s %d", quota, period))
}

func (g *cgroup) write(file, value string) error {
	f, err := os.OpenFile(filepath.Join(g.path, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(value)
	return err
}

// remove removes the group of a process that has ended; the kernel may take a moment to see it.
func (g *cgroup) remove() {
	if g == nil {
		return
	}
	for range 20 {
		if err := os.Remove(g.path); err == nil || errors.Is(err, os.ErrNotExist) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

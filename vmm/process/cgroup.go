package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// cgroup is the control group of one sandbox, in the unified hierarchy. It is the root of what the guest sees, and
// what Pause freezes.
type cgroup struct {
	path string
	dir  *os.File // for clone into it
}

// newCgroup makes one, or nil where the host has no unified hierarchy that can be written: a sandbox runs without.
func newCgroup() *cgroup {
	root := unifiedCgroups()
	if root == "" {
		return nil
	}
	sweepCgroups(root)
	for n := range 1000 {
		path := filepath.Join(root, fmt.Sprintf("msb-%d-%d", os.Getpid(), n))
		err := os.Mkdir(path, 0o755)
		if errors.Is(err, os.ErrExist) {
			continue
		}
		if err != nil {
			return nil
		}
		dir, err := os.OpenFile(path, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			os.Remove(path)
			return nil
		}
		return &cgroup{path, dir}
	}
	return nil
}

var ours = regexp.MustCompile(`^msb-(\d+)-\d+$`)

// sweepCgroups removes those of processes that are gone. One that is still in use cannot be removed.
func sweepCgroups(root string) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return
	}
	for _, e := range entries {
		m := ours.FindStringSubmatch(e.Name())
		if m == nil {
			continue
		}
		if pid, err := strconv.Atoi(m[1]); err == nil && unix.Kill(pid, 0) == unix.ESRCH {
			removeTree(filepath.Join(root, e.Name()))
		}
	}
}

// removeTree removes a group and the groups that the guest has made in it.
func removeTree(path string) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(path, e.Name())); err != nil {
				return err
			}
		}
	}
	return os.Remove(path)
}

// release removes the group; its processes are gone, but the kernel may take a moment to see it.
func (g *cgroup) release() error {
	g.dir.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	return poll(ctx, func() bool {
		err := removeTree(g.path)
		return err == nil || errors.Is(err, os.ErrNotExist)
	}, fmt.Errorf("the control group %s cannot be removed", g.path))
}

// freeze stops or continues all processes of the group and waits until it is so.
func (g *cgroup) freeze(ctx context.Context, stop bool) error {
	word, state := "0", "frozen 0"
	if stop {
		word, state = "1", "frozen 1"
	}
	if err := os.WriteFile(filepath.Join(g.path, "cgroup.freeze"), []byte(word), 0); err != nil {
		return err
	}
	return poll(ctx, func() bool {
		b, err := os.ReadFile(filepath.Join(g.path, "cgroup.events"))
		return err != nil || containsLine(string(b), state)
	}, fmt.Errorf("the processes of the sandbox did not reach %q in time: %w", state, context.DeadlineExceeded))
}

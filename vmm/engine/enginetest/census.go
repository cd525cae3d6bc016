package enginetest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// census counts what a machine could leave behind: descriptors, goroutines and children of this process.
type census struct {
	fds        []string
	goroutines int
	children   []int
}

func takeCensus(t testing.TB) census {
	t.Helper()
	return census{descriptors(), runtime.NumGoroutine(), childrenOf(os.Getpid())}
}

// check waits a moment: a goroutine that has closed a channel may not be gone yet.
func (c census) check(t *testing.T) {
	t.Helper()
	var now census
	for range 200 {
		now = takeCensus(t)
		if len(now.fds) <= len(c.fds) && now.goroutines <= c.goroutines && len(now.children) <= len(c.children) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	stacks := make([]byte, 64<<10)
	stacks = stacks[:runtime.Stack(stacks, true)]
	t.Errorf("left behind:\ndescriptors before %q, after %q\nchildren before %v, after %v\ngoroutines before %d, after %d:\n%s",
		c.fds, now.fds, c.children, now.children, c.goroutines, now.goroutines, stacks)
}

func descriptors() []string {
	entries, _ := os.ReadDir("/proc/self/fd")
	var out []string
	for _, e := range entries {
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err != nil || strings.HasPrefix(target, "anon_inode:") || target == "/proc/self/fd" ||
			strings.HasPrefix(target, fmt.Sprintf("/proc/%d/fd", os.Getpid())) {
			continue // the runtime's poller, and this look itself
		}
		out = append(out, target)
	}
	return out
}

func childrenOf(pid int) []int {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	var out []int
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		// "PID (NAME) STATE PPID …", and a name may hold anything.
		f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		if len(f) > 1 && f[1] == strconv.Itoa(pid) {
			id, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// alive says whether there is such a process; one that has ended and waits for its parent does not count.
func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	return len(f) > 0 && string(f[0]) != "Z" && string(f[0]) != "X"
}

// loopsOn lists the loop devices on file path.
func loopsOn(path string) []string {
	backing, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	var out []string
	for _, b := range backing {
		if text, err := os.ReadFile(b); err == nil && strings.TrimSpace(string(text)) == path {
			out = append(out, "/dev/"+filepath.Base(filepath.Dir(filepath.Dir(b))))
		}
	}
	return out
}

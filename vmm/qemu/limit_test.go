package qemu

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestPin pins a thread of the test itself.
func TestPin(t *testing.T) {
	runtime.LockOSThread() // the thread ends with the goroutine, its mask with it
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	if all.Count() < 2 {
		t.Skip("skipped, since threads can be moved only where there are two CPUs")
	}
	self := unix.Gettid()
	for _, tt := range []struct {
		threads []int
		n, want int
	}{
		{[]int{self, self}, 1, 1},             // fewer than the machine has
		{[]int{self}, 1, 1},                   // this process may use one only, by now
		{[]int{self, self, self, self}, 3, 1}, // no more than there are
	} {
		if err := pin(tt.threads, tt.n, 7); err != nil {
			t.Fatal(err)
		}
		var now unix.CPUSet
		if err := unix.SchedGetaffinity(0, &now); err != nil || now.Count() != tt.want {
			t.Errorf("%d of %d: %d CPUs, %v", tt.n, len(tt.threads), now.Count(), err)
		}
	}
	if err := pin([]int{1 << 30}, 1, 0); err == nil {
		t.Error("a thread that is not there is pinned")
	}
}

// TestCgroup uses plain files in place of the kernel's.
func TestCgroup(t *testing.T) {
	tree := func(controllers string) string {
		root := t.TempDir()
		dir := filepath.Join(root, "user.slice/app.slice")
		for _, d := range []string{dir, filepath.Join(dir, "msb-42.scope")} {
			if err := os.MkdirAll(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		for name, text := range map[string]string{"cgroup.subtree_control": controllers, "msb-42.scope/cgroup.procs": "", "msb-42.scope/cpu.max": "max 100000"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return root
	}
	const own = "0::/user.slice/app.slice/term.scope\n"
	root := tree("cpu memory pids\n")
	left, alive := filepath.Join(root, "user.slice/app.slice/msb-999999999.scope"), filepath.Join(root, fmt.Sprintf("user.slice/app.slice/msb-%d.scope", os.Getpid()))
	for _, dir := range []string{left, alive} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	g := makeCgroup(root, own, 42)
	for dir, want := range map[string]bool{left: false, alive: true} {
		if _, err := os.Stat(dir); (err == nil) != want {
			t.Errorf("%s: %v", dir, err)
		}
	}
	if g == nil {
		t.Fatal("no group")
	}
	for _, tt := range []struct {
		n    int
		want string
	}{{1, "100000 100000"}, {2, "200000 100000"}, {4, "max 100000"}} {
		if err := g.limit(tt.n, 4); err != nil {
			t.Fatal(err)
		}
		if b, _ := os.ReadFile(filepath.Join(g.path, "cpu.max")); string(b[:len(tt.want)]) != tt.want {
			t.Errorf("%d CPUs: %q", tt.n, b)
		}
	}
	if b, _ := os.ReadFile(filepath.Join(g.path, "cgroup.procs")); string(b) != "42" {
		t.Errorf("processes %q", b)
	}
	for name, g := range map[string]*cgroup{
		"no CPU controller": makeCgroup(tree("memory\n"), own, 42),
		"version 1":         makeCgroup(tree("cpu\n"), "3:cpu:/\n0::/\n", 42),
		"climbs out":        makeCgroup(tree("cpu\n"), "0::/../../etc\n", 42),
		"not there":         makeCgroup(t.TempDir(), own, 42),
	} {
		if g != nil {
			t.Errorf("%s: %s", name, g.path)
		}
	}
	(*cgroup)(nil).remove()
}

package qemu

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestCgroupOfTheKernel bounds two busy processes to one CPU together, and the kernel has to hold it back.
func TestCgroupOfTheKernel(t *testing.T) {
	controllers, err := os.ReadFile(filepath.Join(cgroupRoot, "cgroup.controllers"))
	if err != nil || !slices.Contains(strings.Fields(string(controllers)), "cpu") {
		t.Skip("skipped, since this host has no control groups of version 2 with a CPU controller")
	}
	if runtime.NumCPU() < 2 {
		t.Skip("skipped, since nothing bounds one CPU to one CPU")
	}
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0); err != nil {
			t.Skipf("skipped, since control groups cannot be changed here: %v", err)
		}
	}
	write(filepath.Join(cgroupRoot, "cgroup.subtree_control"), "+cpu")
	parent := filepath.Join(cgroupRoot, fmt.Sprintf("msb-test-%d", os.Getpid()))
	child := filepath.Join(parent, "shell")
	for _, dir := range []string{parent, child} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Skipf("skipped, since control groups cannot be made here: %v", err)
		}
	}
	write(filepath.Join(parent, "cgroup.subtree_control"), "+cpu")
	cmd := exec.Command("/bin/sh", "-c", "read begin; while :; do :; done & while :; do :; done")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	begin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	var g *cgroup
	t.Cleanup(func() {
		syscall.Kill(-pid, syscall.SIGKILL)
		cmd.Wait()
		g.remove()
		for _, dir := range []string{child, parent} {
			(&cgroup{dir}).remove()
			if _, err := os.Stat(dir); err == nil {
				t.Errorf("%s is left", dir)
			}
		}
	})
	write(filepath.Join(child, "cgroup.procs"), fmt.Sprint(pid))

	if g = newCgroup(pid); g == nil {
		t.Fatal("no group")
	}
	read := func(file string) string {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(g.path, file))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if got := read("cgroup.procs"); got != fmt.Sprintln(pid) || filepath.Dir(g.path) != parent {
		t.Errorf("%s has the processes %q", g.path, got)
	}
	throttled := func() (n int) {
		_, after, _ := strings.Cut(read("cpu.stat"), "nr_throttled ")
		fmt.Sscan(after, &n)
		return n
	}
	if err := g.limit(1, 2); err != nil || read("cpu.max") != "100000 100000\n" {
		t.Fatalf("cpu.max %q, %v", read("cpu.max"), err)
	}
	fmt.Fprintln(begin)
	for end := time.Now().Add(time.Minute); throttled() == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the kernel does not hold it back: %s", read("cpu.stat"))
		}
	}
	if err := g.limit(2, 2); err != nil || read("cpu.max") != "max 100000\n" {
		t.Errorf("cpu.max %q, %v", read("cpu.max"), err)
	}
	again := newCgroup(pid)
	if again == nil || again.path != g.path {
		t.Errorf("again: %+v", again)
	}
}

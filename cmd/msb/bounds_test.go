package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// hostBounds looks whether the host holds a machine of so many CPUs to n of them: by its control group, or by where the
// threads of its CPUs may run.
func hostBounds(t *testing.T, pid, n, all int) {
	t.Helper()
	own, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatal(err)
	}
	if _, path, found := strings.Cut(string(own), "0::"); found && strings.Contains(path, fmt.Sprintf("msb-%d.scope", pid)) {
		quota, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", strings.TrimSpace(path), "cpu.max"))
		if want := fmt.Sprintf("%d 100000\n", n*100_000); err != nil || n < all && string(quota) != want {
			t.Errorf("cpu.max %q, %v; want %q", quota, err, want)
		}
		return
	}
	var host unix.CPUSet
	if err := unix.SchedGetaffinity(0, &host); err != nil {
		t.Fatal(err)
	}
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	found := 0
	for _, task := range tasks {
		comm, _ := os.ReadFile(filepath.Join(task, "comm"))
		if !strings.HasPrefix(string(comm), "CPU ") {
			continue
		}
		found++
		var tid int
		fmt.Sscan(filepath.Base(task), &tid)
		var set unix.CPUSet
		if err := unix.SchedGetaffinity(tid, &set); err != nil || set.Count() != min(n, host.Count()) {
			t.Errorf("%s may run on %d CPUs of the host, %v; want %d", strings.TrimSpace(string(comm)), set.Count(), err, min(n, host.Count()))
		}
	}
	if found == 0 {
		t.Error("the machine has no threads for its CPUs")
	}
}

// TestCgroupInAGuest runs the engine's test of control groups where there are some for sure.
func TestCgroupInAGuest(t *testing.T) {
	needVM(t)
	program := filepath.Join(t.TempDir(), "qemu.test")
	build := exec.Command("go", "test", "-c", "-o", program, "msb/vmm/qemu")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	b := newBox(t, "qemu", "-m", "256M", "-c", "2")
	b.msb("cp", "-q", program, b.name+":/tmp/")
	out, err := b.try("exec", b.name, "-u", "root", "-w", "/tmp", "--", "./qemu.test", "-test.run", "CgroupOfTheKernel", "-test.v")
	if err != nil || !strings.Contains(out, "--- PASS: TestCgroupOfTheKernel") {
		t.Errorf("%v: %s", err, out)
	}
}

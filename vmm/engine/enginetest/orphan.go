package enginetest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"msb/vmm/engine"
)

const orphanVariable = "ENGINETEST_PARENT"

// Main is the TestMain of a package that uses Run: the test binary is also the parent that gets killed.
func Main(m *testing.M, makeEngine func() engine.Engine) {
	if text := os.Getenv(orphanVariable); text != "" {
		fmt.Println("error:", parent(makeEngine(), text))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// parent starts a machine, waits for its guest, tells the machine's process id and waits to be killed. It returns only
// when that fails.
func parent(e engine.Engine, text string) error {
	var spec engine.Spec
	if err := json.Unmarshal([]byte(text), &spec); err != nil {
		return err
	}
	vm, err := e.Start(context.Background(), spec)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(vm.Control(), "ping"); err != nil {
		return err
	}
	if _, err := bufio.NewReader(vm.Control()).ReadString('\n'); err != nil {
		return err
	}
	fmt.Println("pid:", vm.PID())
	select {}
}

// orphaned kills the process that started a machine. The machine must go, and its disk must be free again.
func orphaned(t *testing.T, s Subject) {
	spec := s.Spec
	spec.Disk = filepath.Join(t.TempDir(), "disk")
	if err := s.New().CreateDisk(t.Context(), Base(t, "base", 8<<20), spec.Disk, 0); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), orphanVariable+"="+string(text))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	cmd.Process.Kill()
	cmd.Wait()
	var pid int
	if _, err := fmt.Sscanf(line, "pid: %d", &pid); err != nil {
		t.Fatalf("the parent said %q", strings.TrimSpace(line))
	}
	for range 500 {
		if !alive(pid) && len(loopsOn(spec.Disk)) == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("5 s after its parent was killed: process %d alive: %v, loop devices on its disk: %v", pid, alive(pid), loopsOn(spec.Disk))
}

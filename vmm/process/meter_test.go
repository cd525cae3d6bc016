package process

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestUse reads plain files in place of the kernel's: this process is in a group below the sandbox's.
func TestUse(t *testing.T) {
	g := &cgroup{path: t.TempDir()}
	if _, err := g.use(); err == nil {
		t.Error("a group that is not there is counted")
	}
	if err := os.Mkdir(filepath.Join(g.path, "work"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"cpu.stat": "usage_usec 1500\nuser_usec 1000\n", "cgroup.procs": "", "work/cgroup.procs": fmt.Sprintf("%d\n999999999\n", os.Getpid()),
	} {
		if err := os.WriteFile(filepath.Join(g.path, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	u, err := g.use()
	if err != nil || u.CPU != 1500*time.Microsecond || u.Resident < 1<<20 {
		t.Errorf("%+v, %v", u, err)
	}
	if _, err := (&sandbox{}).Use(); err == nil {
		t.Error("a sandbox without a group is counted")
	}
}

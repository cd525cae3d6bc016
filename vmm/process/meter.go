package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"msb/vmm/engine"
)

var _ engine.Meter = (*sandbox)(nil)

// Use adds up what the processes of the sandbox's control group use. Pages that several of them share count for each.
func (m *sandbox) Use() (engine.Use, error) {
	if m.cgroup == nil {
		return engine.Use{}, fmt.Errorf("this host gives no control group (cgroup2) that counts: %w", errors.ErrUnsupported)
	}
	return m.cgroup.use()
}

func (g *cgroup) use() (u engine.Use, err error) {
	stat, err := os.ReadFile(filepath.Join(g.path, "cpu.stat"))
	if err != nil {
		return u, err
	}
	var micros int64
	if _, err := fmt.Sscanf(string(stat), "usage_usec %d", &micros); err != nil {
		return u, fmt.Errorf("%s/cpu.stat: %w", g.path, err)
	}
	u.CPU = time.Duration(micros) * time.Microsecond
	pages := uint64(0)
	err = filepath.WalkDir(g.path, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil // a group that goes while we look
		}
		procs, _ := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		for pid := range strings.FieldsSeq(string(procs)) {
			var size, resident uint64
			statm, _ := os.ReadFile("/proc/" + pid + "/statm")
			if _, err := fmt.Sscan(string(statm), &size, &resident); err == nil {
				pages += resident
			}
		}
		return nil
	})
	u.Resident = pages * uint64(os.Getpagesize())
	return u, err
}

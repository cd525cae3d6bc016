package store

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// ProcessStart is the start time of a process in clock ticks since boot. Pid and start time together
// name one process for ever; the pid alone is given to another one some day.
func ProcessStart(pid int) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("process %d: %w", pid, err)
	}
	// The second field is the command in parentheses and may hold anything, parentheses too.
	if i := bytes.LastIndexByte(b, ')'); i >= 0 {
		if f := bytes.Fields(b[i+1:]); len(f) > 19 {
			return strconv.ParseUint(string(f[19]), 10, 64)
		}
	}
	return 0, fmt.Errorf("process %d: cannot read its start time", pid)
}

// Alive says whether the process that had this pid and start time still exists (and is no zombie).
func Alive(pid int, start uint64) bool {
	if pid <= 0 {
		return false
	}
	now, err := ProcessStart(pid)
	if err != nil || now != start {
		return false
	}
	return Exists(pid)
}

// Exists tells whether there is a process pid that has not ended.
func Exists(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	i := bytes.LastIndexByte(b, ')')
	return err == nil && i >= 0 && i+2 < len(b) && b[i+2] != 'Z' && b[i+2] != 'X'
}

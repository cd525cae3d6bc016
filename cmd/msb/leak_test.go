package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// leaks lists the processes, mounts, loop devices and sockets that still have to do with root. What is about to end
// gets a moment for that.
func leaks(root string) []string {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		found := append(leakedProcesses(root), leakedMounts(root)...)
		found = append(found, leakedLoops(root)...)
		found = append(found, leakedSockets(root)...)
		if len(found) == 0 || time.Now().After(deadline) {
			return found
		}
	}
}

func leakedProcesses(root string) []string {
	var found []string
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		cmdline, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		environ, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if len(cmdline) > 0 && (bytes.Contains(cmdline, []byte(root)) || bytes.Contains(environ, []byte("MSB_HOME="+root))) {
			found = append(found, fmt.Sprintf("process %d: %.200s", pid, bytes.ReplaceAll(cmdline, []byte{0}, []byte{' '})))
		}
	}
	return found
}

func leakedMounts(root string) []string {
	var found []string
	table, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(table)) {
		if strings.Contains(line, " "+root+"/") {
			found = append(found, "mount: "+strings.TrimSpace(line))
		}
	}
	return found
}

func leakedLoops(root string) []string {
	var found []string
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.HasPrefix(string(b), root) {
			found = append(found, fmt.Sprintf("%s: %s", f, bytes.TrimSpace(b)))
		}
	}
	return found
}

func leakedSockets(root string) []string {
	var found []string
	_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type() == fs.ModeSocket {
			found = append(found, "socket: "+path)
		}
		return nil
	})
	return found
}

package main

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// forms are the ways in which a text could be written: as it is, or in base64 in the middle of something.
func forms(text string) [][]byte {
	list := [][]byte{[]byte(text)}
	for shift := range 3 {
		b := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", shift) + text))
		list = append(list, []byte(b[4:len(b)-4]))
	}
	return list
}

// holds looks for text, in any of its forms, in a stream.
func holds(r io.Reader, text string) bool {
	wanted := forms(text)
	overlap := 2*len(text) + 8
	buf := make([]byte, 1<<20)
	kept := 0
	for {
		n, err := r.Read(buf[kept:])
		for _, form := range wanted {
			if bytes.Contains(buf[:kept+n], form) {
				return true
			}
		}
		if err != nil {
			return false
		}
		end := kept + n
		kept = copy(buf, buf[max(0, end-overlap):end])
	}
}

// fileHolds looks for text in a file, past its holes.
func fileHolds(path, text string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	for at := int64(0); ; {
		begin, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return false, nil // only a hole is left
		}
		if err != nil { // a file system that does not tell
			return holds(f, text), nil
		}
		if at, err = unix.Seek(int(f.Fd()), begin, unix.SEEK_HOLE); err != nil {
			return false, err
		}
		if holds(io.NewSectionReader(f, begin, at-begin), text) {
			return true, nil
		}
	}
}

// filesWith lists the files below dir, sockets and devices apart, that hold text.
func filesWith(t *testing.T, dir, text string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil // a file that goes while we look
		}
		if yes, err := fileHolds(path, text); yes && err == nil {
			found = append(found, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(found)
	return found
}

// memoryHolds looks for text in all memory of a process: for a machine that is
// the guest's, too.
func memoryHolds(t *testing.T, pid int, text string) bool {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		var mode string
		if _, err := fmt.Sscanf(line, "%x-%x %s", &from, &to, &mode); err != nil || mode[0] != 'r' || mode[1] != 'w' || from < 0 {
			continue
		}
		if holds(io.NewSectionReader(mem, from, to-from), text) {
			return true
		}
	}
	return false
}

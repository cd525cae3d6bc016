package store

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"
)

// Mount is the record of one host mount of a sandbox's files. The mount process writes it and removes
// it; a record whose process is gone is not listed.
type Mount struct {
	Dir       string    `json:"dir"`        // mount point on the host
	GuestPath string    `json:"guest_path"` // directory in the guest
	PID       int       `json:"pid"`
	Start     uint64    `json:"start"` // the process's start time, see ProcessStart
	Since     time.Time `json:"since"`
}

// AddMount records a mount that this process serves.
func (h *Home) AddMount(name string, m Mount) error {
	dir := filepath.Join(h.SandboxDir(name), mountsDir)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("record mount of %q: %w", name, err)
	}
	m.PID = os.Getpid()
	start, err := ProcessStart(m.PID)
	if err != nil {
		return fmt.Errorf("record mount of %q: %w", name, err)
	}
	m.Start = start
	if m.Since.IsZero() {
		m.Since = time.Now()
	}
	return writeJSON(filepath.Join(dir, mountFile(m.Dir)), m)
}

// RemoveMount forgets the mount at a directory; one that is not recorded is no error.
func (h *Home) RemoveMount(name, dir string) error {
	err := os.Remove(filepath.Join(h.SandboxDir(name), mountsDir, mountFile(dir)))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget mount of %q: %w", name, err)
	}
	return nil
}

// Mounts lists the mounts of a sandbox whose process lives, by directory, and forgets the others.
func (h *Home) Mounts(name string) ([]Mount, error) {
	dir := filepath.Join(h.SandboxDir(name), mountsDir)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("mounts of %q: %w", name, err)
	}
	mounts := []Mount{}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		var m Mount
		path := filepath.Join(dir, e.Name())
		if err := readJSON(path, &m); err != nil {
			continue // removed meanwhile, or not ours
		}
		if !Alive(m.PID, m.Start) {
			os.Remove(path)
			continue
		}
		mounts = append(mounts, m)
	}
	sort.Slice(mounts, func(i, j int) bool { return mounts[i].Dir < mounts[j].Dir })
	return mounts, nil
}

// FindMount says which sandbox is mounted at dir; ok is false when none is.
func (h *Home) FindMount(dir string) (name string, m Mount, ok bool) {
	names, err := h.List()
	if err != nil {
		return "", m, false
	}
	for _, name := range names {
		if err := readJSON(filepath.Join(h.SandboxDir(name), mountsDir, mountFile(dir)), &m); err == nil && Alive(m.PID, m.Start) {
			return name, m, true
		}
	}
	return "", Mount{}, false
}

func mountFile(dir string) string {
	sum := sha256.Sum256([]byte(filepath.Clean(dir)))
	return hex.EncodeToString(sum[:12]) + ".json"
}

package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// tempPrefix marks what is not finished. Its maker holds a flock on it for as long as it lives, so that what a killed
// process left behind can be told from what another one is still writing.
const tempPrefix = ".new-"

// tempPath is an unfinished file or directory beside its final place.
type tempPath struct {
	f    *os.File // open and locked
	path string
}

// newTempFile makes an empty file in dir.
func newTempFile(dir string) (*tempPath, error) {
	return newTemp(func() (*os.File, error) { return os.CreateTemp(dir, tempPrefix+"*") })
}

// newTempDir makes an empty directory in dir.
func newTempDir(dir string) (*tempPath, error) {
	return newTemp(func() (*os.File, error) {
		path, err := os.MkdirTemp(dir, tempPrefix+"*")
		if err != nil {
			return nil, err
		}
		return os.Open(path)
	})
}

func newTemp(create func() (*os.File, error)) (*tempPath, error) {
	// A sweep may take the new path between its creation and its lock; then the next one is ours.
	for range 10 {
		f, err := create()
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			return nil, err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil && isSame(f) {
			return &tempPath{f: f, path: f.Name()}, nil
		}
		_ = f.Close()
	}
	return nil, fmt.Errorf("cannot keep a temporary file: another process removes it")
}

func isSame(f *os.File) bool {
	a, err := f.Stat()
	if err != nil {
		return false
	}
	b, err := os.Stat(f.Name())
	return err == nil && os.SameFile(a, b)
}

// commit syncs the file or directory, gives it its final name and ends the temporary one.
func (t *tempPath) commit(final string) error {
	if err := t.f.Sync(); err != nil {
		return fmt.Errorf("cannot sync %s: %w", t.path, err)
	}
	if err := os.Rename(t.path, final); err != nil {
		return err
	}
	t.path = ""
	return syncDir(filepath.Dir(final))
}

// discard removes what was not committed. It can be called after commit too, and is meant for defer.
func (t *tempPath) discard() {
	if t.path != "" {
		_ = os.RemoveAll(t.path)
	}
	_ = t.f.Close()
}

// sweep removes what killed processes left unfinished in dir.
func sweep(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), tempPrefix) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		f, err := os.Open(path)
		if err != nil {
			continue
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			_ = os.RemoveAll(path)
		}
		_ = f.Close()
	}
}

// writeFile puts data at path at once: it is there completely or not at all.
func writeFile(path string, data []byte) error {
	t, err := newTempFile(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer t.discard()
	if _, err := t.f.Write(data); err != nil {
		return err
	}
	return t.commit(path)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("cannot sync %s: %w", dir, err)
	}
	return nil
}

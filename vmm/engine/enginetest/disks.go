package enginetest

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func disks(t *testing.T, s Subject) {
	e := s.New()
	const size = 16 << 30
	base := Base(t, "a base image", 64<<20)
	dir := t.TempDir()
	path := filepath.Join(dir, "disk, with = odd name")

	began := time.Now()
	if err := e.CreateDisk(t.Context(), base, path, size); err != nil {
		t.Fatal(err)
	}
	t.Logf("created in %v", time.Since(began))
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if used := st.Sys().(*syscall.Stat_t).Blocks * 512; used > 1<<20 {
		t.Errorf("a new disk takes %d bytes on the host", used)
	}
	if st.Mode().Perm() != 0o600 {
		t.Errorf("a new disk has mode %v", st.Mode().Perm())
	}

	if err := e.CreateDisk(t.Context(), base, path, size); !errors.Is(err, fs.ErrExist) {
		t.Errorf("over an existing disk: %v", err)
	}
	other := filepath.Join(dir, "other")
	if err := e.CreateDisk(t.Context(), base, other, 1<<20); err == nil {
		t.Error("made a disk smaller than its base")
	}
	if err := e.CreateDisk(t.Context(), filepath.Join(dir, "none"), other, size); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("over no base: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := e.CreateDisk(ctx, base, other, size); err == nil {
		t.Error("made a disk with a context that is over")
	}
	if err := e.CreateDisk(t.Context(), base, other, 0); err != nil {
		t.Errorf("as big as the base: %v", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 2 {
		t.Errorf("%v is left, want two disks", entries)
	}
}

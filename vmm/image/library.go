// Package image keeps what a sandbox is started from: kernels, the initramfs with the guest agent, and the root file
// system images that sandbox disks are layered on.
//
// Everything lives below one plain directory, the library:
//
//	kernels/<version>/   a kernel and the modules the guest needs from it
//	images/<sha256>.raw  immutable ext4 root images, shared by all sandboxes
//	images/<name>.json   the names these images are known by
//	cache/               things that can be built again
//	locks/               lock files: one writer for each name
//
// Files appear complete or not at all: they are written under a temporary name, synced and renamed.
package image

import (
	"fmt"
	"os"
	"path/filepath"
)

// Library is a directory of kernels and images. It is safe for concurrent use, by several processes as well.
type Library struct {
	dir string
}

// Progress is told how far a long operation is: what is being done and which fraction of that is done, or a negative
// fraction when that is not known. It is called from one goroutine at a time and must not block. nil is allowed
// wherever a Progress is taken.
type Progress func(stage string, fraction float64)

func (p Progress) report(stage string, fraction float64) {
	if p != nil {
		p(stage, fraction)
	}
}

// Open opens the library in dir and creates the directory and its folders where they are missing.
func Open(dir string) (*Library, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("image library %s: %w", dir, err)
	}
	l := &Library{dir: abs}
	for _, d := range []string{l.kernelsDir(), l.imagesDir(), l.cacheDir(), l.locksDir()} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("image library: cannot create %s: %w", d, err)
		}
	}
	return l, nil
}

// Dir returns the absolute path of the library.
func (l *Library) Dir() string { return l.dir }

func (l *Library) kernelsDir() string { return filepath.Join(l.dir, "kernels") }
func (l *Library) imagesDir() string  { return filepath.Join(l.dir, "images") }
func (l *Library) cacheDir() string   { return filepath.Join(l.dir, "cache") }
func (l *Library) locksDir() string   { return filepath.Join(l.dir, "locks") }

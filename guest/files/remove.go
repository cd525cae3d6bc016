package files

import (
	"context"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// maxRemoveDepth bounds how deep a tree may be, which is how many descriptors its removal takes.
const maxRemoveDepth = 512

// maxRemovePasses bounds the fight with a process that fills a directory while it is being removed.
const maxRemovePasses = 64

// removeDir removes a directory, with recursive all that is in it. Symlinks are removed, never followed.
func removeDir(ctx context.Context, path string, recursive bool) error {
	if !recursive {
		return retry(func() error { return unix.Rmdir(path) })
	}
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return unix.Unlink(path)
	case unix.S_IFDIR:
		return removeTree(ctx, unix.AT_FDCWD, path, 0)
	}
	return unix.ENOTDIR
}

// removeTree removes the directory name in dir.
func removeTree(ctx context.Context, dir int, name string, depth int) error {
	if depth > maxRemoveDepth {
		return unix.ENAMETOOLONG
	}
	var fd int
	err := retry(func() (err error) {
		fd, err = unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	for pass := 0; ; pass++ {
		removed, err := removeEntries(ctx, f, depth)
		if err != nil {
			return err
		}
		err = retry(func() error { return unix.Unlinkat(dir, name, unix.AT_REMOVEDIR) })
		// Some file systems skip names when others are removed while they are read, and others may add names.
		if err != unix.ENOTEMPTY && err != unix.EEXIST || !removed || pass >= maxRemovePasses {
			return err
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
}

// removeEntries makes one pass over a directory.
func removeEntries(ctx context.Context, f *os.File, depth int) (removed bool, err error) {
	fd := int(f.Fd())
	for {
		if ctx.Err() != nil {
			return removed, errOwnerGone
		}
		names, err := f.Readdirnames(nameBatch)
		for _, name := range names {
			err := retry(func() error { return unix.Unlinkat(fd, name, 0) })
			if err == unix.EISDIR {
				err = removeTree(ctx, fd, name, depth+1)
			}
			if err != nil && err != unix.ENOENT {
				return removed, err
			}
			removed = true
		}
		if err == io.EOF {
			return removed, nil
		}
		if err != nil {
			return removed, err
		}
	}
}

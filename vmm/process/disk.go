package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// CreateDisk copies base: by sharing its blocks where the file system can (XFS, btrfs), else only what is no hole. A
// file system of kind ext4 in it grows to sizeBytes. The copy appears at path complete or not at all.
func (e *Engine) CreateDisk(ctx context.Context, base, path string, sizeBytes int64) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("create disk %s: %w", path, err)
		}
	}()
	src, err := os.Open(base)
	if err != nil {
		return err
	}
	defer src.Close()
	st, err := src.Stat()
	if err != nil {
		return err
	}
	switch {
	case !st.Mode().IsRegular():
		return fmt.Errorf("base %s is not a regular file", base)
	case sizeBytes == 0:
		sizeBytes = st.Size()
	case sizeBytes < st.Size():
		return fmt.Errorf("%d bytes are less than the %d of its base image", sizeBytes, st.Size())
	}
	if _, err := os.Lstat(path); err == nil {
		return os.ErrExist
	}
	dst, err := os.CreateTemp(filepath.Dir(path), ".disk-")
	if err != nil {
		return err
	}
	defer os.Remove(dst.Name())
	defer dst.Close()
	if err := unix.IoctlFileClone(int(dst.Fd()), int(src.Fd())); err != nil {
		if err := copySparse(ctx, dst, src, st.Size()); err != nil {
			return err
		}
	}
	if err := dst.Truncate(sizeBytes); err != nil {
		return err
	}
	if sizeBytes > st.Size() {
		if err := growExt4(ctx, dst); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	// link, unlike rename, does not replace a disk that came up meanwhile.
	if err := os.Link(dst.Name(), path); !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	return os.Rename(dst.Name(), path) // a file system without links
}

// copySparse copies the data of src, piece by piece, to the same places of the empty file dst.
func copySparse(ctx context.Context, dst, src *os.File, size int64) error {
	const piece = 16 << 20 // looks at ctx in between
	for at := int64(0); at < size; {
		data, err := unix.Seek(int(src.Fd()), at, unix.SEEK_DATA)
		switch {
		case errors.Is(err, unix.ENXIO):
			return nil // a hole to the end
		case errors.Is(err, unix.EINVAL):
			data, err = at, nil // a file system that knows no holes
		case err != nil:
			return fmt.Errorf("look for data in %s: %w", src.Name(), err)
		}
		end, err := unix.Seek(int(src.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			end = size
		}
		for at = data; at < end; {
			if err := ctx.Err(); err != nil {
				return err
			}
			n, err := copyRange(dst, src, at, min(end-at, piece))
			if err != nil {
				return fmt.Errorf("copy %s: %w", src.Name(), err)
			}
			at += n
		}
	}
	return nil
}

// copyRange copies up to n bytes at offset at, inside the kernel where it can.
func copyRange(dst, src *os.File, at, n int64) (int64, error) {
	from, to := at, at
	done, err := unix.CopyFileRange(int(src.Fd()), &from, int(dst.Fd()), &to, int(n), 0)
	if err == nil && done > 0 {
		return int64(done), nil
	}
	if _, err := dst.Seek(at, io.SeekStart); err != nil {
		return 0, err
	}
	copied, err := io.Copy(dst, io.NewSectionReader(src, at, n))
	if err == nil && copied == 0 {
		err = io.ErrUnexpectedEOF // the base became shorter
	}
	return copied, err
}

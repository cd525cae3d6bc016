package files

import (
	"context"
	"errors"
	"io"

	"golang.org/x/sys/unix"
)

// copyStep is how much is copied between two looks at whether the client is still there, in bytes.
const copyStep = 16 << 20

// copyFile copies the bytes and the mode bits of a regular file.
func copyFile(ctx context.Context, src, dst string) error {
	in, err := open(src, unix.O_RDONLY|openFlags, 0)
	if err != nil {
		return err
	}
	defer unix.Close(in)
	var from unix.Stat_t
	if err := unix.Fstat(in, &from); err != nil {
		return err
	}
	if from.Mode&unix.S_IFMT != unix.S_IFREG {
		return errors.New("the source path is neither a regular file nor a symlink to a regular file")
	}
	mode := from.Mode & modeBits
	// Not truncated yet: it may be the source.
	out, err := open(dst, unix.O_WRONLY|unix.O_CREAT|openFlags, mode)
	if err != nil {
		return err
	}
	var to unix.Stat_t
	err = unix.Fstat(out, &to)
	switch {
	case err != nil:
	case to.Dev == from.Dev && to.Ino == from.Ino:
		err = errors.New("source and destination are the same file")
	case to.Mode&unix.S_IFMT == unix.S_IFREG:
		if err = unix.Ftruncate(out, 0); err == nil {
			err = unix.Fchmod(out, mode)
		}
	}
	if err == nil {
		err = copyBytes(ctx, in, out)
	}
	if cerr := unix.Close(out); err == nil {
		err = cerr
	}
	return err
}

// copyBytes copies to the end, inside the kernel where it can.
func copyBytes(ctx context.Context, in, out int) error {
	for copied := int64(0); ; {
		if ctx.Err() != nil {
			return errOwnerGone
		}
		n, err := unix.CopyFileRange(in, nil, out, nil, copyStep, 0)
		switch {
		case err == unix.EINTR:
		case copied == 0 && (err != nil || n == 0):
			// Not between these file systems, or a file in /proc that claims to be empty.
			return copyThrough(ctx, in, out)
		case err != nil:
			return err
		case n == 0:
			return nil
		}
		copied += int64(max(n, 0))
	}
}

func copyThrough(ctx context.Context, in, out int) error {
	buf := takeBuffer()
	defer giveBuffer(buf)
	for {
		if ctx.Err() != nil {
			return errOwnerGone
		}
		var n int
		err := retry(func() (err error) {
			n, err = unix.Read(in, buf[:])
			return err
		})
		if err != nil {
			return err
		}
		if n == 0 {
			return nil
		}
		if err := writeAll(out, buf[:n]); err != nil {
			return err
		}
	}
}

// writeAll writes p at the descriptor's position.
func writeAll(fd int, p []byte) error {
	for len(p) > 0 {
		n, err := unix.Write(fd, p)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return err
		case n == 0:
			return io.ErrShortWrite
		}
		p = p[n:]
	}
	return nil
}

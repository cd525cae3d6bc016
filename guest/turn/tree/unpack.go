package tree

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// maxArchiveEntries bounds an archive; its bytes are bounded by the disk.
const maxArchiveEntries = 1 << 20

// Unpack unpacks a tar archive into the workspace. The archive is not trusted: names must stay inside, nothing is
// written through a link, devices and pipes are refused, and permissions are those of ordinary files.
func (t *Tree) Unpack(ctx context.Context, archive io.Reader) error {
	_, err := Do(ctx, t, func(ctx context.Context, r *Root) (struct{}, error) {
		return struct{}{}, r.unpack(ctx, archive)
	})
	return err
}

func (r *Root) unpack(ctx context.Context, archive io.Reader) error {
	in := tar.NewReader(archive)
	for n := 0; ; n++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the archive: %w", err)
		}
		if n >= maxArchiveEntries {
			return fmt.Errorf("the archive has more than %d entries", maxArchiveEntries)
		}
		if err := r.unpackEntry(h, in); err != nil {
			return fmt.Errorf("unpack: %w", err)
		}
	}
}

func (r *Root) unpackEntry(h *tar.Header, in io.Reader) error {
	name, err := archiveName(h.Name)
	if err != nil {
		return err
	}
	if name == "." {
		if h.Typeflag == tar.TypeDir {
			return nil
		}
		return &PathError{Path: h.Name, Err: errOutside}
	}
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	if h.Typeflag == tar.TypeDir {
		fd, err := r.mkdirs(name)
		if err != nil {
			return err
		}
		unix.Close(fd)
		return nil
	}
	dir, base, err := r.parent(name)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	switch h.Typeflag {
	case tar.TypeReg:
		err = unpackFile(dir, base, h, in)
	case tar.TypeSymlink:
		if err = unlinkOld(dir, base); err == nil {
			err = unix.Symlinkat(h.Linkname, dir, base)
		}
	case tar.TypeLink:
		err = r.unpackHardLink(dir, base, h)
	default:
		err = fmt.Errorf("type %q is refused: only files, folders and links are unpacked", h.Typeflag)
	}
	if err != nil {
		return &PathError{Path: name, Err: err}
	}
	return nil
}

func archiveName(name string) (string, error) {
	if err := checkPath(name); err != nil {
		return "", err
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", &PathError{Path: name, Err: errOutside}
		}
	}
	return path.Clean(name), nil
}

func unlinkOld(dir int, base string) error {
	if err := unix.Unlinkat(dir, base, 0); err != nil && err != unix.ENOENT {
		return err
	}
	return nil
}

func unpackFile(dir int, base string, h *tar.Header, in io.Reader) error {
	if err := unlinkOld(dir, base); err != nil {
		return err
	}
	fd, err := unix.Openat(dir, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	buf := make([]byte, 128<<10)
	for {
		n, err := in.Read(buf)
		if werr := writeAll(fd, buf[:n]); werr != nil {
			return werr
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	if err := unix.Fchmod(fd, uint32(h.Mode)&0o777|0o400); err != nil {
		return err
	}
	if h.ModTime.After(time.Unix(0, 0)) {
		tv := unix.NsecToTimeval(h.ModTime.UnixNano())
		_ = unix.Futimes(fd, []unix.Timeval{tv, tv})
	}
	return nil
}

// unpackHardLink links to a file that the archive has brought, or that was there.
func (r *Root) unpackHardLink(dir int, base string, h *tar.Header) error {
	target, err := archiveName(h.Linkname)
	if err != nil {
		return err
	}
	at, old := path.Split(target)
	from, err := r.open(path.Clean("./"+at), unix.O_PATH|unix.O_DIRECTORY, 0, unix.RESOLVE_NO_SYMLINKS)
	if err != nil {
		return err
	}
	defer unix.Close(from)
	if err := unlinkOld(dir, base); err != nil {
		return err
	}
	return unix.Linkat(from, old, dir, base, 0)
}

// isMissing tells that a name is not there.
func isMissing(err error) bool { return errors.Is(err, unix.ENOENT) }

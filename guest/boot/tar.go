package boot

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// xattrPrefix marks extended attributes in the records of a PAX header.
const xattrPrefix = "SCHILY.xattr."

// unpackTar unpacks an archive into the root directory of the calling thread, which nothing in the archive can leave.
func unpackTar(archive io.Reader) error {
	u := unpacker{buf: make([]byte, 256<<10)}
	r := tar.NewReader(archive)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read the archive: %w", err)
		}
		if err := u.entry(h, r); err != nil {
			return fmt.Errorf("unpack %q: %w", h.Name, err)
		}
	}
	if u.entries == 0 {
		return errors.New("the archive is empty")
	}
	return u.finish()
}

// unpacker holds what has to wait for the end.
type unpacker struct {
	buf     []byte
	entries int
	dirs    []dirTime
}

// dirTime is a folder's time, set when nothing is put into it any more.
type dirTime struct {
	path  string
	mtime time.Time
}

// entry makes one file.
func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	path := filepath.Join("/", h.Name) // cleans ".." away; links on the way stay inside the root
	u.entries++
	if path == "/" {
		if h.Typeflag == tar.TypeDir {
			return u.attributes("/", h)
		}
		return nil
	}
	if err := makeParents(path); err != nil {
		return err
	}
	if h.Typeflag != tar.TypeDir {
		if err := makeRoom(path); err != nil {
			return err
		}
	}
	mode := uint32(h.Mode & 0o7777)
	switch h.Typeflag {
	case tar.TypeDir:
		if err := makeDir(path); err != nil {
			return err
		}
		u.dirs = append(u.dirs, dirTime{path, h.ModTime})
	case tar.TypeReg, '\x00', tar.TypeGNUSparse, tar.TypeCont:
		if err := u.file(path, h.Size, content); err != nil {
			return err
		}
	case tar.TypeSymlink:
		if err := unix.Symlink(h.Linkname, path); err != nil {
			return fmt.Errorf("link to %q: %w", h.Linkname, err)
		}
	case tar.TypeLink:
		// The attributes are those of the file that is there.
		if err := unix.Link(filepath.Join("/", h.Linkname), path); err != nil {
			return fmt.Errorf("hard link to %q: %w", h.Linkname, err)
		}
		return nil
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		if err := makeNode(path, h, mode); err != nil {
			return err
		}
	default:
		return nil // what tar has beyond files is none of ours
	}
	return u.attributes(path, h)
}

// file writes the content; blocks of zeros stay holes.
func (u *unpacker) file(path string, size int64, content io.Reader) error {
	fd, err := unix.Open(path, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	var at int64
	for {
		n, err := io.ReadFull(content, u.buf)
		if n > 0 && !zero(u.buf[:n]) {
			if _, werr := f.WriteAt(u.buf[:n], at); werr != nil {
				return werr
			}
		}
		at += int64(n)
		if err == io.EOF || err == io.ErrUnexpectedEOF && at == size {
			break
		}
		if err != nil {
			return fmt.Errorf("read the archive: %w", err)
		}
	}
	if err := f.Truncate(at); err != nil {
		return err
	}
	return f.Close()
}

func zero(b []byte) bool {
	return len(b) == 0 || b[0] == 0 && bytes.Equal(b[1:], b[:len(b)-1])
}

// attributes sets owner, mode, extended attributes and time, in the order in which they do not undo each other.
func (u *unpacker) attributes(path string, h *tar.Header) error {
	if err := unix.Lchown(path, h.Uid, h.Gid); err != nil {
		return fmt.Errorf("set owner %d:%d: %w", h.Uid, h.Gid, err)
	}
	link := h.Typeflag == tar.TypeSymlink
	if !link {
		if err := unix.Chmod(path, uint32(h.Mode&0o7777)); err != nil {
			return fmt.Errorf("set mode: %w", err)
		}
	}
	for key, value := range h.PAXRecords {
		name, ok := strings.CutPrefix(key, xattrPrefix)
		if !ok {
			continue
		}
		err := unix.Lsetxattr(path, name, []byte(value), 0)
		// A label that this kernel or file system has no use for is no loss; a capability is.
		if err != nil && (err != unix.EOPNOTSUPP && err != unix.EPERM || name == "security.capability") {
			return fmt.Errorf("set attribute %s: %w", name, err)
		}
	}
	return setTime(path, h.ModTime)
}

func setTime(path string, t time.Time) error {
	ts, err := unix.TimeToTimespec(t)
	if err != nil {
		return nil // a time that does not exist is not worth an image
	}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("set time: %w", err)
	}
	return nil
}

// finish sets the folders' times, inner ones first.
func (u *unpacker) finish() error {
	for i := len(u.dirs) - 1; i >= 0; i-- {
		if err := setTime(u.dirs[i].path, u.dirs[i].mtime); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("unpack %q: %w", u.dirs[i].path, err)
		}
	}
	return nil
}

// makeParents makes the folders above path that the archive did not name. Links to folders are followed.
func makeParents(path string) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make folder %s: %w", dir, err)
	}
	return nil
}

// makeDir makes a folder, or takes the one that is there, behind a link too.
func makeDir(path string) error {
	err := unix.Mkdir(path, 0o755)
	if err != unix.EEXIST {
		return err
	}
	var st unix.Stat_t
	if unix.Stat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return nil
	}
	if err := unix.Unlink(path); err != nil {
		return err
	}
	return unix.Mkdir(path, 0o755)
}

// makeRoom removes what an earlier entry put where a file is to go.
func makeRoom(path string) error {
	err := unix.Unlink(path)
	if err == unix.EISDIR {
		err = unix.Rmdir(path)
	}
	if err == unix.ENOENT {
		return nil
	}
	return err
}

func makeNode(path string, h *tar.Header, mode uint32) error {
	kinds := map[byte]uint32{tar.TypeChar: unix.S_IFCHR, tar.TypeBlock: unix.S_IFBLK, tar.TypeFifo: unix.S_IFIFO}
	if h.Devmajor < 0 || h.Devmajor > 0xfff || h.Devminor < 0 || h.Devminor > 0xfffff {
		return fmt.Errorf("device number %d:%d", h.Devmajor, h.Devminor)
	}
	return unix.Mknod(path, kinds[h.Typeflag]|mode, int(unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor))))
}

package transfer

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// HostDir is a directory of the host that is written through its descriptor, one name at a time and never through a
// symlink.
type HostDir struct {
	fd   int
	path string // for messages
}

var _ Dir = (*HostDir)(nil)

// OpenHostDir opens the directory that the user named; symlinks in that path are the user's own and are followed.
func OpenHostDir(path string) (*HostDir, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return &HostDir{fd: fd, path: path}, nil
}

func (d *HostDir) fail(op, name string, err error) error {
	return &fs.PathError{Op: op, Path: filepath.Join(d.path, name), Err: err}
}

// Enter makes or takes the directory info.Name and opens it.
func (d *HostDir) Enter(_ context.Context, info Info) (Dir, error) {
	if err := CheckName(info.Name); err != nil {
		return nil, err
	}
	if err := unix.Mkdirat(d.fd, info.Name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, d.fail("mkdir", info.Name, err)
	}
	fd, err := unix.Openat(d.fd, info.Name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		return nil, fmt.Errorf("%s is there already and no directory (symlinks are not followed): nothing was written for it", filepath.Join(d.path, info.Name))
	}
	if err != nil {
		return nil, d.fail("open", info.Name, err)
	}
	return &HostDir{fd: fd, path: filepath.Join(d.path, info.Name)}, nil
}

// File writes the content beside info.Name and gives it that name when it is complete, so that neither a broken
// connection nor a full disk costs the file that was there.
func (d *HostDir) File(ctx context.Context, info Info, content io.Reader) error {
	if err := CheckName(info.Name); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(d.fd, info.Name, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return fmt.Errorf("%s is a directory: not replaced by a file", filepath.Join(d.path, info.Name))
	}
	tmp := ".msb-cp-" + rand.Text()
	fd, err := unix.Openat(d.fd, tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return d.fail("create", info.Name, err)
	}
	f := os.NewFile(uintptr(fd), filepath.Join(d.path, info.Name))
	w := &sparseWriter{f: f}
	_, err = io.Copy(onlyWriter{w}, content)
	if err == nil {
		err = w.finish()
	}
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = unix.Fchmod(fd, hostMode(info.Mode))
	}
	if err == nil {
		err = futimes(fd, info)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		if err = unix.Renameat(d.fd, tmp, d.fd, info.Name); err != nil {
			err = d.fail("rename", info.Name, err)
		}
	}
	if err != nil {
		_ = unix.Unlinkat(d.fd, tmp, 0)
		return err
	}
	return nil
}

// onlyWriter hides ReadFrom, so that what passes is counted.
type onlyWriter struct{ io.Writer }

// Symlink makes the symlink info.Name. Its target is only text here.
func (d *HostDir) Symlink(_ context.Context, info Info, target string) error {
	if err := CheckName(info.Name); err != nil {
		return err
	}
	tmp := ".msb-cp-" + rand.Text()
	if err := unix.Symlinkat(target, d.fd, tmp); err != nil {
		return d.fail("symlink", info.Name, err)
	}
	err := unix.UtimesNanoAt(d.fd, tmp, times(info), unix.AT_SYMLINK_NOFOLLOW)
	if err == nil {
		err = unix.Renameat(d.fd, tmp, d.fd, info.Name)
	}
	if err != nil {
		_ = unix.Unlinkat(d.fd, tmp, 0)
		return d.fail("symlink", info.Name, err)
	}
	return nil
}

// Finish gives the directory its mode and times and closes it.
func (d *HostDir) Finish(_ context.Context, info *Info) error {
	defer unix.Close(d.fd)
	if info == nil {
		return nil
	}
	err := unix.Fchmod(d.fd, hostMode(info.Mode))
	if err == nil {
		err = futimes(d.fd, *info)
	}
	if err != nil {
		return d.fail("set mode and times", "", err)
	}
	return nil
}

// hostMode is the mode a file gets on the host: permission bits only. A set-user-id bit that a guest chose would make
// its program ours.
func hostMode(m fs.FileMode) uint32 { return uint32(m.Perm()) }

func times(info Info) []unix.Timespec {
	at, mt := info.Atime, info.Mtime
	if at.IsZero() {
		at = mt
	}
	return []unix.Timespec{{Sec: at.Unix(), Nsec: int64(at.Nanosecond())}, {Sec: mt.Unix(), Nsec: int64(mt.Nanosecond())}}
}

func futimes(fd int, info Info) error {
	if info.Mtime.IsZero() {
		return nil
	}
	ts := times(info)
	tv := make([]unix.Timeval, 2)
	for i, t := range ts {
		tv[i] = unix.Timeval{Sec: t.Sec, Usec: t.Nsec / 1000}
	}
	if err := unix.UtimesNanoAt(fd, "", ts, unix.AT_EMPTY_PATH); err == nil || !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return unix.Futimes(fd, tv) // a kernel before 5.8
}

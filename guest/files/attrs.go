package files

import (
	"errors"
	"math"

	"golang.org/x/sys/unix"

	"msb/protocol/agent"
)

// openFlags are on every open: nothing the service opens may block it (a FIFO without a peer), become its terminal or
// reach a child.
const openFlags = unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY

// setPathAttrs changes attributes in an order in which none undoes another: the size and the owner, which clear
// set-id bits, then the mode, then the times.
func setPathAttrs(path string, follow bool, a agent.Attrs) error {
	flags := unix.AT_SYMLINK_NOFOLLOW
	if follow {
		flags = 0
	}
	if a.Mode != nil && !follow {
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return failed("lstat before chmod", err)
		}
		if st.Mode&unix.S_IFMT == unix.S_IFLNK {
			return errors.New("chmod on symlink without following is not supported")
		}
	}
	if a.Size != nil {
		if err := truncatePath(path, follow, *a.Size); err != nil {
			return err
		}
	}
	if a.UID != nil || a.GID != nil {
		uid, gid := ids(a)
		if err := retry(func() error { return unix.Fchownat(unix.AT_FDCWD, path, uid, gid, flags) }); err != nil {
			return failed("chown", err)
		}
	}
	if a.Mode != nil {
		if err := retry(func() error { return unix.Chmod(path, *a.Mode&modeBits) }); err != nil {
			return failed("chmod", err)
		}
	}
	if a.Atime != nil || a.Mtime != nil {
		times := timesOf(a)
		if err := retry(func() error { return unix.UtimesNanoAt(unix.AT_FDCWD, path, times[:], flags) }); err != nil {
			return failed("utimensat", err)
		}
	}
	return nil
}

func truncatePath(path string, follow bool, size uint64) error {
	flags := unix.O_WRONLY | openFlags
	if !follow {
		flags |= unix.O_NOFOLLOW
	}
	var fd int
	err := retry(func() (err error) {
		fd, err = unix.Open(path, flags, 0)
		return err
	})
	if err != nil {
		return failed("open for truncate", err)
	}
	defer unix.Close(fd)
	return truncate(fd, size)
}

func truncate(fd int, size uint64) error {
	if size > math.MaxInt64 {
		return failed("set_len", unix.EINVAL)
	}
	return failed("set_len", retry(func() error { return unix.Ftruncate(fd, int64(size)) }))
}

// setHandleAttrs is setPathAttrs for an open file.
func (s *Service) setHandleAttrs(o *owner, num uint64, a agent.Attrs) error {
	f, err := s.handles.useFile(o, num)
	if err != nil {
		return err
	}
	defer f.unref()
	if a.Size != nil {
		if err := truncate(f.fd, *a.Size); err != nil {
			return err
		}
	}
	if a.UID != nil || a.GID != nil {
		uid, gid := ids(a)
		if err := retry(func() error { return unix.Fchown(f.fd, uid, gid) }); err != nil {
			return failed("fchown", err)
		}
	}
	if a.Mode != nil {
		if err := retry(func() error { return unix.Fchmod(f.fd, *a.Mode&modeBits) }); err != nil {
			return failed("chmod", err)
		}
	}
	if a.Atime != nil || a.Mtime != nil {
		if err := retry(func() error { return futimens(f.fd, timesOf(a)) }); err != nil {
			return failed("futimens", err)
		}
	}
	return nil
}

// ids returns what chown takes; -1 leaves an id as it is.
func ids(a agent.Attrs) (uid, gid int) {
	uid, gid = -1, -1
	if a.UID != nil {
		uid = int(int32(*a.UID))
	}
	if a.GID != nil {
		gid = int(int32(*a.GID))
	}
	return uid, gid
}

func timesOf(a agent.Attrs) [2]unix.Timespec {
	t := [2]unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Nsec: unix.UTIME_OMIT}}
	if a.Atime != nil {
		t[0] = unix.Timespec{Sec: *a.Atime}
	}
	if a.Mtime != nil {
		t[1] = unix.Timespec{Sec: *a.Mtime}
	}
	return t
}

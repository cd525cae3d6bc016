package files

import (
	"golang.org/x/sys/unix"

	"msb/protocol/agent"
)

// openFlagsOf turns a request's options into flags by the rules of Rust's OpenOptions, which clients know.
func openFlagsOf(opt agent.OpenOptions) (int, error) {
	flags := openFlags
	switch {
	case opt.Append && opt.Read:
		flags |= unix.O_RDWR | unix.O_APPEND
	case opt.Append:
		flags |= unix.O_WRONLY | unix.O_APPEND
	case opt.Read && opt.Write:
		flags |= unix.O_RDWR
	case opt.Write:
		flags |= unix.O_WRONLY
	case opt.Read:
		flags |= unix.O_RDONLY
	default:
		return 0, unix.EINVAL
	}
	makes := opt.Create || opt.CreateNew
	switch {
	case !opt.Write && !opt.Append && (opt.Truncate || makes):
		return 0, unix.EINVAL
	case opt.Append && opt.Truncate && !opt.CreateNew:
		return 0, unix.EINVAL
	case opt.CreateNew:
		return flags | unix.O_CREAT | unix.O_EXCL, nil
	}
	if opt.Create {
		flags |= unix.O_CREAT
	}
	if opt.Truncate {
		flags |= unix.O_TRUNC
	}
	return flags, nil
}

func (s *Service) openFile(o *owner, path string, opt agent.OpenOptions) (agent.FSValue, error) {
	flags, err := openFlagsOf(opt)
	if err != nil {
		return nil, err
	}
	fd, err := openMode(path, flags, opt.Mode)
	if err != nil {
		return nil, err
	}
	f := &file{fd: fd, read: opt.Read, write: opt.Write || opt.Append, append: opt.Append, path: path}
	f.refs.Store(1)
	num, err := s.handles.insert(handle{own: o, file: f})
	return agent.FSHandle(num), err
}

// openMode opens path. A file it makes gets exactly mode, if that is given.
func openMode(path string, flags int, mode *uint32) (int, error) {
	if mode == nil || flags&unix.O_CREAT == 0 {
		return open(path, flags, newFileMode)
	}
	want := *mode & modeBits
	fd, err := open(path, flags|unix.O_EXCL, want)
	if err == nil {
		if err := exactMode(fd, want); err != nil {
			unix.Close(fd)
			return -1, err
		}
		return fd, nil
	}
	if err != unix.EEXIST || flags&unix.O_EXCL != 0 {
		return -1, err
	}
	fd, err = open(path, flags&^unix.O_CREAT, 0)
	if err == unix.ENOENT { // a dangling symlink, or the file has just been removed
		return open(path, flags, want)
	}
	return fd, err
}

func open(path string, flags int, mode uint32) (fd int, err error) {
	err = retry(func() (err error) {
		fd, err = unix.Open(path, flags, mode)
		return err
	})
	return fd, err
}

// exactMode undoes what the umask took from a new file's mode.
func exactMode(fd int, want uint32) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&modeBits == want {
		return nil
	}
	return unix.Fchmod(fd, want)
}

package tree

import (
	"crypto/rand"
	"path"

	"golang.org/x/sys/unix"
)

// WriteFile puts a file in place in one step, its folders with it. Links are not followed: a path with a link in it is
// an error, and a link that is in the way of the file itself is replaced.
func (r *Root) WriteFile(name string, data []byte, mode uint32) error {
	dir, base, err := r.parent(name)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	temp := ".msb-" + rand.Text()
	fd, err := unix.Openat(dir, temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return &PathError{Path: name, Err: err}
	}
	err = writeAll(fd, data)
	if err == nil {
		err = unix.Fchmod(fd, mode&0o777)
	}
	unix.Close(fd)
	if err == nil {
		err = unix.Renameat(dir, temp, dir, base)
	}
	if err != nil {
		_ = unix.Unlinkat(dir, temp, 0)
		return &PathError{Path: name, Err: err}
	}
	return nil
}

func writeAll(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// Remove removes a file or link, and the folders above it that are empty then.
func (r *Root) Remove(name string) error {
	fd, base, err := r.parent(name)
	if err != nil {
		return err
	}
	err = unix.Unlinkat(fd, base, 0)
	unix.Close(fd)
	if err != nil {
		return &PathError{Path: name, Err: err}
	}
	for dir := path.Dir(path.Clean(name)); dir != "."; dir = path.Dir(dir) {
		fd, base, err := r.parent(dir)
		if err != nil {
			break
		}
		err = unix.Unlinkat(fd, base, unix.AT_REMOVEDIR)
		unix.Close(fd)
		if err != nil {
			break
		}
	}
	return nil
}

// Exists tells whether there is anything of that name, a dangling link included.
func (r *Root) Exists(name string) (bool, error) {
	fd, err := r.open(name, unix.O_PATH|unix.O_NOFOLLOW, 0, 0)
	if err == nil {
		unix.Close(fd)
		return true, nil
	}
	if isMissing(err) {
		return false, nil
	}
	return false, err
}

// parent opens the folder of a name, which is made if it is missing, and returns the last element. The caller closes
// the folder.
func (r *Root) parent(name string) (fd int, base string, err error) {
	if err := checkPath(name); err != nil {
		return -1, "", err
	}
	clean := path.Clean(name)
	dir, base := path.Split(clean)
	if base == "." || base == ".." || base == "" {
		return -1, "", &PathError{Path: name, Err: errOutside}
	}
	fd, err = r.mkdirs(path.Clean("./" + dir))
	return fd, base, err
}

func (r *Root) mkdirs(dir string) (int, error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY
	fd, err := r.open(dir, flags, 0, unix.RESOLVE_NO_SYMLINKS)
	if err == nil || dir == "." || !isMissing(err) {
		return fd, err
	}
	above, err := r.mkdirs(path.Dir(dir))
	if err != nil {
		return -1, err
	}
	err = unix.Mkdirat(above, path.Base(dir), 0o755)
	unix.Close(above)
	if err != nil && err != unix.EEXIST {
		return -1, &PathError{Path: dir, Err: err}
	}
	return r.open(dir, flags, 0, unix.RESOLVE_NO_SYMLINKS)
}

package workspace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	wire "msb/protocol/worktree"
)

// hostTree is a folder on the host that is read without ever following a link
// in it.
type hostTree struct {
	dir *os.File
	dev uint64
}

func openHost(dir string) (*hostTree, error) {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		f.Close()
		return nil, &fs.PathError{Op: "stat", Path: dir, Err: err}
	}
	return &hostTree{dir: f, dev: st.Dev}, nil
}

func (t *hostTree) Close() error { return t.dir.Close() }

const noLinks = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// openat opens a path below the tree; a link anywhere in it is ELOOP.
func (t *hostTree) openat(p string, flags int) (*os.File, error) {
	for {
		fd, err := unix.Openat2(int(t.dir.Fd()), p, &unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: noLinks})
		if err == unix.EINTR || err == unix.EAGAIN {
			continue
		}
		if err != nil {
			return nil, &fs.PathError{Op: "open", Path: p, Err: err}
		}
		return os.NewFile(uintptr(fd), p), nil
	}
}

// folder opens the folder that a path is in.
func (t *hostTree) folder(p string) (*os.File, error) {
	return t.openat(path.Dir(p), unix.O_RDONLY|unix.O_DIRECTORY)
}

// lstat describes a path; absent is true when nothing is there, or only behind
// a link.
func (t *hostTree) lstat(p string) (st unix.Stat_t, absent bool, err error) {
	d, err := t.folder(p)
	if err != nil {
		return st, gone(err), err
	}
	defer d.Close()
	if err := unix.Fstatat(int(d.Fd()), path.Base(p), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		err = &fs.PathError{Op: "stat", Path: p, Err: err}
		return st, gone(err), err
	}
	return st, false, nil
}

func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

func (t *hostTree) readlink(p string) (string, error) {
	d, err := t.folder(p)
	if err != nil {
		return "", err
	}
	defer d.Close()
	buf := make([]byte, 1<<16)
	n, err := unix.Readlinkat(int(d.Fd()), path.Base(p), buf)
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: p, Err: err}
	}
	return string(buf[:n]), nil
}

// regular opens a file of that path; one that is no regular file is an error.
func (t *hostTree) regular(p string) (*os.File, unix.Stat_t, error) {
	var st unix.Stat_t
	f, err := t.openat(p, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil, st, err
	}
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		f.Close()
		return nil, st, &fs.PathError{Op: "open", Path: p, Err: errors.New("it is no regular file")}
	}
	return f, st, nil
}

// walk lists all files below the tree but git's own and those of other file
// systems. It calls skip for what it leaves out.
func (t *hostTree) walk(skip func(path string, why error)) ([]string, error) {
	var found []string
	var visit func(d *os.File, prefix string, depth int) error
	visit = func(d *os.File, prefix string, depth int) error {
		names, err := d.Readdirnames(-1)
		if err != nil {
			return fmt.Errorf("list %q: %w", prefix, err)
		}
		slices.Sort(names)
		for _, name := range names {
			p := prefix + name
			if isGitName(name) {
				if !strings.EqualFold(name, ".git") || prefix != "" {
					skip(p, errors.New("a folder of git's own"))
				}
				continue
			}
			if len(found) >= maxEntries {
				return fmt.Errorf("the folder has more than %d files", maxEntries)
			}
			var st unix.Stat_t
			if err := unix.Fstatat(int(d.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
				if err != unix.ENOENT {
					skip(p, err)
				}
				continue
			}
			if st.Mode&unix.S_IFMT != unix.S_IFDIR {
				found = append(found, p)
				continue
			}
			if st.Dev != t.dev {
				skip(p, errors.New("another file system is mounted there"))
				continue
			}
			if depth >= wire.MaxDepth-1 {
				skip(p, errors.New("folders are too deep"))
				continue
			}
			fd, err := unix.Openat(int(d.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
			if err != nil {
				skip(p, err)
				continue
			}
			found = append(found, p)
			sub := os.NewFile(uintptr(fd), p)
			err = visit(sub, p+"/", depth+1)
			sub.Close()
			if err != nil {
				return err
			}
		}
		return nil
	}
	d, err := t.openat(".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return found, visit(d, "", 0)
}

// withFolders adds the folders that paths are in and sorts everything, parents
// first.
func withFolders(paths []string) []string {
	seen := make(map[string]bool, len(paths))
	var all []string
	for _, p := range paths {
		for p != "." && !seen[p] {
			seen[p] = true
			all = append(all, p)
			p = path.Dir(p)
		}
	}
	slices.Sort(all)
	return all
}

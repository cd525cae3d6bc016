package transfer

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// HostSource reads the host's own files.
type HostSource struct{}

var _ Source = HostSource{}

// Stat describes the file at path.
func (HostSource) Stat(_ context.Context, path string, follow bool) (Info, error) {
	stat := os.Lstat
	if follow {
		stat = os.Stat
	}
	fi, err := stat(path)
	if err != nil {
		return Info{}, err
	}
	return hostInfo(fi), nil
}

// List returns what is in the directory at path.
func (HostSource) List(ctx context.Context, path string) ([]Info, error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	infos := make([]Info, 0, len(entries))
	for _, e := range entries {
		fi, err := e.Info()
		if err != nil {
			if os.IsNotExist(err) { // removed meanwhile
				continue
			}
			return nil, err
		}
		infos = append(infos, hostInfo(fi))
	}
	return infos, ctx.Err()
}

// Readlink returns the target of a symlink.
func (HostSource) Readlink(_ context.Context, path string) (string, error) { return os.Readlink(path) }

// Open opens the regular file at path. A file that became something else since it was listed is refused.
func (HostSource) Open(_ context.Context, path string) (io.ReadCloser, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		f.Close()
		return nil, fmt.Errorf("%s: is no regular file any more", path)
	}
	return f, nil
}

// Join adds a name to a directory.
func (HostSource) Join(dir, name string) string { return filepath.Join(dir, name) }

// Base is the last element of path, "." and ".." resolved.
func (HostSource) Base(path string) string {
	abs, err := filepath.Abs(path)
	if err != nil {
		return filepath.Base(path)
	}
	return filepath.Base(abs)
}

func hostInfo(fi fs.FileInfo) Info {
	info := Info{Name: fi.Name(), Mode: fi.Mode(), Size: fi.Size(), Mtime: fi.ModTime(), Atime: fi.ModTime()}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		info.Atime = time.Unix(st.Atim.Unix())
	}
	return info
}

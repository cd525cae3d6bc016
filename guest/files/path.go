package files

import (
	"strings"

	"golang.org/x/sys/unix"
)

// newDirMode is what a directory gets that was made on the way or without a mode, and newFileMode what a file gets:
// the modes a umask of 022 leaves. A mode that a request names is set exactly, whatever the agent's umask.
const (
	newDirMode  = 0o755
	newFileMode = 0o644
	modeBits    = 0o7777
)

// splitLast cuts the last component off path. name is empty when there is none that could be missing.
func splitLast(path string) (parent, name string) {
	path = strings.TrimRight(path, "/")
	i := strings.LastIndexByte(path, '/')
	name = path[i+1:]
	switch {
	case name == "" || name == "." || name == "..":
		return "", ""
	case i < 0:
		return ".", name
	}
	return path[:i+1], name
}

func join(dir, name string) string {
	if strings.HasSuffix(dir, "/") {
		return dir + name
	}
	return dir + "/" + name
}

// makeDir makes path and its missing parents. mode is set on path itself, also when it was there before.
func makeDir(path string, mode *uint32) error {
	if err := makeAll(path); err != nil {
		return failed("mkdir", err)
	}
	if mode == nil {
		return nil
	}
	return failed("chmod", retry(func() error { return unix.Chmod(path, *mode&modeBits) }))
}

func makeAll(path string) error {
	err := makeOne(path)
	if err != unix.ENOENT {
		return err
	}
	parent := strings.TrimRight(path, "/")
	parent = strings.TrimRight(parent[:strings.LastIndexByte(parent, '/')+1], "/")
	if parent == "" {
		return err
	}
	if err := makeAll(parent); err != nil {
		return err
	}
	return makeOne(path)
}

// makeOne makes one directory; one that is there already is fine.
func makeOne(path string) error {
	err := retry(func() error { return unix.Mkdir(path, newDirMode) })
	if err == nil || err == unix.ENOENT {
		return err
	}
	var st unix.Stat_t
	if unix.Stat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return nil
	}
	return err
}

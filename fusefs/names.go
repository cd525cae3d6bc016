package fusefs

import (
	"path"
	"strings"
	"syscall"
	"unicode/utf8"
)

const (
	maxName = 255  // bytes of one name
	maxPath = 4095 // bytes of a symlink target
)

// validName tells whether a name from the guest can be the name of an entry.
func validName(name string) bool {
	return name != "" && name != "." && name != ".." && len(name) <= maxName &&
		!strings.ContainsAny(name, "/\x00")
}

// sendableName checks a name from the kernel. The protocol's paths are text,
// so a name that is not UTF-8 has no place in the guest.
func sendableName(name string) syscall.Errno {
	switch {
	case len(name) > maxName:
		return syscall.ENAMETOOLONG
	case !validName(name):
		return syscall.EINVAL
	case !utf8.ValidString(name):
		return syscall.EILSEQ
	}
	return 0
}

// nameOf returns the name of an entry that the guest listed in dir, and
// whether it is one.
func nameOf(dir, entryPath string) (string, bool) {
	name, ok := strings.CutPrefix(entryPath, join(dir, ""))
	if !ok { // the guest may spell the directory in another way
		name = entryPath[strings.LastIndexByte(entryPath, '/')+1:]
	}
	return name, validName(name)
}

// join appends one name to a clean absolute path.
func join(dir, name string) string {
	if dir == "/" {
		return dir + name
	}
	return dir + "/" + name
}

// under returns p relative to the clean path root ("" for root itself).
func under(root, p string) (string, bool) {
	if p == root {
		return "", true
	}
	return strings.CutPrefix(p, join(root, ""))
}

// cleanAbs is path.Clean in a world where "/" has no parent.
func cleanAbs(p string) string { return path.Clean("/" + p) }

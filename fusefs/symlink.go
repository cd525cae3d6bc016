package fusefs

import (
	"path"
	"strings"
	"syscall"
)

// outside is where absolute targets that are not below the mounted directory
// seem to be: a name in the mount that never exists.
const outside = ".msb-outside"

// symlinks keeps the guest's symlinks inside the mount. The kernel resolves
// what it is told on this host, so a target must not be able to climb out:
//
//   - An absolute target becomes one below the mount point. What lies outside
//     of the mounted directory becomes a dangling name below outside.
//   - A relative target is shown as it is unless it climbs: then it is cleaned
//     and loses the ".." that would lead above the mount.
//
// The first rewriting is undone for a target that is created through the mount.
type symlinks struct {
	dir  string // mount point on this host
	root string // mounted directory of the guest
	mode Symlinks
}

// toHost returns the target to show for a guest's target in a directory that
// lies depth levels below the mount point.
func (s symlinks) toHost(target string, depth int) (string, syscall.Errno) {
	if target == "" || strings.ContainsRune(target, 0) {
		return "", syscall.EIO
	}
	if s.mode == Raw {
		if len(target) > maxPath {
			return "", syscall.ENAMETOOLONG
		}
		return target, 0
	}
	if path.IsAbs(target) {
		target = cleanAbs(target)
		if rest, ok := under(s.root, target); ok {
			target = strings.TrimSuffix(join(s.dir, rest), "/")
		} else {
			target = join(s.dir, outside) + target
		}
	} else {
		target = contain(target, depth)
	}
	if target == "" {
		target = "/"
	}
	if len(target) > maxPath {
		return "", syscall.ENAMETOOLONG
	}
	return target, 0
}

// toGuest returns the target to store for one that a program on this host
// created.
func (s symlinks) toGuest(target string) string {
	if s.mode == Raw {
		return target
	}
	rest, ok := under(s.dir, target)
	if !ok || !path.IsAbs(target) {
		return target
	}
	if out, ok := strings.CutPrefix(rest, outside+"/"); ok {
		return "/" + out
	}
	if rest == "" {
		return s.root
	}
	return join(s.root, rest)
}

// contain makes a relative target safe in a directory depth levels deep. Once
// cleaned, ".." stands only in front, where it counts real directories; after a
// name it could follow another symlink first and climb further than it shows.
func contain(target string, depth int) string {
	if !climbs(target) {
		return target
	}
	clean := path.Clean(target)
	up := 0
	for clean == ".." || strings.HasPrefix(clean, "../") {
		clean = strings.TrimPrefix(clean[2:], "/")
		up++
	}
	if clean == "" {
		clean = "."
	}
	return strings.Repeat("../", min(up, depth)) + clean
}

func climbs(target string) bool {
	for part := range strings.SplitSeq(target, "/") {
		if part == ".." {
			return true
		}
	}
	return false
}

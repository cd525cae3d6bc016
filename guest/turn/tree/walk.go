package tree

import (
	"context"
	"encoding/binary"
	"errors"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Bounds of a walk, so that a hostile tree costs time but not the agent.
const (
	maxFolderEntries = 100_000 // of one folder
	maxFolders       = 200_000 // waiting to be looked at
	maxLevels        = 128
)

// Entry is one name of the tree.
type Entry struct {
	Path string // relative to the workspace
	Dir  bool
}

// entry is a name in a folder.
type entry struct {
	name string
	kind uint32 // S_IFMT bits; 0: unknown
}

// errStop ends a walk early.
var errStop = errors.New("stop")

// walk visits what is below start level by level, in order of names, to the given depth, without following links. A
// folder that cannot be read is left out, except start. visit says whether to go down into a folder; errStop ends the
// walk without an error.
func (r *Root) walk(ctx context.Context, start string, depth int, visit func(p string, e entry) (down bool, err error)) error {
	type level struct {
		path  string
		depth int
	}
	queue := []level{{path.Clean(start), 1}}
	for first := true; len(queue) > 0; first = false {
		at := queue[0]
		queue = queue[1:]
		resolve := uint64(unix.RESOLVE_NO_SYMLINKS)
		if first {
			resolve = 0 // who names a link means what it leads to
		}
		entries, err := r.readDir(ctx, at.path, resolve)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			if first {
				return err
			}
			continue
		}
		for _, e := range entries {
			p := e.name
			if at.path != "." {
				p = at.path + "/" + e.name
			}
			down, err := visit(p, e)
			if err == errStop {
				return nil
			}
			if err != nil {
				return err
			}
			if down && e.kind == unix.S_IFDIR && at.depth < depth && len(queue) < maxFolders {
				queue = append(queue, level{p, at.depth + 1})
			}
		}
	}
	return nil
}

// readDir returns the sorted entries of a folder.
func (r *Root) readDir(ctx context.Context, dir string, resolve uint64) ([]entry, error) {
	fd, err := r.open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0, resolve)
	if err != nil {
		if errors.Is(err, unix.ENOTDIR) {
			err = &PathError{Path: dir, Err: errNotDir}
		}
		return nil, err
	}
	defer unix.Close(fd)
	var entries []entry
	buf := make([]byte, 32<<10)
	for len(entries) < maxFolderEntries && ctx.Err() == nil {
		n, err := unix.Getdents(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, &PathError{Path: dir, Err: err}
		}
		if n == 0 {
			break
		}
		entries = parseDirents(buf[:n], entries)
	}
	for i := range entries {
		if entries[i].kind != 0 {
			continue
		}
		var st unix.Stat_t
		if unix.Fstatat(fd, entries[i].name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
			entries[i].kind = st.Mode & unix.S_IFMT
		}
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	return entries, nil
}

// parseDirents reads struct linux_dirent64: inode, offset, record length, type, name. Names that are no UTF-8 cannot
// be written in an answer and are left out.
func parseDirents(b []byte, entries []entry) []entry {
	const nameAt = 19
	for len(b) >= nameAt {
		n := int(binary.NativeEndian.Uint16(b[16:]))
		if n < nameAt || n > len(b) {
			break
		}
		name, _, _ := strings.Cut(string(b[nameAt:n]), "\x00")
		kind := uint32(b[18]) << 12 // DT_x is S_IFx shifted
		b = b[n:]
		if name == "." || name == ".." || !utf8.ValidString(name) {
			continue
		}
		entries = append(entries, entry{name, kind})
	}
	return entries
}

// ListOptions bounds a list.
type ListOptions struct {
	Depth  int  // levels below the folder, at least 1
	Limit  int  // entries, at least 1
	Hidden bool // go into .git too
}

// List lists what is below a folder, sorted by path. The entries near the top win when there are more than fit; more
// tells that.
func (t *Tree) List(ctx context.Context, dir string, o ListOptions) (list []Entry, more bool, err error) {
	type result struct {
		list []Entry
		more bool
	}
	got, err := Do(ctx, t, func(ctx context.Context, r *Root) (result, error) {
		var res result
		err := r.walk(ctx, t.Local(dir), min(o.Depth, maxLevels), func(p string, e entry) (bool, error) {
			if len(res.list) >= o.Limit {
				res.more = true
				return false, errStop
			}
			isDir := e.kind == unix.S_IFDIR
			res.list = append(res.list, Entry{Path: p, Dir: isDir})
			return o.Hidden || e.name != ".git", nil
		})
		slices.SortFunc(res.list, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
		return res, err
	})
	return got.list, got.more, err
}

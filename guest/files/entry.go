package files

import (
	"os"
	"strconv"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"msb/protocol/agent"
)

// entryOf describes what st says about path.
func entryOf(path string, st *unix.Stat_t) agent.Entry {
	atime, mtime := int64(st.Atim.Sec), int64(st.Mtim.Sec)
	return agent.Entry{
		Path:     text(path),
		Kind:     kindOf(st.Mode),
		Size:     uint64(st.Size),
		Mode:     st.Mode,
		Modified: &mtime,
		UID:      st.Uid,
		GID:      st.Gid,
		Atime:    &atime,
		Mtime:    &mtime,
	}
}

// unknownEntry stands for a name whose file cannot be examined.
func unknownEntry(path string) agent.Entry {
	return agent.Entry{Path: text(path), Kind: agent.KindOther}
}

func kindOf(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return agent.KindFile
	case unix.S_IFDIR:
		return agent.KindDir
	case unix.S_IFLNK:
		return agent.KindSymlink
	}
	return agent.KindOther
}

// text returns a name as text: U+FFFD stands for every byte that is not part of UTF-8.
func text(name string) string {
	if utf8.ValidString(name) {
		return name
	}
	return string([]rune(name))
}

func stat(path string, follow bool) (agent.FSValue, error) {
	flags := unix.AT_SYMLINK_NOFOLLOW
	if follow {
		flags = 0
	}
	var st unix.Stat_t
	if err := retry(func() error { return unix.Fstatat(unix.AT_FDCWD, path, &st, flags) }); err != nil {
		return nil, err
	}
	return agent.FSStat(entryOf(path, &st)), nil
}

// fstat describes an open file, and for a directory handle whatever is at its path now.
func (s *Service) fstat(o *owner, num uint64) (agent.FSValue, error) {
	h, err := s.handles.use(o, num)
	if err != nil {
		return nil, err
	}
	if h.file == nil {
		return stat(h.dir.path, true)
	}
	defer h.file.unref()
	var st unix.Stat_t
	if err := retry(func() error { return unix.Fstat(h.file.fd, &st) }); err != nil {
		return nil, err
	}
	return agent.FSStat(entryOf(h.file.path, &st)), nil
}

func readLink(path string) (agent.FSValue, error) {
	target, err := os.Readlink(path)
	if err != nil {
		return nil, err
	}
	return agent.FSPath(text(target)), nil
}

// realPath resolves every symlink in path. The last component may be missing.
func realPath(path string) (agent.FSValue, error) {
	resolved, err := resolve(path)
	if err != unix.ENOENT {
		return agent.FSPath(text(resolved)), err
	}
	parent, name := splitLast(path)
	if name == "" {
		return nil, err
	}
	dir, perr := resolve(parent)
	if perr != nil {
		return nil, err
	}
	return agent.FSPath(text(join(dir, name))), nil
}

// resolve asks the kernel where path leads.
func resolve(path string) (string, error) {
	var fd int
	err := retry(func() (err error) {
		fd, err = unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	return os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
}

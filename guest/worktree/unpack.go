package worktree

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	wire "msb/protocol/worktree"
)

// start is what the folder must be, or is made, before anything is unpacked.
type start struct{ empty, clear bool }

// unpacker writes a tree below root.
type unpacker struct {
	root     int // descriptor
	uid, gid int
	temp     int // number of temporary names

	parent   int // descriptor of the folder written to last, -1: none
	parentAt string
	dirs     []wire.Entry // whose time is set at the end
}

// unpack takes a tree and answers when it is on the disk.
func unpack(root string, s start, uid, gid int, in io.Reader, out io.Writer) error {
	w := wire.NewWriter(out)
	r := wire.NewReader(in)
	err := unpackTree(root, s, uid, gid, r)
	if werr := w.End(err); werr != nil {
		return errors.Join(err, werr)
	}
	if err != nil {
		// The host must not block on what it still has to send.
		io.Copy(io.Discard, in)
	}
	return err
}

func unpackTree(root string, s start, uid, gid int, r *wire.Reader) error {
	if err := os.MkdirAll(path.Dir(root), 0o755); err != nil {
		return err
	}
	made := os.Mkdir(root, 0o755) == nil
	fd, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", root, err)
	}
	d := os.NewFile(uintptr(fd), root)
	defer d.Close()
	if made {
		if err := unix.Fchown(fd, uid, gid); err != nil {
			return fmt.Errorf("owner of %s: %w", root, err)
		}
	}
	if s.clear {
		if err := removeContent(fd); err != nil {
			return fmt.Errorf("empty %s: %w", root, err)
		}
	} else if s.empty {
		if names, err := d.Readdirnames(1); err != io.EOF {
			return errors.Join(err, fmt.Errorf("%s is not empty: it has %q", root, names))
		}
	}
	u := &unpacker{root: fd, uid: uid, gid: gid, parent: -1}
	defer u.leave()
	if err := u.run(r); err != nil {
		return err
	}
	if err := unix.Syncfs(fd); err != nil {
		return fmt.Errorf("write to disk: %w", err)
	}
	return nil
}

func (u *unpacker) run(r *wire.Reader) error {
	for {
		t, p, err := r.Next()
		if err != nil {
			return fmt.Errorf("read the tree: %w", err)
		}
		switch t {
		case wire.FrameEntry:
			e, err := wire.DecodeEntry(p)
			if err != nil {
				return err
			}
			if err := u.entry(e, r); err != nil {
				return fmt.Errorf("write %q: %w", e.Path, err)
			}
		case wire.FrameRemove:
			if err := u.remove(string(p)); err != nil {
				return fmt.Errorf("remove %q: %w", p, err)
			}
		case wire.FrameEnd:
			return u.times()
		default:
			return fmt.Errorf("%w: frame %q in a tree", wire.ErrFrame, t)
		}
	}
}

// enter makes the folder of a path the one that is written to.
func (u *unpacker) enter(dir string) error {
	if u.parent >= 0 && u.parentAt == dir {
		return nil
	}
	u.leave()
	fd, err := u.open(dir)
	if err != nil {
		return err
	}
	u.parent, u.parentAt = fd, dir
	return nil
}

func (u *unpacker) leave() {
	if u.parent >= 0 {
		unix.Close(u.parent)
		u.parent = -1
	}
}

func (u *unpacker) open(dir string) (int, error) {
	return unix.Openat2(u.root, dir, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
}

func (u *unpacker) entry(e wire.Entry, r *wire.Reader) error {
	if err := u.enter(path.Dir(e.Path)); err != nil {
		return fmt.Errorf("folder: %w", err)
	}
	name := path.Base(e.Path)
	switch e.Kind {
	case wire.KindDir:
		return u.dir(name, e)
	case wire.KindFile:
		return u.file(name, e, r)
	case wire.KindLink:
		return u.link(name, e)
	}
	return fmt.Errorf("%w: kind %q", wire.ErrFrame, e.Kind)
}

// dir makes a folder, or takes the one that is there.
func (u *unpacker) dir(name string, e wire.Entry) error {
	err := unix.Mkdirat(u.parent, name, 0o700)
	if err == unix.EEXIST {
		var st unix.Stat_t
		if err := unix.Fstatat(u.parent, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			return nil
		}
		if err := unix.Unlinkat(u.parent, name, 0); err != nil {
			return err
		}
		err = unix.Mkdirat(u.parent, name, 0o700)
	}
	if err != nil {
		return err
	}
	fd, err := unix.Openat(u.parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Fchown(fd, u.uid, u.gid); err != nil {
		return err
	}
	if err := unix.Fchmod(fd, e.Mode&0o777); err != nil {
		return err
	}
	if e.MTime != 0 {
		u.dirs = append(u.dirs, e)
	}
	return nil
}

// file writes under a temporary name first: what is there stays whole until
// the content is complete.
func (u *unpacker) file(name string, e wire.Entry, r *wire.Reader) error {
	temp := u.tempName()
	fd, err := unix.Openat(u.parent, temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), temp)
	err = u.content(f, r)
	if err == nil {
		err = f.Chown(u.uid, u.gid)
	}
	if err == nil {
		err = unix.Fchmod(fd, e.Mode&0o777)
	}
	if err == nil && e.MTime != 0 {
		err = setTime(u.parent, temp, e.MTime)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = u.place(temp, name)
	}
	if err != nil {
		unix.Unlinkat(u.parent, temp, 0)
	}
	return err
}

func (u *unpacker) content(f *os.File, r *wire.Reader) error {
	for {
		t, p, err := r.Next()
		if err != nil {
			return fmt.Errorf("read the tree: %w", err)
		}
		switch t {
		case wire.FrameData:
			if _, err := f.Write(p); err != nil {
				return err
			}
		case wire.FrameClose:
			if len(p) > 0 {
				return errors.New(string(p))
			}
			return nil
		default:
			return fmt.Errorf("%w: frame %q in a file", wire.ErrFrame, t)
		}
	}
}

func (u *unpacker) link(name string, e wire.Entry) error {
	temp := u.tempName()
	if err := unix.Symlinkat(e.Target, u.parent, temp); err != nil {
		return err
	}
	err := unix.Fchownat(u.parent, temp, u.uid, u.gid, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && e.MTime != 0 {
		err = setTime(u.parent, temp, e.MTime)
	}
	if err == nil {
		err = u.place(temp, name)
	}
	if err != nil {
		unix.Unlinkat(u.parent, temp, 0)
	}
	return err
}

// place gives a finished file its name. A folder of that name goes.
func (u *unpacker) place(temp, name string) error {
	err := unix.Renameat(u.parent, temp, u.parent, name)
	if err == unix.EISDIR || err == unix.EEXIST || err == unix.ENOTEMPTY {
		if err := removeAll(u.parent, name); err != nil {
			return err
		}
		err = unix.Renameat(u.parent, temp, u.parent, name)
	}
	return err
}

func (u *unpacker) tempName() string {
	u.temp++
	return ".msb-" + strconv.Itoa(os.Getpid()) + "-" + strconv.Itoa(u.temp) + ".tmp"
}

// remove removes a file, or a folder that is empty; others stay.
func (u *unpacker) remove(p string) error {
	if err := wire.CheckPath(p); err != nil {
		return err
	}
	err := u.enter(path.Dir(p))
	if err == nil {
		err = unix.Unlinkat(u.parent, path.Base(p), 0)
		if err == unix.EISDIR {
			err = unix.Unlinkat(u.parent, path.Base(p), unix.AT_REMOVEDIR)
		}
	}
	switch err {
	case unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.ENOTEMPTY, unix.EEXIST:
		return nil
	}
	return err
}

// times sets the folders' times, inner ones first.
func (u *unpacker) times() error {
	for i := len(u.dirs) - 1; i >= 0; i-- {
		e := u.dirs[i]
		if err := u.enter(path.Dir(e.Path)); err != nil {
			continue // replaced meanwhile
		}
		setTime(u.parent, path.Base(e.Path), e.MTime)
	}
	return nil
}

func setTime(dir int, name string, ns int64) error {
	ts, err := unix.TimeToTimespec(time.Unix(0, ns))
	if err != nil {
		return nil // a time that does not exist here
	}
	return unix.UtimesNanoAt(dir, name, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
}

// removeContent removes all that is in a folder.
func removeContent(dir int) error {
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	d := os.NewFile(uintptr(fd), ".")
	defer d.Close()
	for {
		names, err := d.Readdirnames(1024)
		for _, name := range names {
			if err := removeAll(fd, name); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// removeAll removes a name of a folder and what is in it, without following
// links.
func removeAll(dir int, name string) error {
	if strings.Contains(name, "/") {
		return unix.EINVAL
	}
	err := unix.Unlinkat(dir, name, 0)
	if err != unix.EISDIR {
		if err == unix.ENOENT {
			return nil
		}
		return err
	}
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	err = removeContent(fd)
	unix.Close(fd)
	if err != nil {
		return err
	}
	return unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
}

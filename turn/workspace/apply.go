package workspace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	wire "msb/protocol/worktree"
)

// Apply makes the changes of a plan. All new contents are written beside their
// places first; only when that worked, and every file is still as the plan saw
// it, do they take them. When a later step fails all the same, what was done
// is taken back as far as possible, and the error says what was not.
func (p *Plan) Apply(ctx context.Context) error {
	t, err := openHost(p.Dir)
	if err != nil {
		return fmt.Errorf("apply a patch: %w", err)
	}
	defer t.Close()
	objects, err := p.repo.objects(ctx)
	if err != nil {
		return err
	}
	defer objects.close()
	a := &applier{plan: p, tree: t, objects: objects}
	defer a.clean()
	for path, f := range p.before {
		if g, stays := p.after[path]; !stays || !f.same(g) {
			if err := a.fresh(path, f); err != nil {
				return err
			}
		}
	}
	after := p.after.sorted()
	for _, path := range after {
		f := p.after[path]
		old, was := p.before[path]
		if was && old.same(f) {
			continue
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := a.prepare(path, f, old, was); err != nil {
			return fmt.Errorf("write %q: %w; nothing was changed", path, err)
		}
	}
	return a.commit()
}

// applier changes a folder of the host.
type applier struct {
	plan    *Plan
	tree    *hostTree
	objects *objects
	ready   []prepared
	made    []string // folders
	gone    []string // temporary names of files that went away
}

// prepared is a file under a temporary name.
type prepared struct {
	path, temp string
	was        bool // something is replaced
}

// fresh checks that a file is still what the plan saw.
func (a *applier) fresh(name string, f File) error {
	changed := &ConflictError{Paths: []string{name}, Why: "it changed since the patch was tried"}
	st, absent, err := a.tree.lstat(name)
	if absent {
		return changed
	}
	if err != nil {
		return err
	}
	switch {
	case f.Kind == wire.KindLink && st.Mode&unix.S_IFMT == unix.S_IFLNK:
		target, err := a.tree.readlink(name)
		if err != nil {
			return err
		}
		if was, err := a.objects.text(f.ID, wire.MaxPath); err != nil || was != target {
			return errors.Join(changed, err)
		}
		return nil
	case f.Kind == wire.KindFile && st.Mode&unix.S_IFMT == unix.S_IFREG && File{Kind: f.Kind, Mode: st.Mode & 0o777}.gitMode() == f.gitMode():
		in, _, err := a.tree.regular(name)
		if err != nil {
			return err
		}
		defer in.Close()
		same := &comparer{r: in}
		if err := a.objects.copy(f.ID, same); err != nil {
			return err
		}
		if !same.equal() {
			return changed
		}
		return nil
	}
	return changed
}

// comparer is a writer that compares what is written with a reader.
type comparer struct {
	r      *os.File
	buf    []byte
	differ bool
}

func (c *comparer) Write(p []byte) (int, error) {
	if !c.differ {
		if cap(c.buf) < len(p) {
			c.buf = make([]byte, len(p))
		}
		n := 0
		for n < len(p) {
			m, err := c.r.Read(c.buf[n:len(p)])
			n += m
			if err != nil {
				break
			}
		}
		c.differ = n < len(p) || !bytes.Equal(c.buf[:n], p)
	}
	return len(p), nil
}

// equal tells whether all was the same, and the reader is at its end.
func (c *comparer) equal() bool {
	var one [1]byte
	n, _ := c.r.Read(one[:])
	return !c.differ && n == 0
}

// prepare writes a file under a temporary name beside its place, or as near as
// there is a folder.
func (a *applier) prepare(name string, f, old File, was bool) error {
	near := parent(name)
	for near != "" {
		st, absent, err := a.tree.lstat(near)
		if err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			break
		}
		if err != nil && !absent {
			return err
		}
		near = parent(near) // made later, or a file that gives way
	}
	temp := a.tempName(near, "new")
	d, err := a.tree.folder(temp)
	if err != nil {
		return err
	}
	defer d.Close()
	if f.Kind == wire.KindLink {
		target, err := a.objects.text(f.ID, wire.MaxPath)
		if err != nil {
			return err
		}
		if err := unix.Symlinkat(target, int(d.Fd()), path.Base(temp)); err != nil {
			return err
		}
		a.ready = append(a.ready, prepared{path: name, temp: temp, was: was})
		return nil
	}
	execute := f.gitMode() == "100755"
	mode := permissions(0o666, execute) // less the umask
	if was && old.Kind == wire.KindFile {
		mode = permissions(old.Mode, execute)
	}
	fd, err := unix.Openat(int(d.Fd()), path.Base(temp), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode|0o200)
	if err != nil {
		return err
	}
	a.ready = append(a.ready, prepared{path: name, temp: temp, was: was})
	out := os.NewFile(uintptr(fd), temp)
	err = a.objects.copy(f.ID, out)
	if err == nil && was && old.Kind == wire.KindFile {
		err = unix.Fchmod(fd, mode) // what the user had, whatever the umask
	}
	if err == nil {
		err = out.Sync()
	}
	return errors.Join(err, out.Close())
}

// permissions are those of a file whose execute bits git sets or takes away.
func permissions(mode uint32, execute bool) uint32 {
	if !execute {
		return mode &^ 0o111
	}
	return mode | mode&0o444>>2
}

// commit gives everything its place.
func (a *applier) commit() error {
	var done []func() error // how to take it back, step by step
	fail := func(name string, err error) error {
		var back error
		for _, undo := range slices.Backward(done) {
			back = errors.Join(back, undo())
		}
		if back == nil {
			return fmt.Errorf("change %q: %w; nothing was changed", name, err)
		}
		// What could not be put back is not to be cleaned up.
		a.ready, a.gone = nil, nil
		return fmt.Errorf("change %q: %w; some changes could not be taken back, the files are in %s under names that start with .msb-apply: %w",
			name, err, a.plan.Dir, back)
	}
	for name := range a.plan.before {
		if _, stays := a.plan.after[name]; stays {
			continue
		}
		undo, err := a.aside(name)
		if err != nil {
			return fail(name, err)
		}
		done = append(done, undo)
	}
	a.emptied()
	for _, r := range a.ready {
		err := a.folders(r.path)
		if err == nil {
			var undo func() error
			if undo, err = a.place(r); err == nil {
				done = append(done, undo)
			}
		}
		if err != nil {
			return fail(r.path, err)
		}
	}
	a.made = nil
	return nil
}

func (a *applier) tempName(dir, kind string) string {
	return path.Join(dir, fmt.Sprintf(".msb-apply-%d-%s-%d", os.Getpid(), kind, len(a.ready)+len(a.gone)))
}

// aside moves a file that goes away out of sight.
func (a *applier) aside(name string) (undo func() error, err error) {
	kept := a.tempName("", "gone")
	if err = a.rename(name, kept, unix.RENAME_NOREPLACE); err == unix.EXDEV {
		kept = a.tempName(path.Dir(name), "gone")
		err = a.rename(name, kept, unix.RENAME_NOREPLACE)
	}
	if err != nil {
		return nil, err
	}
	a.gone = append(a.gone, kept)
	return func() error {
		return errors.Join(a.folders(name), a.rename(kept, name, unix.RENAME_NOREPLACE))
	}, nil
}

// place gives a prepared file its name. What it replaces takes the temporary
// one, or goes aside where the file system cannot exchange two names.
func (a *applier) place(r prepared) (undo func() error, err error) {
	if !r.was {
		return func() error { return a.rename(r.path, r.temp, unix.RENAME_NOREPLACE) }, a.rename(r.temp, r.path, unix.RENAME_NOREPLACE)
	}
	err = a.rename(r.temp, r.path, unix.RENAME_EXCHANGE)
	if err != unix.EINVAL && err != unix.ENOSYS {
		return func() error { return a.rename(r.path, r.temp, unix.RENAME_EXCHANGE) }, err
	}
	back, err := a.aside(r.path)
	if err != nil {
		return nil, err
	}
	if err := a.rename(r.temp, r.path, unix.RENAME_NOREPLACE); err != nil {
		return nil, errors.Join(err, back())
	}
	return func() error { return errors.Join(a.rename(r.path, r.temp, unix.RENAME_NOREPLACE), back()) }, nil
}

// hostRename is called before every rename, in tests.
var hostRename func() error

func (a *applier) rename(from, to string, flags uint) error {
	if hostRename != nil {
		if err := hostRename(); err != nil {
			return err
		}
	}
	d, err := a.tree.folder(from)
	if err != nil {
		return err
	}
	defer d.Close()
	e, err := a.tree.folder(to)
	if err != nil {
		return err
	}
	defer e.Close()
	err = unix.Renameat2(int(d.Fd()), path.Base(from), int(e.Fd()), path.Base(to), flags)
	if flags == unix.RENAME_NOREPLACE && (err == unix.EINVAL || err == unix.ENOSYS) { // not every file system can
		var st unix.Stat_t
		if unix.Fstatat(int(e.Fd()), path.Base(to), &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
			return unix.EEXIST
		}
		err = unix.Renameat(int(d.Fd()), path.Base(from), int(e.Fd()), path.Base(to))
	}
	return err
}

// folders makes the folders above a path.
func (a *applier) folders(name string) error {
	var missing []string
	for up := parent(name); up != ""; up = parent(up) {
		st, absent, err := a.tree.lstat(up)
		if err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			break
		}
		if err != nil && !absent {
			return err
		}
		missing = append(missing, up)
	}
	for _, up := range slices.Backward(missing) {
		d, err := a.tree.folder(up)
		if err != nil {
			return err
		}
		err = unix.Mkdirat(int(d.Fd()), path.Base(up), 0o777)
		d.Close()
		if err != nil {
			return err
		}
		a.made = append(a.made, up)
	}
	return nil
}

// emptied removes the folders that files went away from, if they are empty.
func (a *applier) emptied() {
	for name := range a.plan.before {
		if _, stays := a.plan.after[name]; stays {
			continue
		}
		for up := parent(name); up != ""; up = parent(up) {
			if a.unlink(up, unix.AT_REMOVEDIR) != nil {
				break
			}
		}
	}
}

// clean removes what is not needed any more, whatever happened.
func (a *applier) clean() {
	for _, r := range a.ready {
		a.unlink(r.temp, 0)
	}
	for _, kept := range a.gone {
		a.unlink(kept, 0)
	}
	for _, dir := range slices.Backward(a.made) {
		a.unlink(dir, unix.AT_REMOVEDIR)
	}
}

func (a *applier) unlink(name string, flags int) error {
	d, err := a.tree.folder(name)
	if err != nil {
		return err
	}
	defer d.Close()
	return unix.Unlinkat(int(d.Fd()), path.Base(name), flags)
}

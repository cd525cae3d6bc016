package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"time"

	"msb/agentclient"
	"msb/protocol/agent"
)

// GuestSource reads the files of a sandbox.
type GuestSource struct{ FS *agentclient.FS }

var _ Source = GuestSource{}

// Stat describes the file at path.
func (g GuestSource) Stat(ctx context.Context, p string, follow bool) (Info, error) {
	e, err := g.FS.Stat(ctx, p, follow)
	if err != nil {
		return Info{}, err
	}
	info := guestInfo(e)
	info.Name = slashBase(p)
	return info, nil
}

// maxEntries bounds one directory: a guest can pretend to have any number of files.
const maxEntries = 4 << 20

// List returns what is in the directory at path.
func (g GuestSource) List(ctx context.Context, p string) ([]Info, error) {
	d, err := g.FS.OpenDir(ctx, p)
	if err != nil {
		return nil, err
	}
	defer closeQuietly(ctx, d.Close)
	var infos []Info
	for {
		entries, err := d.Read(ctx, 1024)
		if err != nil {
			return nil, err
		}
		if len(entries) == 0 {
			return infos, nil
		}
		if len(infos)+len(entries) > maxEntries {
			return nil, fmt.Errorf("%s: more than %d entries", p, maxEntries)
		}
		for _, e := range entries {
			infos = append(infos, guestInfo(e))
		}
	}
}

// Readlink returns the target of a symlink.
func (g GuestSource) Readlink(ctx context.Context, p string) (string, error) {
	return g.FS.ReadLink(ctx, p)
}

// Open opens the file at path.
func (g GuestSource) Open(ctx context.Context, p string) (io.ReadCloser, error) {
	f, err := g.FS.OpenFile(ctx, p, agent.OpenOptions{Read: true})
	if err != nil {
		return nil, err
	}
	return &guestReader{ctx: ctx, f: f}, nil
}

// Join adds a name to a directory.
func (GuestSource) Join(dir, name string) string { return path.Join(dir, name) }

// Base is the last element of path.
func (GuestSource) Base(p string) string { return slashBase(p) }

// guestReader is a file of the guest as a stream. WriteTo downloads straight into the writer; Read, for a destination
// that pulls, goes through a pipe.
type guestReader struct {
	ctx  context.Context
	f    *agentclient.File
	pipe *io.PipeReader
	done chan struct{}
}

func (r *guestReader) WriteTo(w io.Writer) (int64, error) { return r.f.Download(r.ctx, w, 0, nil) }

func (r *guestReader) Read(p []byte) (int, error) {
	if r.pipe == nil {
		pr, pw := io.Pipe()
		r.pipe, r.done = pr, make(chan struct{})
		go func() {
			defer close(r.done)
			_, err := r.f.Download(r.ctx, pw, 0, nil)
			pw.CloseWithError(err)
		}()
	}
	return r.pipe.Read(p)
}

func (r *guestReader) Close() error {
	if r.pipe != nil {
		r.pipe.Close()
		<-r.done
	}
	closeQuietly(r.ctx, r.f.Close)
	return nil
}

// closeQuietly closes a handle for reading; a guest that cannot close one has nothing of ours left to lose.
func closeQuietly(ctx context.Context, close func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_ = close(ctx)
}

// GuestDir is a directory of a sandbox. What is made in it belongs to whom the directory belongs.
type GuestDir struct {
	fs       *agentclient.FS
	path     string
	uid, gid uint32
}

var _ Dir = (*GuestDir)(nil)

// OpenGuestDir takes the directory at p.
func OpenGuestDir(ctx context.Context, fs *agentclient.FS, p string) (*GuestDir, error) {
	e, err := fs.Stat(ctx, p, true)
	if err != nil {
		return nil, err
	}
	if e.Kind != agent.KindDir {
		return nil, fmt.Errorf("%s is not a directory in the sandbox", p)
	}
	return &GuestDir{fs: fs, path: p, uid: e.UID, gid: e.GID}, nil
}

// Enter makes or takes the directory info.Name.
func (d *GuestDir) Enter(ctx context.Context, info Info) (Dir, error) {
	p := path.Join(d.path, info.Name)
	if e, err := d.fs.Stat(ctx, p, true); err == nil && e.Kind == agent.KindDir {
		return &GuestDir{fs: d.fs, path: p, uid: e.UID, gid: e.GID}, nil
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	mode := uint32(0o700)
	if err := d.fs.Mkdir(ctx, p, &mode); err != nil {
		return nil, err
	}
	if err := d.own(ctx, p, true); err != nil {
		return nil, err
	}
	return &GuestDir{fs: d.fs, path: p, uid: d.uid, gid: d.gid}, nil
}

func (d *GuestDir) own(ctx context.Context, p string, follow bool) error {
	if d.uid == 0 && d.gid == 0 {
		return nil
	}
	return d.fs.SetStat(ctx, p, follow, agent.Attrs{UID: &d.uid, GID: &d.gid})
}

// File writes the file info.Name: in place where there is one, so that its owner and links stay.
func (d *GuestDir) File(ctx context.Context, info Info, content io.Reader) (err error) {
	p := path.Join(d.path, info.Name)
	mode := uint32(0o600)
	fresh := true
	f, err := d.fs.OpenFile(ctx, p, agent.OpenOptions{Write: true, CreateNew: true, Mode: &mode})
	if errors.Is(err, fs.ErrExist) {
		fresh = false
		f, err = d.fs.OpenFile(ctx, p, agent.OpenOptions{Write: true, Create: true, Truncate: true})
	}
	if err != nil {
		return err
	}
	if s, count, ok := openSparse(content); ok {
		err = uploadSparse(ctx, f, s, count)
	} else {
		_, err = f.Upload(ctx, content, 0)
	}
	if cerr := f.Close(context.WithoutCancel(ctx)); err == nil {
		err = cerr
	}
	if err == nil && fresh {
		err = d.own(ctx, p, true)
	}
	if err == nil {
		err = d.fs.SetStat(ctx, p, true, attrs(info))
	}
	if err != nil && fresh {
		tidy, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = d.fs.Remove(tidy, p) // half a file helps nobody
	}
	return err
}

// Symlink makes the symlink info.Name.
func (d *GuestDir) Symlink(ctx context.Context, info Info, target string) error {
	p := path.Join(d.path, info.Name)
	err := d.fs.Symlink(ctx, target, p)
	if errors.Is(err, fs.ErrExist) {
		if err = d.fs.Remove(ctx, p); err == nil {
			err = d.fs.Symlink(ctx, target, p)
		}
	}
	if err != nil {
		return err
	}
	if d.uid != 0 || d.gid != 0 {
		// A guest may be unable to change a symlink itself; the link is right all the same.
		_ = d.own(ctx, p, false)
	}
	return nil
}

// Finish gives the directory its mode and times.
func (d *GuestDir) Finish(ctx context.Context, info *Info) error {
	if info == nil {
		return nil
	}
	return d.fs.SetStat(ctx, d.path, true, attrs(*info))
}

func attrs(info Info) agent.Attrs {
	mode := uint32(info.Mode.Perm())
	for bit, m := range map[uint32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if info.Mode&m != 0 {
			mode |= bit
		}
	}
	a := agent.Attrs{Mode: &mode}
	if !info.Mtime.IsZero() {
		mtime, atime := info.Mtime.Unix(), info.Atime.Unix()
		if info.Atime.IsZero() {
			atime = mtime
		}
		a.Mtime, a.Atime = &mtime, &atime
	}
	return a
}

// guestInfo takes what a guest says about a file; the type comes from kind and mode together, so that one of them
// alone cannot make us treat a directory as a file.
func guestInfo(e agent.Entry) Info {
	info := Info{Name: e.Path[strings.LastIndexByte(e.Path, '/')+1:], Mode: fs.FileMode(e.Mode & 0o777), Size: int64(min(e.Size, 1<<62))}
	switch e.Kind {
	case agent.KindFile:
	case agent.KindDir:
		info.Mode |= fs.ModeDir
	case agent.KindSymlink:
		info.Mode |= fs.ModeSymlink
	default:
		info.Mode |= fs.ModeIrregular
	}
	for bit, m := range map[uint32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if e.Mode&bit != 0 {
			info.Mode |= m
		}
	}
	mtime := e.Mtime
	if mtime == nil {
		mtime = e.Modified
	}
	info.Mtime, info.Atime = seconds(mtime), seconds(e.Atime)
	return info
}

func seconds(t *int64) time.Time {
	if t == nil {
		return time.Time{}
	}
	return time.Unix(*t, 0)
}

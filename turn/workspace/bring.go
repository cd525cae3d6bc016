package workspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"msb/agentclient"
	wire "msb/protocol/worktree"
)

// Options say how a project is brought in.
type Options struct {
	NoHistory bool // of a git repository only the commit that is checked out
	// Replace removes what is in the workspace's place in the sandbox.
	Replace bool
	// Progress hears how much has been sent; nil is allowed.
	Progress func(files int, bytes int64)
}

// progressStep is how many bytes lie between two reports.
const progressStep = 1 << 20

// Bring brings a folder of the host into the sandbox and keeps it as the
// baseline: of a git work tree the tracked files and those that are not
// ignored, as they are now, with the history unless o says otherwise; of any
// other folder everything. It is ErrExists when that was done before and the
// files are still in the sandbox, ErrOccupied when other files are there.
func (w *Workspace) Bring(ctx context.Context, c *agentclient.Client, dir string, o Options) (Baseline, error) {
	unlock, err := w.lock(ctx)
	if err != nil {
		return Baseline{}, err
	}
	defer unlock()
	old, err := w.load()
	if err != nil && !errors.Is(err, ErrNone) {
		return Baseline{}, err
	}
	empty, there := w.look(ctx, c)
	if there != nil {
		return Baseline{}, there
	}
	begun := old.Version != 0 && !old.Complete
	switch {
	case o.Replace || empty || begun:
	case old.Complete && old.Baseline.Kind != KindGuest:
		return old.Baseline, fmt.Errorf("%w: from %s, brought in at %s", ErrExists, old.Baseline.Source, old.Baseline.Brought.Local().Format(time.DateTime))
	default:
		return Baseline{}, fmt.Errorf("%w, and what is there did not come from the host", ErrOccupied)
	}
	s, err := find(ctx, dir)
	if err != nil {
		return Baseline{}, fmt.Errorf("workspace %s: %w", dir, err)
	}
	b, err := w.bring(ctx, c, s, o, o.Replace || begun)
	if err != nil {
		return Baseline{}, fmt.Errorf("bring %s into the sandbox: %w", s.dir, err)
	}
	return b, nil
}

// look tells whether the workspace's place in the sandbox is empty.
func (w *Workspace) look(ctx context.Context, c *agentclient.Client) (empty bool, err error) {
	d, err := c.FS().OpenDir(ctx, w.root)
	if errors.Is(err, os.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at %s in the sandbox: %w", w.root, err)
	}
	defer d.Close(ctx)
	entries, err := d.Read(ctx, 1)
	if err != nil {
		return false, fmt.Errorf("look at %s in the sandbox: %w", w.root, err)
	}
	return len(entries) == 0, nil
}

func (w *Workspace) bring(ctx context.Context, c *agentclient.Client, s *source, o Options, clear bool) (Baseline, error) {
	t, err := openHost(s.dir)
	if err != nil {
		return Baseline{}, err
	}
	defer t.Close()
	if err := s.list(ctx, t); err != nil {
		return Baseline{}, err
	}
	// What was kept of an earlier workspace goes: its files are gone in the sandbox.
	if err := w.forget(); err != nil {
		return Baseline{}, err
	}
	st := state{Baseline: Baseline{Kind: s.kind, Source: s.dir, Head: s.head, Branch: s.branch, Format: s.format}, Ignore: s.ignore}
	if err := w.save(st); err != nil {
		return Baseline{}, err
	}
	r, err := w.open(ctx, s.format)
	if err != nil {
		return Baseline{}, err
	}
	git := filepath.Join(w.dir, "history.git")
	defer os.RemoveAll(git)
	if s.kind == KindGit {
		if err := s.history(ctx, git, o.NoHistory); err != nil {
			return Baseline{}, err
		}
	}
	i, err := newImporter(ctx, r, s.format)
	if err != nil {
		return Baseline{}, err
	}
	defer i.abandon()
	flag := "--empty"
	if clear {
		flag = "--clear"
	}
	h, err := w.start(ctx, c, "unpack", flag, "--owner", w.owner)
	if err != nil {
		return Baseline{}, err
	}
	defer h.close()
	send := &sender{h: h, i: i, progress: o.Progress, tree: newBuilder()}
	if err := send.project(ctx, t, s); err != nil {
		return Baseline{}, err
	}
	if s.kind == KindGit {
		if err := send.git(ctx, git); err != nil {
			return Baseline{}, fmt.Errorf("send the history: %w", err)
		}
	}
	if err := i.tree("refs/msb/baseline", send.tree.Manifest); err != nil {
		return Baseline{}, err
	}
	if err := i.finish(); err != nil {
		return Baseline{}, err
	}
	if err := w.store("baseline", send.tree.Manifest); err != nil {
		return Baseline{}, err
	}
	if err := h.answer(); err != nil {
		return Baseline{}, err
	}
	st.Complete = true
	st.Baseline.Brought = time.Now().UTC()
	st.Baseline.Files, st.Baseline.Bytes, st.Baseline.Skipped = send.files, send.bytes, s.skipped
	return st.Baseline, w.save(st)
}

// forget removes what is kept of the workspace.
func (w *Workspace) forget() error {
	for _, name := range []string{"workspace.json", "objects.git", "trees", "history.git"} {
		if err := os.RemoveAll(filepath.Join(w.dir, name)); err != nil {
			return fmt.Errorf("forget the earlier workspace: %w", err)
		}
	}
	return nil
}

// sender sends files to the sandbox and keeps them on the host.
type sender struct {
	h        *helper
	i        *importer
	tree     *builder
	progress func(files int, bytes int64)
	files    int
	bytes    int64
	sent     int64 // content, of the history too
	reported int64
}

// project sends the files of the source.
func (d *sender) project(ctx context.Context, t *hostTree, s *source) error {
	for _, p := range s.paths {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := checkPath(p); err != nil {
			s.skip(p, err)
			continue
		}
		st, absent, err := t.lstat(p)
		if absent {
			continue // deleted, or behind a link that took a folder's place
		}
		if err != nil {
			s.skip(p, err)
			continue
		}
		e := wire.Entry{Path: p, Mode: st.Mode & 0o777, MTime: st.Mtim.Nano()}
		var f File
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			e.Kind = wire.KindDir
			f, err = File{}, d.h.w.Entry(e)
		case unix.S_IFLNK:
			e.Kind = wire.KindLink
			f, err = d.link(t, e)
		case unix.S_IFREG:
			e.Kind = wire.KindFile
			f, err = d.file(t, e, s)
		default:
			s.skip(p, errors.New("it is no file, folder or link"))
			continue
		}
		if err != nil {
			var unreadable *unreadableError
			if errors.As(err, &unreadable) {
				s.skip(p, unreadable.err)
				continue
			}
			return err
		}
		f.Kind, f.Mode = e.Kind, e.Mode
		if err := d.tree.add(p, f); err != nil {
			return err
		}
		if e.Kind != wire.KindDir {
			d.files++
			d.bytes += f.Size
			d.report(false)
		}
	}
	d.report(true)
	return nil
}

// unreadableError is about one file, which is then left out.
type unreadableError struct{ err error }

func (e *unreadableError) Error() string { return e.err.Error() }

func (d *sender) link(t *hostTree, e wire.Entry) (File, error) {
	var err error
	if e.Target, err = t.readlink(e.Path); err != nil {
		return File{}, &unreadableError{err}
	}
	if err := d.h.w.Entry(e); err != nil {
		return File{}, d.h.sendFailed(err)
	}
	id, err := d.i.text(e.Target)
	return File{ID: id, Size: int64(len(e.Target))}, err
}

// file sends the content to both sides at once: they have the same, whatever
// happens to the file meanwhile.
func (d *sender) file(t *hostTree, e wire.Entry, s *source) (File, error) {
	f, st, err := t.regular(e.Path)
	if err != nil {
		return File{}, &unreadableError{err}
	}
	defer f.Close()
	if err := d.h.w.Entry(e); err != nil {
		return File{}, d.h.sendFailed(err)
	}
	tee := &teeReader{d: d, r: f, left: st.Size}
	id, short, err := d.i.blob(st.Size, tee)
	if tee.sendErr != nil {
		return File{}, d.h.sendFailed(tee.sendErr)
	}
	if err != nil {
		return File{}, fmt.Errorf("%q: %w", e.Path, err)
	}
	if short {
		s.skip(e.Path, errors.New("it became shorter while it was read; the rest is zeros"))
		for zeros := make([]byte, 64<<10); tee.left > 0; tee.left -= int64(min(int64(len(zeros)), tee.left)) {
			if err := d.h.w.Frame(wire.FrameData, zeros[:min(int64(len(zeros)), tee.left)]); err != nil {
				return File{}, d.h.sendFailed(err)
			}
		}
	}
	if err := d.h.w.Frame(wire.FrameClose, nil); err != nil {
		return File{}, d.h.sendFailed(err)
	}
	return File{ID: id, Size: st.Size}, nil
}

// teeReader sends what is read to the sandbox.
type teeReader struct {
	d       *sender
	r       io.Reader
	left    int64
	sendErr error
}

func (t *teeReader) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	if n > 0 {
		t.left -= int64(n)
		if serr := t.d.data(p[:n]); serr != nil {
			t.sendErr = serr
			return 0, serr
		}
	}
	return n, err
}

func (d *sender) data(p []byte) error {
	if err := d.h.w.Frame(wire.FrameData, p); err != nil {
		return err
	}
	d.sent += int64(len(p))
	d.report(false)
	return nil
}

func (d *sender) report(now bool) {
	if d.progress != nil && (now || d.sent-d.reported >= progressStep) {
		d.reported = d.sent
		d.progress(d.files, d.sent)
	}
}

// git sends the folder with the history as .git.
func (d *sender) git(ctx context.Context, dir string) error {
	t, err := openHost(dir)
	if err != nil {
		return err
	}
	defer t.Close()
	paths, err := t.walk(func(string, error) {})
	if err != nil {
		return err
	}
	if err := d.h.w.Entry(wire.Entry{Path: ".git", Kind: wire.KindDir, Mode: 0o755}); err != nil {
		return d.h.sendFailed(err)
	}
	for _, p := range paths {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		st, _, err := t.lstat(p)
		if err != nil {
			return err
		}
		e := wire.Entry{Path: ".git/" + p, Kind: wire.KindDir, Mode: 0o755}
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			err = d.h.w.Entry(e)
		} else {
			e.Kind, e.Mode = wire.KindFile, st.Mode&0o777
			err = d.gitFile(t, p, e)
		}
		if err != nil {
			return d.h.sendFailed(err)
		}
	}
	d.report(true)
	return nil
}

func (d *sender) gitFile(t *hostTree, p string, e wire.Entry) error {
	f, _, err := t.regular(p)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := d.h.w.Entry(e); err != nil {
		return err
	}
	buf := make([]byte, wire.Piece)
	for {
		n, err := f.Read(buf)
		if n > 0 {
			if err := d.data(buf[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return d.h.w.Frame(wire.FrameClose, nil)
		}
		if err != nil {
			return err
		}
	}
}

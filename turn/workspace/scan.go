package workspace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"msb/agentclient"
	wire "msb/protocol/worktree"
)

// Adopt makes what is in the sandbox's workspace now the baseline, if there is
// none: for a sandbox that nothing was brought into. It returns the baseline
// that is there then.
func (w *Workspace) Adopt(ctx context.Context, c *agentclient.Client) (Baseline, error) {
	unlock, err := w.lock(ctx)
	if err != nil {
		return Baseline{}, err
	}
	defer unlock()
	if s, err := w.load(); !errors.Is(err, ErrNone) || err == errInterrupted {
		return s.Baseline, err
	}
	return w.adopt(ctx, c)
}

func (w *Workspace) adopt(ctx context.Context, c *agentclient.Client) (Baseline, error) {
	if err := w.forget(); err != nil {
		return Baseline{}, err
	}
	s := state{Baseline: Baseline{Kind: KindGuest, Format: "sha1"}}
	r, err := w.open(ctx, s.Baseline.Format)
	if err != nil {
		return Baseline{}, err
	}
	now, err := w.scan(ctx, c, s, r, nil, "refs/msb/baseline")
	if err != nil {
		return Baseline{}, err
	}
	if err := w.store("baseline", now.tree); err != nil {
		return Baseline{}, err
	}
	s.Complete = true
	s.Baseline.Brought, s.Baseline.Skipped = time.Now().UTC(), now.skipped
	for _, f := range now.tree {
		if f.Kind != wire.KindDir {
			s.Baseline.Files++
			s.Baseline.Bytes += f.Size
		}
	}
	return s.Baseline, w.save(s)
}

// scanned is the tree in the sandbox.
type scanned struct {
	tree    Manifest
	skipped []Skipped
}

// scan reads the tree in the sandbox, makes ref a commit of it and remembers
// it for the next scan. Files that the last scan saw are not sent again.
func (w *Workspace) scan(ctx context.Context, c *agentclient.Client, s state, r repo, baseline Manifest, ref string) (scanned, error) {
	budget := w.budget
	if budget == 0 {
		var err error
		if budget, err = free(w.dir); err != nil {
			return scanned{}, err
		}
	}
	seen, err := w.tree("seen")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return scanned{}, err
	}
	i, err := newImporter(ctx, r, s.Baseline.Format)
	if err != nil {
		return scanned{}, err
	}
	defer i.abandon()
	var flags []string
	if s.Baseline.Kind == KindFolder {
		flags = append(flags, "--all")
	}
	h, err := w.start(ctx, c, "scan", flags...)
	if err != nil {
		return scanned{}, err
	}
	defer h.close()
	// A helper that reads no more has something to say.
	if err := request(h.w, s.Ignore, baseline, seen); err != nil && !errors.Is(err, unix.EPIPE) {
		return scanned{}, h.failed(err)
	}
	now, err := w.receive(h, i, seen, &budget)
	if err != nil {
		return scanned{}, fmt.Errorf("read the workspace in the sandbox: %w", err)
	}
	for _, name := range []string{ref, "refs/msb/seen"} {
		if err := i.tree(name, now.tree); err != nil {
			return scanned{}, err
		}
	}
	if err := i.finish(); err != nil {
		return scanned{}, err
	}
	return now, w.store("seen", now.tree)
}

// request tells the helper what the host has.
func request(w *wire.Writer, ignore []byte, baseline, seen Manifest) error {
	for p := range baseline {
		if err := w.Frame(wire.FrameTracked, []byte(p)); err != nil {
			return err
		}
	}
	for p, f := range seen {
		if f.Stamp != "" {
			if err := w.Known(wire.Known{Path: p, Stamp: f.Stamp}); err != nil {
				return err
			}
		}
	}
	for len(ignore) > 0 {
		n := min(len(ignore), wire.MaxFrame)
		if err := w.Frame(wire.FrameIgnore, ignore[:n]); err != nil {
			return err
		}
		ignore = ignore[n:]
	}
	return w.End(nil)
}

// receive takes a tree off the stream. Nothing in it is believed.
func (w *Workspace) receive(h *helper, i *importer, seen Manifest, budget *int64) (scanned, error) {
	b := newBuilder()
	now := scanned{}
	skip := func(path, why string) {
		if len(now.skipped) < maxSkipped {
			now.skipped = append(now.skipped, Skipped{Path: path, Why: tame(why)})
		}
	}
	left := "" // folder that is left out
	for {
		t, p, err := h.next(true)
		if err != nil {
			return now, err
		}
		if t == wire.FrameEnd {
			if len(p) > 0 {
				return now, errors.New(tame(string(p)))
			}
			now.tree = b.Manifest
			return now, nil
		}
		if t != wire.FrameEntry {
			return now, fmt.Errorf("frame %q: %w", t, wire.ErrFrame)
		}
		e, err := wire.DecodeEntry(p)
		if err != nil {
			return now, err
		}
		f := File{}
		changed := false
		switch {
		case e.Kind == wire.KindOther:
			skip(e.Path, e.Problem)
			continue
		case e.Problem != "":
			return now, fmt.Errorf("%q: %s", e.Path, tame(e.Problem))
		case e.Kind == wire.KindLink:
			f.Size = int64(len(e.Target))
			if f.ID, err = i.text(e.Target); err != nil {
				return now, err
			}
		case e.Kind == wire.KindFile && e.Same:
			old, known := seen[e.Path]
			if !known || old.Stamp == "" || old.Stamp != e.Stamp || old.Kind != wire.KindFile {
				return now, fmt.Errorf("%q is said to be known: %w", e.Path, wire.ErrFrame)
			}
			f = old
		case e.Kind == wire.KindFile:
			if f, changed, err = h.content(i, budget, w.dir); err != nil {
				return now, fmt.Errorf("%q: %w", e.Path, err)
			}
		}
		f.Kind, f.Mode = e.Kind, e.Mode&0o777
		if f.Kind == wire.KindFile && !changed {
			f.Stamp = e.Stamp[:min(len(e.Stamp), maxStamp)]
		}
		if left != "" && strings.HasPrefix(e.Path, left) {
			continue
		}
		if checkPath(e.Path) != nil {
			skip(e.Path, "git would take its name for its own")
			left = e.Path + "/"
			continue
		}
		if err := b.add(e.Path, f); err != nil {
			return now, err
		}
	}
}

// maxStamp bounds what is kept of a stamp, in bytes.
const maxStamp = 128

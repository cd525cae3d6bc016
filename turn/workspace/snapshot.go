package workspace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"msb/agentclient"
	wire "msb/protocol/worktree"
)

// Snapshot keeps the state of the workspace before a turn; s says which. In a
// sandbox that nothing was brought into it makes the baseline first. When the
// state cannot be kept, that is remembered: an undo must not go back further
// than one turn unasked.
func (w *Workspace) Snapshot(ctx context.Context, c *agentclient.Client, s Snapshot) error {
	unlock, err := w.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	st, err := w.load()
	if errors.Is(err, ErrNone) && err != errInterrupted {
		if empty, err := w.look(ctx, c); err != nil {
			return err
		} else if empty && !w.exists(ctx, c) {
			return nil // the sandbox has no workspace at all
		}
		if _, err = w.adopt(ctx, c); err == nil {
			st, err = w.load()
		}
	}
	if err != nil {
		return err
	}
	r, err := w.open(ctx, st.Baseline.Format)
	if err != nil {
		return err
	}
	s.N, s.Time = st.Next, time.Now().UTC()
	st.Next++
	_, failed := w.keep(ctx, c, st, r, s.N)
	if failed != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx) // there will be no turn
		}
		s.Failed = failed.Error()
		failed = fmt.Errorf("keep the state before the turn: %w", failed)
	}
	for _, u := range st.Undone {
		w.drop(ctx, r, u.State)
		w.drop(ctx, r, u.Snapshot.N)
	}
	st.Undone = nil
	st.Snapshots = append(st.Snapshots, s)
	for len(st.Snapshots) > w.turns {
		w.drop(ctx, r, st.Snapshots[0].N)
		st.Snapshots = slices.Delete(st.Snapshots, 0, 1)
	}
	if err := errors.Join(failed, w.save(st)); err != nil {
		return err
	}
	return w.tidy(ctx, r)
}

func (w *Workspace) exists(ctx context.Context, c *agentclient.Client) bool {
	_, err := c.FS().Stat(ctx, w.root, true)
	return err == nil
}

func snapName(n int) string { return "snap-" + strconv.Itoa(n) }

// keep scans the workspace and keeps the tree under a number.
func (w *Workspace) keep(ctx context.Context, c *agentclient.Client, st state, r repo, n int) (Manifest, error) {
	baseline, err := w.tree("baseline")
	if err != nil {
		return nil, err
	}
	now, err := w.scan(ctx, c, st, r, baseline, "refs/msb/"+snapName(n))
	if err != nil {
		return nil, err
	}
	return now.tree, w.store(snapName(n), now.tree)
}

// drop forgets a tree that was kept; its objects go when the repository is
// tidied.
func (w *Workspace) drop(ctx context.Context, r repo, n int) {
	r.run(ctx, "update-ref", "-d", "refs/msb/"+snapName(n))
	os.Remove(w.manifestPath(snapName(n)))
}

// maxPacks is how many packs there may be before they are made one.
const maxPacks = 40

// tidy drops objects that nothing needs any more, now and then.
func (w *Workspace) tidy(ctx context.Context, r repo) error {
	packs, err := filepath.Glob(filepath.Join(r.dir, "objects/pack/*.pack"))
	if err != nil || len(packs) <= maxPacks {
		return err
	}
	if _, err := r.run(ctx, "repack", "-a", "-d", "-q"); err != nil {
		return err
	}
	_, err = r.run(ctx, "prune", "--expire=now")
	return err
}

// Undone is what Undo or Redo did.
type Undone struct {
	Snapshot Snapshot `json:"snapshot"` // the turn
	Changes  Summary  `json:"changes"`  // what was done to the files
}

// Undo takes the workspace in the sandbox back to the state before the last
// turn. Ignored files stay as they are, and so does the sandbox's own git
// repository. The state before is kept for Redo until the next turn.
func (w *Workspace) Undo(ctx context.Context, c *agentclient.Client) (Undone, error) {
	return w.travel(ctx, c, func(st *state) (from, to int, u Undone, err error) {
		n := len(st.Snapshots)
		if n == 0 {
			return 0, 0, u, fmt.Errorf("%w: no turn has been run, or all have been undone", ErrNothing)
		}
		u.Snapshot = st.Snapshots[n-1]
		st.Snapshots = st.Snapshots[:n-1]
		if why := u.Snapshot.Failed; why != "" {
			// Said once; the next undo is for the turn before.
			return 0, 0, u, errors.Join(w.save(*st), fmt.Errorf("the last turn cannot be undone, the state before it could not be kept: %s; "+
				"another undo goes back further, to before the turn before it", why))
		}
		from = st.Next
		st.Next++
		st.Undone = append(st.Undone, undone{State: from, Snapshot: u.Snapshot})
		return from, u.Snapshot.N, u, nil
	})
}

// Redo takes back the last Undo.
func (w *Workspace) Redo(ctx context.Context, c *agentclient.Client) (Undone, error) {
	return w.travel(ctx, c, func(st *state) (from, to int, u Undone, err error) {
		n := len(st.Undone)
		if n == 0 {
			return 0, 0, u, fmt.Errorf("%w again: no turn has been undone since the last one", ErrNothing)
		}
		last := st.Undone[n-1]
		st.Undone = st.Undone[:n-1]
		u.Snapshot = last.Snapshot
		st.Snapshots = append(st.Snapshots, last.Snapshot)
		return -1, last.State, u, nil
	})
}

// travel makes the workspace what it was. step says where to, changes the
// state, and where to keep what is there now (-1: nowhere). The state is saved
// when the workspace is there: a travel that breaks off can be done again.
func (w *Workspace) travel(ctx context.Context, c *agentclient.Client, step func(*state) (from, to int, u Undone, err error)) (Undone, error) {
	unlock, err := w.lock(ctx)
	if err != nil {
		return Undone{}, err
	}
	defer unlock()
	st, err := w.load()
	if err != nil {
		return Undone{}, err
	}
	r, err := w.open(ctx, st.Baseline.Format)
	if err != nil {
		return Undone{}, err
	}
	from, to, u, err := step(&st)
	if err != nil {
		return Undone{}, err
	}
	target, err := w.tree(snapName(to))
	if err != nil {
		return Undone{}, err
	}
	name := snapName(max(from, 0))
	var now Manifest
	if from >= 0 {
		now, err = w.keep(ctx, c, st, r, from)
	} else {
		name = "now"
		var s scanned
		baseline, terr := w.tree("baseline")
		if terr != nil {
			return Undone{}, terr
		}
		s, err = w.scan(ctx, c, st, r, baseline, "refs/msb/now")
		now = s.tree
		if err == nil {
			err = r.unchanged(ctx, u.Snapshot.N)
		}
	}
	if err != nil {
		return Undone{}, err
	}
	if u.Changes, err = r.changes(ctx, "refs/msb/"+name, "refs/msb/"+snapName(to)); err != nil {
		return Undone{}, err
	}
	if err := w.restore(ctx, c, r, now, target); err != nil {
		return Undone{}, fmt.Errorf("change the workspace back: %w; do it again to complete it", err)
	}
	if from < 0 {
		w.drop(ctx, r, to)
	}
	return u, w.save(st)
}

// unchanged refuses to go on when the workspace is not as an undo left it.
func (r repo) unchanged(ctx context.Context, n int) error {
	s, err := r.changes(ctx, "refs/msb/"+snapName(n), "refs/msb/now")
	if err == nil && len(s.Changes) > 0 {
		return fmt.Errorf("%s changed in the workspace since the undo; redo would lose that", plural(len(s.Changes), "file"))
	}
	return err
}

// restore changes the tree in the sandbox from one state to another.
func (w *Workspace) restore(ctx context.Context, c *agentclient.Client, r repo, now, target Manifest) error {
	h, err := w.start(ctx, c, "unpack", "--owner", w.owner)
	if err != nil {
		return err
	}
	defer h.close()
	objects, err := r.objects(ctx)
	if err != nil {
		return err
	}
	defer objects.close()
	paths := now.sorted()
	for i := len(paths) - 1; i >= 0; i-- { // inner ones first
		if _, stays := target[paths[i]]; !stays {
			if err := h.w.Frame(wire.FrameRemove, []byte(paths[i])); err != nil {
				return h.sendFailed(err)
			}
		}
	}
	for _, p := range target.sorted() {
		f := target[p]
		if g, there := now[p]; there && f.same(g) && g.Kind == f.Kind && (f.Kind == wire.KindLink || f.Mode == g.Mode || f.Kind == wire.KindDir) {
			continue
		}
		e := wire.Entry{Path: p, Kind: f.Kind, Mode: f.Mode}
		if f.Kind == wire.KindLink {
			if e.Target, err = objects.text(f.ID, wire.MaxPath); err != nil {
				return err
			}
		}
		if err := h.w.Entry(e); err != nil {
			return h.sendFailed(err)
		}
		if f.Kind == wire.KindFile {
			sink := &frameWriter{w: h.w}
			if err := objects.copy(f.ID, sink); err != nil {
				if sink.err != nil {
					return h.sendFailed(sink.err)
				}
				return err
			}
			if err := h.w.Frame(wire.FrameClose, nil); err != nil {
				return h.sendFailed(err)
			}
		}
	}
	return h.answer()
}

// frameWriter writes content in frames.
type frameWriter struct {
	w   *wire.Writer
	err error
}

func (f *frameWriter) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		m := min(len(p), wire.Piece)
		if f.err = f.w.Frame(wire.FrameData, p[:m]); f.err != nil {
			return n, f.err
		}
		n += m
		p = p[m:]
	}
	return n, nil
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

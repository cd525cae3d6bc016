// Package workspace brings a project into a sandbox and its changes home. What
// was brought in is kept on the host too, in a private bare git repository in
// the sandbox's directory, so that the guest needs no git and cannot fake what
// a change is measured against. The project on the host is only ever read,
// until a plan is applied to it.
package workspace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"msb/turn/durable"
)

// Root is where a workspace lies in a sandbox.
const Root = "/work/repo"

var (
	// ErrNone reports a sandbox that has no workspace.
	ErrNone = errors.New("the sandbox has no workspace")
	// ErrExists reports a workspace that was brought in before.
	ErrExists = errors.New("the sandbox has a workspace already")
	// ErrOccupied reports files in the workspace's place that did not come from
	// the host.
	ErrOccupied = errors.New(Root + " in the sandbox is not empty")
	// ErrNothing reports that there is nothing to undo or redo.
	ErrNothing = errors.New("nothing to undo")
	// ErrNoGit reports that the host has no git, which every workspace needs.
	ErrNoGit = errors.New("git is needed on the host for workspaces and was not found: install it")
)

// errInterrupted reports a workspace that is only half there.
var errInterrupted = fmt.Errorf("%w: bringing it in was interrupted; do it again with `msb up --workspace DIR`", ErrNone)

// Workspace is the host's side of one sandbox's workspace. Calls of several
// processes wait for each other.
type Workspace struct {
	dir    string
	helper string // path of the helper program in the sandbox
	root   string // of the tree in the sandbox
	owner  string // of the files in the sandbox
	turns  int    // how many can be undone
	budget int64  // bytes of a tree; 0: what is free on the disk
}

// At is the workspace whose state is below dir. Nothing is made before Bring
// or Adopt.
func At(dir string) *Workspace {
	return &Workspace{dir: dir, helper: "/run/msb/msb-guest", root: Root, owner: "dev", turns: 50}
}

// Kinds of a source.
const (
	KindGit    = "git"    // a git work tree on the host
	KindFolder = "folder" // a folder on the host
	KindGuest  = "guest"  // what was in the sandbox
)

// Baseline is what changes are measured against.
type Baseline struct {
	Kind    string    `json:"kind"`
	Source  string    `json:"source,omitempty"` // absolute path on the host
	Head    string    `json:"head,omitempty"`   // commit that was checked out
	Branch  string    `json:"branch,omitempty"` // "": detached
	Format  string    `json:"format"`           // of object names: sha1 or sha256
	Brought time.Time `json:"brought"`
	Files   int       `json:"files"`
	Bytes   int64     `json:"bytes"` // of content
	// Skipped says which files are not part of it, and why.
	Skipped []Skipped `json:"skipped,omitempty"`
}

// Skipped is a file that a workspace has no place for. Path may be hostile.
type Skipped struct {
	Path string `json:"path"`
	Why  string `json:"why"`
}

// maxSkipped bounds how many skipped files are named.
const maxSkipped = 1000

// Snapshot is the state of a workspace before a turn.
type Snapshot struct {
	N       int       `json:"n"`
	Time    time.Time `json:"time"`
	Session string    `json:"session,omitempty"`
	Turn    string    `json:"turn,omitempty"`
	Title   string    `json:"title,omitempty"`
	// Failed says why the state could not be kept; the turn cannot be undone.
	Failed string `json:"failed,omitempty"`
}

// state is what is kept of a workspace beside the objects.
type state struct {
	Version   int        `json:"version"`
	Complete  bool       `json:"complete"` // false: it was being brought in
	Baseline  Baseline   `json:"baseline"`
	Ignore    []byte     `json:"ignore,omitempty"` // patterns that hold everywhere
	Snapshots []Snapshot `json:"snapshots,omitempty"`
	Undone    []undone   `json:"undone,omitempty"`
	Next      int        `json:"next"` // number of the next snapshot
}

// undone is a turn that was undone: what Redo goes back to, and the snapshot
// that is then there again.
type undone struct {
	State    int      `json:"state"`
	Snapshot Snapshot `json:"snapshot"`
}

const stateVersion = 1

// Baseline describes what was brought in; ErrNone when nothing was.
func (w *Workspace) Baseline() (Baseline, error) {
	s, err := w.load()
	return s.Baseline, err
}

// Snapshots lists the turns that can be undone, oldest first.
func (w *Workspace) Snapshots() ([]Snapshot, error) {
	s, err := w.load()
	return s.Snapshots, err
}

func (w *Workspace) statePath() string { return filepath.Join(w.dir, "workspace.json") }

func (w *Workspace) load() (state, error) {
	var s state
	b, err := os.ReadFile(w.statePath())
	if errors.Is(err, fs.ErrNotExist) {
		return s, fmt.Errorf("%w: `msb up --workspace DIR` brings one in", ErrNone)
	}
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err != nil {
		return s, fmt.Errorf("state of the workspace: %w", err)
	}
	if s.Version != stateVersion {
		return s, fmt.Errorf("state of the workspace %s has version %d, this msb knows %d", w.dir, s.Version, stateVersion)
	}
	if !s.Complete {
		return s, errInterrupted
	}
	return s, nil
}

func (w *Workspace) save(s state) error {
	s.Version = stateVersion
	b, err := json.MarshalIndent(s, "", "  ")
	if err == nil {
		err = durable.WriteFile(w.statePath(), append(b, '\n'))
	}
	if err != nil {
		return fmt.Errorf("state of the workspace: %w", err)
	}
	return nil
}

// lock waits for the others that use the workspace.
func (w *Workspace) lock(ctx context.Context) (unlock func(), err error) {
	if err := os.MkdirAll(w.dir, 0o700); err != nil {
		return nil, fmt.Errorf("state of the workspace: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(w.dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("state of the workspace: %w", err)
	}
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if err != syscall.EWOULDBLOCK && err != syscall.EINTR {
			f.Close()
			return nil, fmt.Errorf("lock the workspace: %w", err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("the workspace is in use by another msb: %w", context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

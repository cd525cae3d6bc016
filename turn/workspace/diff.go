package workspace

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"msb/agentclient"
)

// Change is what happened to one file. Paths may be hostile: show them through
// package visible.
type Change struct {
	Status  byte   `json:"status"` // A added, D deleted, M modified, R renamed, T another kind of file
	Path    string `json:"path"`
	From    string `json:"from,omitempty"` // of a renamed file
	OldMode string `json:"old_mode,omitempty"`
	NewMode string `json:"new_mode,omitempty"` // as git writes them: 100644, 100755, 120000
	Binary  bool   `json:"binary,omitempty"`
	Added   int    `json:"added"` // lines
	Deleted int    `json:"deleted"`
}

// Summary is what a patch does.
type Summary struct {
	Changes []Change  `json:"changes"`
	Skipped []Skipped `json:"skipped,omitempty"` // files in the sandbox that no patch can hold
}

// Lines counts the lines added and deleted.
func (s Summary) Lines() (added, deleted int) {
	for _, c := range s.Changes {
		added += c.Added
		deleted += c.Deleted
	}
	return added, deleted
}

// Diff compares the workspace in the sandbox now with the baseline and writes
// the patch to out, which may be nil. `git apply` takes the patch: it has new,
// binary, renamed and deleted files and changes of modes in it.
func (w *Workspace) Diff(ctx context.Context, c *agentclient.Client, out io.Writer) (Summary, error) {
	unlock, err := w.lock(ctx)
	if err != nil {
		return Summary{}, err
	}
	defer unlock()
	s, err := w.load()
	if err != nil {
		return Summary{}, err
	}
	r, err := w.open(ctx, s.Baseline.Format)
	if err != nil {
		return Summary{}, err
	}
	baseline, err := w.tree("baseline")
	if err != nil {
		return Summary{}, err
	}
	now, err := w.scan(ctx, c, s, r, baseline, "refs/msb/now")
	if err != nil {
		return Summary{}, err
	}
	sum, err := r.changes(ctx, "refs/msb/baseline", "refs/msb/now")
	sum.Skipped = now.skipped
	if err != nil || out == nil {
		return sum, err
	}
	return sum, r.patch(ctx, "refs/msb/baseline", "refs/msb/now", out)
}

// Export returns the patch of Diff and what it does.
func (w *Workspace) Export(ctx context.Context, c *agentclient.Client) (patch []byte, s Summary, err error) {
	var b bytes.Buffer
	s, err = w.Diff(ctx, c, &b)
	return b.Bytes(), s, err
}

// diffFlags make diffs that nothing configures.
var diffFlags = []string{"-r", "-M", "--full-index", "--no-color", "--no-ext-diff", "--no-textconv", "--no-relative",
	"--src-prefix=a/", "--dst-prefix=b/", "--diff-algorithm=histogram"}

func (r repo) patch(ctx context.Context, from, to string, out io.Writer) error {
	cmd := r.command(ctx, append(append([]string{"diff-tree", "-p", "--binary"}, diffFlags...), from, to)...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = out, &said
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil {
		return failure(ctx, cmd, err, said.String())
	}
	return nil
}

// changes lists what differs between two trees.
func (r repo) changes(ctx context.Context, from, to string) (Summary, error) {
	var s Summary
	out, err := r.run(ctx, append(append([]string{"diff-tree", "-z", "--raw", "--numstat"}, diffFlags...), from, to)...)
	if err != nil {
		return s, err
	}
	fields := strings.Split(string(out), "\x00")
	next := func() string {
		if len(fields) == 0 {
			return ""
		}
		f := fields[0]
		fields = fields[1:]
		return f
	}
	at := make(map[string]int)
	for len(fields) > 0 {
		f := next()
		switch {
		case f == "":
		case f[0] == ':':
			// ":OLDMODE NEWMODE OLDID NEWID STATUS"
			part := strings.Fields(f[1:])
			if len(part) != 5 {
				return s, fmt.Errorf("git diff-tree: %q", f)
			}
			c := Change{Status: part[4][0], OldMode: part[0], NewMode: part[1]}
			if c.Path = next(); c.Status == 'R' || c.Status == 'C' {
				c.From, c.Path = c.Path, next()
			}
			at[c.Path] = len(s.Changes)
			s.Changes = append(s.Changes, c)
		default:
			// "ADDED<tab>DELETED<tab>PATH", or without PATH and two fields more
			part := strings.SplitN(f, "\t", 3)
			if len(part) != 3 {
				return s, fmt.Errorf("git diff-tree: %q", f)
			}
			path := part[2]
			if path == "" {
				next()
				path = next()
			}
			if i, ok := at[path]; ok {
				c := &s.Changes[i]
				c.Binary = part[0] == "-"
				c.Added, _ = strconv.Atoi(part[0])
				c.Deleted, _ = strconv.Atoi(part[1])
			}
		}
	}
	return s, nil
}

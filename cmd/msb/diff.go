package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"msb/agentclient"
	"msb/turn/workspace"
)

func newDiffCmd(app *app) *cobra.Command {
	var stat, asJSON bool
	cmd := &cobra.Command{
		Use:   "diff NAME",
		Short: "Show what changed in a sandbox's workspace",
		Long: `Compare the workspace of a running sandbox with what was brought in, of which the host has a
copy of its own. On a terminal the patch is shown with everything made visible that could hide, with
$MSB_PAGER, $PAGER or less; elsewhere it is written as it is, for git apply. Files that are ignored do
not count.`,
		Example:           "  msb diff demo\n  msb diff demo --stat\n  msb diff demo | git apply --check",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: app.completeNames(1),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			return app.inWorkspace(ctx, args[0], func(w *workspace.Workspace, c *agentclient.Client) error {
				return app.diff(ctx, w, c, stat, asJSON)
			})
		}),
	}
	cmd.Flags().BoolVar(&stat, "stat", false, "only name the files")
	cmd.Flags().BoolVar(&asJSON, "json", false, "name the files as JSON")
	return cmd
}

func (a *app) diff(ctx context.Context, w *workspace.Workspace, c *agentclient.Client, stat, asJSON bool) error {
	switch {
	case asJSON:
		s, err := w.Diff(ctx, c, nil)
		if err != nil {
			return err
		}
		return writeJSON(a.io.Out, changesJSON(s))
	case stat:
		s, err := w.Diff(ctx, c, nil)
		if err != nil {
			return err
		}
		if len(s.Changes)+len(s.Skipped) > 0 {
			writeChanges(a.io.Out, s, a.outColour())
			fmt.Fprintln(a.io.Out, total(s))
		}
		return nil
	}
	// All of it first: who reads it may be slow, and the workspace is locked meanwhile.
	patch, err := os.CreateTemp("", "msb-diff-")
	if err != nil {
		return fmt.Errorf("a place for the patch: %w", err)
	}
	defer patch.Close()
	if err := os.Remove(patch.Name()); err != nil {
		return err
	}
	s, err := w.Diff(ctx, c, patch)
	if err == nil {
		_, err = patch.Seek(0, io.SeekStart)
	}
	switch {
	case err != nil:
		return err
	case !a.io.OutTTY():
		_, err := io.Copy(a.io.Out, patch)
		return err
	case len(s.Changes) == 0:
		fmt.Fprintln(a.io.Err, "nothing changed")
		return nil
	}
	return a.paged(func(out io.Writer) error { return workspace.Show(out, patch, a.outColour()) })
}

// change is a changed file in JSON. A path that is not UTF-8 has it in
// path_bytes too.
type change struct {
	Status    string `json:"status"` // new, deleted, changed, renamed, kind
	Path      string `json:"path"`
	PathBytes []byte `json:"path_bytes,omitempty"`
	From      string `json:"from,omitempty"`
	OldMode   string `json:"old_mode"`
	NewMode   string `json:"new_mode"`
	Binary    bool   `json:"binary"`
	Added     int    `json:"added"`
	Deleted   int    `json:"deleted"`
}

func changesJSON(s workspace.Summary) []change {
	names := map[byte]string{'A': "new", 'D': "deleted", 'M': "changed", 'R': "renamed", 'T': "kind"}
	list := []change{}
	for _, c := range s.Changes {
		j := change{Status: names[c.Status], Path: c.Path, From: c.From, OldMode: c.OldMode, NewMode: c.NewMode,
			Binary: c.Binary, Added: c.Added, Deleted: c.Deleted}
		if !validText(c.Path) {
			j.PathBytes = []byte(c.Path)
		}
		list = append(list, j)
	}
	return list
}

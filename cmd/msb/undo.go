package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"msb/agentclient"
	"msb/turn/socket"
	"msb/turn/visible"
	"msb/turn/workspace"
)

// undoOptions are the flags of undo.
type undoOptions struct {
	redo bool
	list bool
	json bool
}

func newUndoCmd(app *app) *cobra.Command {
	var o undoOptions
	cmd := &cobra.Command{
		Use:   "undo NAME",
		Short: "Take a sandbox's workspace back to before the last turn",
		Long: `Take the files of the workspace back to what they were before the last turn; again, before the
one before it. Files that are ignored stay, and so do commits that were made in the sandbox.
--redo takes the last undo back, until the next turn.`,
		Example:           "  msb undo demo\n  msb undo demo --redo\n  msb undo demo --list",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: app.completeNames(1),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			if o.list {
				return app.listSnapshots(args[0], o.json)
			}
			return app.inWorkspace(ctx, args[0], func(w *workspace.Workspace, c *agentclient.Client) error {
				return app.undo(ctx, args[0], w, c, o)
			})
		}),
	}
	cmd.Flags().BoolVar(&o.redo, "redo", false, "take the last undo back")
	cmd.Flags().BoolVar(&o.list, "list", false, "list the turns that can be undone")
	cmd.Flags().BoolVar(&o.json, "json", false, "as JSON")
	cmd.MarkFlagsMutuallyExclusive("redo", "list")
	return cmd
}

func (a *app) undo(ctx context.Context, name string, w *workspace.Workspace, c *agentclient.Client, o undoOptions) error {
	if err := a.noTurn(ctx, name); err != nil {
		return err
	}
	do, verb := w.Undo, "undone"
	if o.redo {
		do, verb = w.Redo, "done again"
	}
	u, err := do(ctx, c)
	if err != nil {
		return err
	}
	if o.json {
		return writeJSON(a.io.Out, struct {
			Turn    workspace.Snapshot `json:"turn"`
			Changes []change           `json:"changes"`
		}{u.Snapshot, changesJSON(u.Changes)})
	}
	writeChanges(a.io.Out, u.Changes, a.outColour())
	fmt.Fprintf(a.io.Out, "%s: turn of %s%s\n", verb, u.Snapshot.Time.Local().Format(time.DateTime), titled(u.Snapshot.Title))
	if !o.redo {
		fmt.Fprintf(a.io.Err, "`msb undo %s --redo` takes it back\n", name)
	}
	return nil
}

func titled(s string) string {
	if s == "" {
		return ""
	}
	return ", " + visible.Text(s)
}

// noTurn refuses to go on while a turn is under way.
func (a *app) noTurn(ctx context.Context, name string) error {
	h, err := a.home()
	if err != nil {
		return err
	}
	c, err := socket.Dial(ctx, h.TurnSocket(name))
	if err != nil {
		return nil // nothing serves turns
	}
	defer c.Close()
	s, err := c.Status(ctx)
	if err != nil {
		return err
	}
	for _, i := range s.Sessions {
		if i.Turn != "" {
			return fmt.Errorf("a turn of session %s is under way: wait for its end, or cancel it", short(i))
		}
	}
	return nil
}

func (a *app) listSnapshots(name string, asJSON bool) error {
	h, err := a.ownSandbox(name)
	if err != nil {
		return err
	}
	list, err := workspace.At(workspaceDir(h, name)).Snapshots()
	if err != nil {
		return err
	}
	if asJSON {
		return writeJSON(a.io.Out, append([]workspace.Snapshot{}, list...))
	}
	var rows [][]string
	for i := len(list) - 1; i >= 0; i-- {
		s := list[i]
		note := visible.Text(s.Title)
		if s.Failed != "" {
			note += " (cannot be undone: " + visible.Text(s.Failed) + ")"
		}
		rows = append(rows, []string{s.Time.Local().Format(time.DateTime), s.Session[:min(len(s.Session), 8)], note})
	}
	return writeTable(a.io.Out, []string{"BEFORE", "SESSION", "TURN"}, rows)
}

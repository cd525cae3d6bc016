package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"msb/agentclient"
	"msb/turn/visible"
	"msb/turn/workspace"
)

func newPatchCmd(app *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "patch",
		Short:   "Bring a sandbox's changes home",
		Example: "  msb patch export demo -o work.patch\n  msb patch apply demo",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newPatchExportCmd(app), newPatchApplyCmd(app))
	return cmd
}

func newPatchExportCmd(app *app) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "export NAME",
		Short: "Write what changed in a sandbox's workspace as a patch",
		Long: `Write the patch for git apply, with new, binary, renamed and deleted files and changes of modes,
to standard output or a file. What it does is said on standard error.`,
		Example:           "  msb patch export demo > work.patch\n  msb patch export demo -o work.patch",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: app.completeNames(1),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			return app.inWorkspace(ctx, args[0], func(w *workspace.Workspace, c *agentclient.Client) error {
				return app.exportPatch(ctx, w, c, file)
			})
		}),
	}
	cmd.Flags().StringVarP(&file, "output", "o", "", "file to write, which must not be there yet")
	_ = cmd.MarkFlagFilename("output")
	return cmd
}

func (a *app) exportPatch(ctx context.Context, w *workspace.Workspace, c *agentclient.Client, file string) (err error) {
	out := a.io.Out
	switch {
	case file != "":
		f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if err != nil {
			return err
		}
		defer func() {
			if err = errors.Join(err, f.Close()); err != nil {
				os.Remove(file)
			}
		}()
		out = f
	case a.io.OutTTY():
		return &usageError{errors.New("a patch is not for a terminal: give -o FILE, or look at it with `msb diff`")}
	}
	s, err := w.Diff(ctx, c, out)
	if err != nil {
		return err
	}
	writeChanges(a.io.Err, s, a.io.Colour())
	fmt.Fprintln(a.io.Err, total(s))
	return nil
}

// applyOptions are the flags of patch apply.
type applyOptions struct {
	dir    string
	yes    bool
	dryRun bool
}

func newPatchApplyCmd(app *app) *cobra.Command {
	var o applyOptions
	cmd := &cobra.Command{
		Use:   "apply NAME [FILE|-]",
		Short: "Apply a sandbox's changes to the project on this host",
		Long: `Apply what changed in the sandbox's workspace, or a patch in a file, to the project it was brought
from (or --dir). First it is tried without touching anything, and what it would do is shown; only
after a confirmation is it done, all of it or nothing. A patch that leaves the project, reaches
into .git, makes links that lead out, goes through links or changes a submodule is refused. Lines
that changed on the host meanwhile are merged where that is clear. Nothing is staged or committed.`,
		Example:           "  msb patch apply demo\n  msb patch apply demo --dry-run\n  msb patch apply demo work.patch --dir ~/proj -y",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: app.completeNames(1),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			file := ""
			if len(args) > 1 {
				file = args[1]
			}
			return app.applyPatch(ctx, args[0], file, o)
		}),
	}
	cmd.Flags().StringVar(&o.dir, "dir", "", "folder to change (default: where the workspace came from)")
	cmd.Flags().BoolVarP(&o.yes, "yes", "y", false, "do not ask")
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "only say what it would do")
	_ = cmd.MarkFlagDirname("dir")
	return cmd
}

func (a *app) applyPatch(ctx context.Context, name, file string, o applyOptions) error {
	h, err := a.ownSandbox(name)
	if err != nil {
		return err
	}
	w := workspace.At(workspaceDir(h, name))
	dir := o.dir
	if dir == "" {
		b, err := w.Baseline()
		if err != nil {
			return err
		}
		if dir = b.Source; dir == "" {
			return &usageError{errors.New("the workspace did not come from this host: say what to change with --dir")}
		}
	}
	patch, err := a.readPatch(ctx, name, file)
	if err != nil {
		return err
	}
	plan, err := w.Plan(ctx, dir, patch)
	if err != nil {
		return err
	}
	if len(plan.Summary.Changes) == 0 {
		fmt.Fprintln(a.io.Err, "nothing to change")
		return nil
	}
	writeChanges(a.io.Err, plan.Summary, a.io.Colour())
	for i, p := range plan.Notable {
		if i == 20 {
			fmt.Fprintf(a.io.Err, "note: and %d more\n", len(plan.Notable)-i)
			break
		}
		fmt.Fprintf(a.io.Err, "note: programs on this host may act on %s\n", visible.Text(p))
	}
	fmt.Fprintf(a.io.Err, "%s in %s\n", total(plan.Summary), tilde(plan.Dir))
	if o.dryRun {
		return nil
	}
	if !o.yes {
		ok, err := a.confirm(ctx, "Apply it?")
		if err != nil {
			return err
		}
		if !ok {
			fmt.Fprintln(a.io.Err, "nothing was changed")
			return nil
		}
	}
	return plan.Apply(ctx)
}

// readPatch opens the patch: of a file, standard input, or the sandbox.
func (a *app) readPatch(ctx context.Context, name, file string) (io.Reader, error) {
	switch file {
	case "-":
		return a.io.In, nil
	case "":
		var b bytes.Buffer
		return &b, a.inWorkspace(ctx, name, func(w *workspace.Workspace, c *agentclient.Client) error {
			_, err := w.Diff(ctx, c, &b)
			return err
		})
	}
	b, err := os.ReadFile(file)
	return bytes.NewReader(b), err
}

func validText(s string) bool { return utf8.ValidString(s) }

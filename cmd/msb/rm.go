package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"msb/vmm"
)

func newRmCmd(app *app) *cobra.Command {
	var sel selection
	var force bool
	cmd := &cobra.Command{
		Use:               "rm NAME...",
		Aliases:           []string{"remove"},
		Short:             "Remove sandboxes with their disks, logs and mounts",
		Long:              "Remove sandboxes with all that belongs to them. One that runs is refused without -f.",
		Example:           "  msb rm demo\n  msb rm -f demo other",
		ValidArgsFunction: app.completeNames(0),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			h, err := app.host()
			if err != nil {
				return err
			}
			steps := app.steps(sel.quiet)
			return sel.each(ctx, h, args, func(name string) error {
				if err := removeSandbox(ctx, app, h, name, force); err != nil {
					return err
				}
				steps.Line("sandbox", "%s: removed", name)
				return nil
			})
		}),
	}
	sel.flags(cmd)
	cmd.Flags().BoolVarP(&force, "force", "f", false, "also when it runs, and when something still uses a mount")
	return cmd
}

// removeSandbox ends the mounts of a sandbox and removes it. A running one is refused before anything has changed.
func removeSandbox(ctx context.Context, app *app, h *vmm.Host, name string, force bool) error {
	sb, err := h.Inspect(ctx, name)
	if errors.Is(err, vmm.ErrNotFound) && !h.Home.Exists(name) {
		return err // one without its config is there, and ls shows it as broken
	}
	if err == nil && sb.Running() && !force {
		return fmt.Errorf("%w: %q; stop it first (`msb stop %s`), or use -f", vmm.ErrRunning, name, name)
	}
	if err := unmountAll(ctx, h.Home, name, force); err != nil {
		return err
	}
	if err := h.Remove(ctx, name, vmm.RemoveOptions{Force: force}); err != nil {
		return err
	}
	if dir, err := defaultUpDir(name); err == nil {
		_ = os.Remove(dir) // the mount point that up made; one with anything in it, or in use, stays
	}
	return nil
}

package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"msb/cmd/msb/progress"
	"msb/vmm"
)

func newStartCmd(app *app) *cobra.Command {
	var sel selection
	cmd := &cobra.Command{
		Use:               "start NAME...",
		Short:             "Start stopped sandboxes",
		Long:              "Start sandboxes that are stopped and return when they are ready. Mounts come back by themselves.",
		Example:           "  msb start demo\n  msb start --label team=infra",
		ValidArgsFunction: app.completeNames(0),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			h, err := app.host()
			if err != nil {
				return err
			}
			steps := app.steps(sel.quiet)
			return sel.each(ctx, h, args, func(name string) error {
				_, err := startSandbox(ctx, h, name, steps)
				if errors.Is(err, vmm.ErrRunning) {
					steps.Line("sandbox", "%s: is running already", name)
					return nil
				}
				return err
			})
		}),
	}
	sel.flags(cmd)
	return cmd
}

func startSandbox(ctx context.Context, h *vmm.Host, name string, steps *progress.Steps) (vmm.Sandbox, error) {
	report, done := watch(steps)
	sb, err := h.Start(ctx, name, vmm.StartOptions{}, report)
	done()
	if err != nil {
		return sb, err
	}
	sayBooted(steps, sb)
	for _, m := range sb.Mounts {
		if !mountAnswers(ctx, m.Dir) {
			steps.Warn("mount", "%s is not back yet: see `msb logs %s --source mount`", tilde(m.Dir), name)
		}
	}
	return sb, ctx.Err()
}

package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"msb/controlclient"
)

func newPauseCmd(app *app) *cobra.Command {
	return pauseCommand(app, &cobra.Command{
		Use:   "pause NAME",
		Short: "Stop the CPUs of a sandbox until it is resumed",
		Long: `Freeze the commands of a sandbox at a point between two messages and stop its CPUs. It
keeps its memory, its connections and its mounts; commands go on where they were after
msb resume. What wants to start something in it meanwhile is refused, and mounts do not answer.`,
		Example: "  msb pause demo\n  msb resume demo",
	}, "paused", (*controlclient.Connection).Pause)
}

func newResumeCmd(app *app) *cobra.Command {
	return pauseCommand(app, &cobra.Command{
		Use:     "resume NAME",
		Short:   "Let a paused sandbox go on",
		Example: "  msb resume demo",
	}, "running", (*controlclient.Connection).Resume)
}

func pauseCommand(app *app, cmd *cobra.Command, done string, do func(*controlclient.Connection, context.Context) error) *cobra.Command {
	var quiet bool
	cmd.Args = cobra.ExactArgs(1)
	cmd.ValidArgsFunction = app.completeNames(1)
	cmd.RunE = interruptible(func(ctx context.Context, args []string) error {
		h, sb, err := app.inspectOwn(ctx, args[0])
		if err != nil {
			return err
		}
		c, err := controlOf(h, sb)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := controlError(sb, do(c, ctx)); err != nil {
			return fmt.Errorf("%s %w", cmd.Name(), err)
		}
		app.steps(quiet).Line("sandbox", "%s: %s", sb.Name, done)
		return nil
	})
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "say nothing but errors")
	return cmd
}

package main

import (
	"context"
	"errors"
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
	var socket, flush string
	cmd.ValidArgsFunction = app.completeNames(1)
	cmd.RunE = interruptible(func(ctx context.Context, args []string) error {
		if flush != "" {
			return &usageError{errors.New("--guest-flush: a paused sandbox keeps what it has in memory, so nothing is flushed for it; run `sync` in it before, if its disk is to have everything")}
		}
		t, err := app.controlled(ctx, args, socket)
		if err != nil {
			return err
		}
		c, err := t.connect()
		if err != nil {
			return err
		}
		defer c.Close()
		if err := t.problem(do(c, ctx)); err != nil {
			return fmt.Errorf("%s %w", cmd.Name(), err)
		}
		app.steps(quiet).Line("sandbox", "%s: %s", t.name, done)
		return nil
	})
	controlFlag(cmd, &socket)
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "say nothing but errors")
	if cmd.Name() == "pause" {
		cmd.Flags().StringVar(&flush, "guest-flush", "", "")
		_ = cmd.Flags().MarkHidden("guest-flush")
	}
	return cmd
}

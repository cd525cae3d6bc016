package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"msb/turn/visible"
	"msb/vmm/shells"
)

func newShellsCmd(app *app) *cobra.Command {
	var l listing
	var kill []string
	cmd := &cobra.Command{
		Use:   "shells NAME",
		Short: "List the shells that live in a sandbox, or end some",
		Long: `List the shells that a sandbox keeps: those that were left with Ctrl-], whose terminal went away,
or that somebody is at right now. One that ended while nobody was there stays until its last words
were read. All end with the sandbox.`,
		Example:           "  msb shells demo\n  msb shells demo --json\n  msb shells demo --kill 2",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: app.completeNames(1),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			asJSON, err := l.asJSON()
			if err != nil {
				return err
			}
			name := args[0]
			h, err := app.ownSandbox(name)
			if err != nil {
				return err
			}
			if len(kill) > 0 {
				return killShells(ctx, h.ShellsSocket(name), name, kill)
			}
			list, err := shells.List(ctx, h.ShellsSocket(name))
			switch {
			case err != nil:
				return shellsError(name, err)
			case asJSON:
				return writeJSON(app.io.Out, append([]shells.Info{}, list...))
			case l.quiet:
				for _, i := range list {
					fmt.Fprintln(app.io.Out, i.ID)
				}
				return nil
			}
			var rows [][]string
			for _, i := range list {
				rows = append(rows, []string{fmt.Sprint(i.ID), shellState(i), fmt.Sprintf("%dx%d", i.Cols, i.Rows),
					i.Started.Local().Format(time.DateTime), i.Used.Local().Format(time.DateTime), visible.Text(i.Title)})
			}
			return writeTable(app.io.Out, []string{"SHELL", "STATE", "SIZE", "STARTED", "USED", "TITLE"}, rows)
		}),
	}
	l.flags(cmd, "only the ids")
	cmd.Flags().StringArrayVar(&kill, "kill", nil, "end this shell (repeatable; \"all\" for every one)")
	return cmd
}

func shellState(i shells.Info) string {
	switch {
	case i.Ended == nil && i.Attached == 0:
		return "left"
	case i.Ended == nil:
		return fmt.Sprintf("%d here", i.Attached)
	case i.Ended.Signal != 0:
		return fmt.Sprintf("signal %d", i.Ended.Signal)
	case i.Ended.Error != "":
		return "lost"
	}
	return fmt.Sprintf("exit %d", i.Ended.Code)
}

func killShells(ctx context.Context, path, name string, words []string) error {
	var ids []uint32
	for _, w := range words {
		if w == "all" {
			list, err := shells.List(ctx, path)
			if err != nil {
				return shellsError(name, err)
			}
			for _, i := range list {
				ids = append(ids, i.ID)
			}
			continue
		}
		id, err := shellID([]string{w})
		if err != nil {
			return &usageError{err}
		}
		ids = append(ids, id)
	}
	var errs []error
	for _, id := range ids {
		if err := shells.Kill(ctx, path, id); err != nil {
			errs = append(errs, shellsError(name, err))
		}
	}
	return errors.Join(errs...)
}

package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"msb/vmm"
)

// stopFlags say how a sandbox is stopped.
type stopFlags struct {
	force   bool
	timeout time.Duration
}

func (s *stopFlags) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&s.force, "force", "f", false, "do not ask the guest: last writes may be lost")
	cmd.Flags().VarP(durationValue{&s.timeout}, "timeout", "t", "how long the guest may take to shut down")
}

func (s *stopFlags) options() vmm.StopOptions {
	return vmm.StopOptions{Timeout: s.timeout, Force: s.force}
}

func newStopCmd(app *app) *cobra.Command {
	var sel selection
	var how stopFlags
	cmd := &cobra.Command{
		Use:   "stop NAME...",
		Short: "Shut sandboxes down; their disks stay",
		Long: `Ask sandboxes to shut down and wait until they have powered themselves off. One that
does not in time is ended by force: the command says so and exits 3.`,
		Example:           "  msb stop demo\n  msb stop -t 30s demo\n  msb stop -f demo",
		ValidArgsFunction: app.completeNames(0),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			h, err := app.host()
			if err != nil {
				return err
			}
			steps := app.steps(sel.quiet)
			return sel.each(ctx, h, args, func(name string) error {
				step := steps.Start("sandbox", "%s: shutting down", name)
				err := h.Stop(ctx, name, how.options())
				switch {
				case err == nil:
					step.Done("%s: stopped", name)
				case errors.Is(err, vmm.ErrNotRunning):
					step.Done("%s: is not running", name)
					return nil
				default:
					step.Drop()
				}
				return stopError(err)
			})
		}),
	}
	sel.flags(cmd)
	how.flags(cmd)
	return cmd
}

// stopError gives a stop by force its own exit code.
func stopError(err error) error {
	if errors.Is(err, vmm.ErrForced) {
		return &exitError{exitNotClean, err}
	}
	return err
}

func newRestartCmd(app *app) *cobra.Command {
	var sel selection
	var how stopFlags
	cmd := &cobra.Command{
		Use:               "restart NAME...",
		Short:             "Stop sandboxes and start them again",
		Example:           "  msb restart demo",
		ValidArgsFunction: app.completeNames(0),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			h, err := app.host()
			if err != nil {
				return err
			}
			steps := app.steps(sel.quiet)
			return sel.each(ctx, h, args, func(name string) error {
				if h.Home.Locked(name) {
					steps.Note("sandbox", name+": shutting down")
				}
				stopped := h.Stop(ctx, name, how.options())
				steps.End()
				if stopped != nil && !errors.Is(stopped, vmm.ErrNotRunning) && !errors.Is(stopped, vmm.ErrForced) {
					return stopped
				}
				if _, err := startSandbox(ctx, h, name, steps); err != nil {
					return err
				}
				if errors.Is(stopped, vmm.ErrForced) {
					return stopError(stopped)
				}
				return nil
			})
		}),
	}
	sel.flags(cmd)
	how.flags(cmd)
	return cmd
}

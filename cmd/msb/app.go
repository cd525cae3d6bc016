package main

import (
	"context"
	"errors"
	"os/signal"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"msb/cmd/msb/progress"
	"msb/cmd/msb/terminal"
	"msb/vmm"
	"msb/vmm/image"
	"msb/vmm/store"
)

// app is what every command gets: the streams, and (opened when first asked for) the state of this user.
type app struct {
	io      *terminal.Streams
	home    func() (*store.Home, error)
	library func() (*image.Library, error)
}

func newApp(io *terminal.Streams) *app {
	a := &app{io: io, home: sync.OnceValues(store.Open)}
	a.library = sync.OnceValues(func() (*image.Library, error) {
		h, err := a.home()
		if err != nil {
			return nil, err
		}
		return image.Open(h.Root)
	})
	return a
}

// host is the face of the sandboxes of this user.
func (a *app) host() (*vmm.Host, error) {
	h, err := a.home()
	if err != nil {
		return nil, err
	}
	return vmm.New(h, vmm.Deps{Disk: a.makeDisk}), nil
}

// steps shows progress on standard error, where it mixes with no output.
func (a *app) steps(quiet bool) *progress.Steps {
	return progress.New(a.io, a.io.Err, a.io.ErrTTY(), quiet)
}

// commands is the whole command line, in the order in which help shows it.
var commands = []struct {
	group string
	make  []func(*app) *cobra.Command
}{
	{groupStart, []func(*app) *cobra.Command{newUpCmd, newTuiCmd, newShellCmd, newShellsCmd, newMountCmd, newUmountCmd}},
	{groupLife, []func(*app) *cobra.Command{newCreateCmd, newRunCmd, newStartCmd, newStopCmd, newRestartCmd, newResetCmd, newModifyCmd, newPauseCmd, newResumeCmd,
		newRmCmd, newLsCmd, newPsCmd, newInspectCmd, newLogsCmd, newMetricsCmd}},
	{groupInside, []func(*app) *cobra.Command{newExecCmd, newCpCmd, newForwardCmd, newPingCmd, newTouchCmd}},
	{groupAgent, []func(*app) *cobra.Command{newTurnCmd, newApprovalsCmd, newDiffCmd, newPatchCmd, newUndoCmd, newSessionCmd, newRulesCmd, newAuditCmd,
		newProbeCmd}},
	{groupModels, []func(*app) *cobra.Command{newModelCmd, newMCPCmd, newCredsCmd, newMCPDemoCmd}},
	{groupHost, []func(*app) *cobra.Command{newImageCmd, newDoctorCmd, newVersionCmd, newCompletionCmd}},
	{"", []func(*app) *cobra.Command{newRuntimeCmd, newMountDaemonCmd, newTerminalGuardCmd}},
}

// interruptible ends the context of run at the first Ctrl-C, SIGTERM or SIGHUP so that the command can tidy up; a
// second one ends the process at once.
func interruptible(run func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
		defer stop()
		context.AfterFunc(ctx, stop)
		err := run(ctx, args)
		if err != nil && ctx.Err() != nil && !errors.Is(err, context.Canceled) {
			return errors.Join(err, context.Canceled)
		}
		return err
	}
}

func newTerminalGuardCmd(*app) *cobra.Command {
	return &cobra.Command{
		Use:    terminal.GuardCommand,
		Short:  "Give a terminal its mode back when the process on the other end of descriptor 3 dies",
		Hidden: true,
		Args:   cobra.MaximumNArgs(1),
		RunE:   func(_ *cobra.Command, args []string) error { return terminal.RunGuard(args) },
	}
}

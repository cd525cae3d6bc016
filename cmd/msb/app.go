package main

import (
	"context"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"msb/cmd/msb/terminal"
)

// app is what every command gets: the streams, and (opened when first asked for) the state of this user.
type app struct {
	io *terminal.Streams
}

func newApp(io *terminal.Streams) *app { return &app{io: io} }

// commands is the whole command line, in the order in which help shows it.
var commands = []struct {
	group string
	make  []func(*app) *cobra.Command
}{
	{groupStart, nil},
	{groupLife, nil},
	{groupInside, nil},
	{groupHost, []func(*app) *cobra.Command{newVersionCmd, newCompletionCmd}},
}

// interruptible ends ctx at the first Ctrl-C, SIGTERM or SIGHUP so that the command can tidy up; a second one ends
// the process at once.
func interruptible(run func(ctx context.Context) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
		defer stop()
		context.AfterFunc(ctx, stop)
		return run(ctx)
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"msb/cmd/msb/terminal"
)

// execute runs one msb command line and returns the exit code of the process.
func execute(args []string, io *terminal.Streams) int {
	// A reader that goes away must give an EPIPE error, not end the process before a temporary sandbox is removed.
	// Notify instead of Ignore: children (QEMU, mount daemons) start with the default again.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)

	app := newApp(io)
	root := newRoot(app)
	root.SetArgs(args)
	root.SetIn(io.In)
	root.SetOut(io.Out)
	root.SetErr(io.Err)
	cmd, err := root.ExecuteContextC(context.Background())
	if err == nil {
		return exitOK
	}
	report(io, cmd, err)
	return exitCode(err)
}

// report prints an error once, in one voice: what was tried, why it failed, what to run next.
func report(io *terminal.Streams, cmd *cobra.Command, err error) {
	var e *exitError
	switch {
	case errors.As(err, &e) && e.err == nil:
		return
	case errors.Is(err, syscall.EPIPE):
		return
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(io.Err, "msb: interrupted")
		return
	}
	fmt.Fprintf(io.Err, "msb: %s\n", terminal.Indented(err.Error(), "     "))
	var u *usageError
	if errors.As(err, &u) || strings.HasPrefix(err.Error(), "unknown command") {
		fmt.Fprintf(io.Err, "see `%s --help`\n", cmd.CommandPath())
	}
}

func newRoot(app *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "msb",
		Short: "Sandboxes: Linux VMs with a shell, a mount and an agent inside",
		Long: `msb makes, runs and opens sandboxes: Linux virtual machines with a shell, and with
their files mounted on the host so that your editor and git work on them.`,
		Example: `  msb                         # open the screen: turns, approvals, shells, files
  msb up demo                 # create or start it, mount it, open it on the screen
  msb exec demo -- uname -a   # run one command in it
  msb cp ./src demo:/work     # copy files in
  msb stop demo               # shut it down; the disk stays`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		DisableAutoGenTag: true,
		Args:              cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if app.io.Interactive() {
				return app.openScreen(cmd.Context(), "", false, "")
			}
			return cmd.Help()
		},
	}
	cobra.EnableCommandSorting = false
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	root.SetVersionTemplate("{{.Version}}\n")
	root.Version = versionLine()
	root.AddGroup(
		&cobra.Group{ID: groupStart, Title: "Start here:"},
		&cobra.Group{ID: groupLife, Title: "Sandboxes:"},
		&cobra.Group{ID: groupInside, Title: "Inside a sandbox:"},
		&cobra.Group{ID: groupAgent, Title: "The agent and its work:"},
		&cobra.Group{ID: groupModels, Title: "Models, MCP servers and keys:"},
		&cobra.Group{ID: groupHost, Title: "Images and this machine:"},
	)
	for _, g := range commands {
		for _, make := range g.make {
			c := make(app)
			c.GroupID = g.group
			wrapUsage(c)
			root.AddCommand(c)
		}
	}
	return root
}

const (
	groupStart  = "start"
	groupLife   = "life"
	groupInside = "inside"
	groupAgent  = "agent"
	groupModels = "models"
	groupHost   = "host"
)

// wrapUsage turns the complaints of cobra's argument checks into usage errors.
func wrapUsage(c *cobra.Command) {
	if check := c.Args; check != nil {
		c.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				var u *usageError
				if errors.As(err, &u) {
					return err
				}
				return &usageError{err}
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		wrapUsage(sub)
	}
}

package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"msb/cmd/msb/session"
	"msb/cmd/msb/terminal"
)

func newShellCmd(app *app) *cobra.Command {
	var p commandFlags
	var socket string
	cmd := &cobra.Command{
		Use:   "shell NAME",
		Short: "Open a shell in a sandbox (Ctrl-] leaves it)",
		Long: `Open the login shell of a sandbox's user on this terminal: bash where it is installed.
Ctrl-] leaves the shell, the sandbox keeps running.`,
		Example:           "  msb shell demo\n  msb shell demo -u root\n  msb shell demo --detach-keys ctrl-p,ctrl-q",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: app.completeNames(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, _, err := nameAndRest(socket, args)
			if err != nil {
				return err
			}
			t, err := app.target(name, socket)
			if err != nil {
				return ownFailure(err)
			}
			return app.openShell(cmd, t, &p)
		},
	}
	socketFlag(cmd, &socket)
	p.userFlags(cmd)
	p.keysFlag(cmd)
	return cmd
}

// openShell is the shell of shell and up. Without a terminal the shell reads its commands from standard input.
func (a *app) openShell(cmd *cobra.Command, t target, p *commandFlags) error {
	sh, args := session.LoginShell()
	o, err := p.options(a, append([]string{sh}, args...))
	if err != nil {
		return err
	}
	c, err := t.dial(cmd.Context())
	if err != nil {
		return ownFailure(err)
	}
	defer c.Close()
	err = a.attach(cmd.Context(), c, o, t.name, false)
	var e *exitError
	if errors.As(err, &e) && e.code == exitNotFound && e.err != nil {
		return &exitError{exitNotFound, fmt.Errorf("%s has no /bin/sh; run a program of its own with `msb exec %s -- PROGRAM`", t.name, t.name)}
	}
	return err
}

// noFlags is a command without flags.
func noFlags() *commandFlags { return &commandFlags{keys: terminal.DefaultDetachKeys} }

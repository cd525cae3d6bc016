package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"

	"msb/cmd/msb/session"
	"msb/cmd/msb/terminal"
	"msb/vmm/shells"
)

func newShellCmd(app *app) *cobra.Command {
	var p commandFlags
	var socket string
	var attach bool
	cmd := &cobra.Command{
		Use:   "shell NAME [--attach [ID]]",
		Short: "Open a shell in a sandbox, or come back to one (Ctrl-] leaves it)",
		Long: `Open the login shell of a sandbox's user on this terminal: bash where it is installed.
Ctrl-] leaves the shell, which lives on with the last part of what it printed: --attach comes
back to it, from this terminal or another, also while somebody else is there. Without ID it is
the shell that was used last. "msb shells" lists them.

In a sandbox of a stock installation, or without a terminal, the shell ends when it is left.`,
		Example: `  msb shell demo
  msb shell demo --attach
  msb shell demo --attach 2
  msb shell demo -u root
  msb shell demo --detach-keys ctrl-p,ctrl-q`,
		Args:              cobra.MaximumNArgs(2),
		ValidArgsFunction: app.completeNames(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, rest, err := nameAndRest(socket, args)
			if err != nil {
				return err
			}
			if len(rest) > 0 && !attach {
				return &usageError{fmt.Errorf("%q: `msb exec %s -- COMMAND` runs a command", rest[0], name)}
			}
			t, err := app.target(name, socket)
			if err != nil {
				return ownFailure(err)
			}
			if attach {
				return app.attachShell(cmd.Context(), t, &p, rest)
			}
			return app.openShell(cmd, t, &p)
		},
	}
	socketFlag(cmd, &socket)
	cmd.Flags().BoolVar(&attach, "attach", false, "come back to a shell that lives: the one called ID, or the last one used")
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
	if t.own && a.io.Interactive() {
		rows, cols := a.io.Size()
		f, err := shells.Open(cmd.Context(), a.shellsSocket(t), shells.Spec{
			Argv: append([]string{sh}, args...), Env: append([]string{"TERM=" + session.Term(cmd.Context(), c, a.io)}, o.Spec.Env...),
			User: o.Spec.User, Cwd: o.Spec.Cwd, Rows: rows, Cols: cols,
		})
		switch {
		case err == nil:
			c.Close()
			return a.frontEnd(cmd.Context(), f, t, o.Keys)
		case errors.Is(err, shells.ErrTooMany):
			return ownFailure(fmt.Errorf("%w; `msb shells %s` lists them, --kill ends some", err, t.name))
		case errors.Is(err, shells.ErrCommand): // the plain way says it best
		case !notThere(err):
			return ownFailure(fmt.Errorf("%s: %w", t.name, err))
		}
	}
	err = a.attach(cmd.Context(), c, o, t.name, false)
	var e *exitError
	if errors.As(err, &e) && e.code == exitNotFound && e.err != nil {
		return &exitError{exitNotFound, fmt.Errorf("%s has no /bin/sh; run a program of its own with `msb exec %s -- PROGRAM`", t.name, t.name)}
	}
	return err
}

// attachShell comes back to a shell.
func (a *app) attachShell(ctx context.Context, t target, p *commandFlags, rest []string) error {
	if !t.own {
		return ownFailure(fmt.Errorf("%s keeps no shells: only sandboxes of msb do", t.name))
	}
	id, err := shellID(rest)
	if err != nil {
		return &usageError{err}
	}
	keys, err := terminal.ParseDetachKeys(p.keys)
	if err != nil {
		return &usageError{err}
	}
	if !a.io.Interactive() {
		return ownFailure(errors.New("--attach needs a terminal"))
	}
	rows, cols := a.io.Size()
	f, err := shells.Attach(ctx, a.shellsSocket(t), id, rows, cols)
	if err != nil {
		return ownFailure(shellsError(t.name, err))
	}
	return a.frontEnd(ctx, f, t, keys)
}

func shellID(args []string) (uint32, error) {
	if len(args) == 0 {
		return 0, nil
	}
	n, err := strconv.ParseUint(args[0], 10, 32)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is not the id of a shell, which is a number", args[0])
	}
	return uint32(n), nil
}

// frontEnd shows a kept shell on our terminal and returns how it ended as an error with an exit code.
func (a *app) frontEnd(ctx context.Context, f *shells.Front, t target, keys terminal.DetachKeys) error {
	defer a.warnOfDisk(t.name)
	res, err := session.Front(ctx, f, a.io, keys)
	var signalled *session.Signalled
	switch {
	case errors.As(err, &signalled):
		return &exitError{128 + int(signalled.Signal), nil}
	case errors.Is(err, session.ErrOutput):
		return &exitError{exitBrokenPipe, nil}
	case res.Detached:
		fmt.Fprintf(a.io.Err, "\r\nleft shell %d of %s, which lives on: msb shell %s --attach %d\n", f.Info.ID, t.name, t.name, f.Info.ID)
		return nil
	case err != nil:
		return ownFailure(fmt.Errorf("%s: %w", t.name, err))
	case res.Code < 0 && res.Signal != 0:
		return &exitError{128 + int(res.Signal), nil}
	case res.Code != 0:
		return &exitError{max(res.Code, 1), nil}
	}
	return nil
}

func (a *app) shellsSocket(t target) string {
	h, err := a.home()
	if err != nil {
		return ""
	}
	return h.ShellsSocket(t.name)
}

// notThere says that nobody keeps shells at a socket.
func notThere(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
}

// shellsError says what to do about an error of a keeper.
func shellsError(name string, err error) error {
	switch {
	case notThere(err):
		return fmt.Errorf("sandbox %q is not running, so no shell lives in it; start it with `msb start %s`", name, name)
	case errors.Is(err, shells.ErrNotFound):
		return fmt.Errorf("%w; `msb shells %s` lists those there are, `msb shell %s` opens one", err, name, name)
	}
	return fmt.Errorf("%s: %w", name, err)
}

// noFlags is a command without flags.
func noFlags() *commandFlags { return &commandFlags{keys: terminal.DefaultDetachKeys} }

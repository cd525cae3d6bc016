package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"msb/agentclient"
	"msb/cmd/msb/session"
	"msb/cmd/msb/terminal"
)

// commandFlags is how a command runs in a sandbox, as flags say it. exec, run and shell share it.
type commandFlags struct {
	env        []string
	user       string
	workdir    string
	tty, noTTY bool
	timeout    time.Duration
	rlimits    []string
	keys       string
	quiet      bool
}

func (p *commandFlags) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVarP(&p.tty, "tty", "t", false, "give the command a terminal (default: when both ends are one)")
	f.BoolVar(&p.noTTY, "no-tty", false, "never give it a terminal")
	f.Var(durationValue{&p.timeout}, "timeout", "kill it after this long and exit 124")
	f.StringArrayVar(&p.rlimits, "rlimit", nil, "resource limit, NAME=SOFT[:HARD] (repeatable)")
	p.keysFlag(cmd)
	cmd.MarkFlagsMutuallyExclusive("tty", "no-tty")
}

func (p *commandFlags) keysFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&p.keys, "detach-keys", terminal.DefaultDetachKeys, "keys that leave the terminal, such as ctrl-p,ctrl-q; \"none\" for no way out")
}

func (p *commandFlags) userFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVarP(&p.env, "env", "e", nil, "environment, NAME=VALUE (repeatable)")
	f.StringVarP(&p.workdir, "workdir", "w", "", "directory to run it in")
	f.StringVarP(&p.user, "user", "u", "", "user, NAME or UID, also with :GROUP")
}

// options checks the flags for a command line.
func (p *commandFlags) options(app *app, argv []string) (session.Options, error) {
	o := session.Options{Timeout: p.timeout}
	var err error
	if o.Keys, err = terminal.ParseDetachKeys(p.keys); err != nil {
		return o, &usageError{err}
	}
	if o.Spec.Rlimits, err = parseRlimits(p.rlimits); err != nil {
		return o, &usageError{err}
	}
	if o.Spec.Env, err = app.checkEnv(p.env); err != nil {
		return o, &usageError{err}
	}
	o.Spec.Cmd, o.Spec.Args = argv[0], argv[1:]
	o.Spec.Cwd, o.Spec.User = p.workdir, p.user
	o.Spec.TTY = p.tty || app.io.Interactive() && !p.noTTY
	if o.Spec.Cmd == "" {
		return o, &usageError{errors.New("the command is empty")}
	}
	words := append(append(slices.Clone(argv), o.Spec.Env...), p.workdir, p.user)
	if err := checkText(words); err != nil {
		return o, &usageError{err}
	}
	return o, nil
}

func newExecCmd(app *app) *cobra.Command {
	var p commandFlags
	var socket string
	cmd := &cobra.Command{
		Use:   "exec NAME [flags] -- COMMAND [ARG...]",
		Short: "Run a command in a sandbox",
		Long: `Run a command in a running sandbox. Standard input, output and error pass through byte by
byte, and so does the exit code: 127 when there is no such command, 126 when it cannot be
executed, 128 plus the number when a known signal killed it (137 for an unknown one), 124
after --timeout, and 125 when msb itself failed. Ctrl-C and SIGTERM reach the command.`,
		Example: `  msb exec demo -- uname -a
  msb exec demo -w /work/repo -e CI=1 -- make -j2
  tar c . | msb exec demo -- tar x -C /home/dev
  msb exec --socket /run/other/agent.sock -- id`,
		ValidArgsFunction: app.completeNames(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, argv, err := nameAndRest(socket, args)
			if err != nil {
				return err
			}
			if len(argv) == 0 {
				return &usageError{errors.New("which command? msb exec NAME -- COMMAND")}
			}
			o, err := p.options(app, argv)
			if err != nil {
				return err
			}
			t, err := app.target(name, socket)
			if err != nil {
				return ownFailure(err)
			}
			c, err := t.dial(cmd.Context())
			if err != nil {
				return ownFailure(err)
			}
			defer c.Close()
			return app.attach(cmd.Context(), c, o, t.name, p.quiet)
		},
	}
	socketFlag(cmd, &socket)
	p.userFlags(cmd)
	p.flags(cmd)
	cmd.Flags().BoolVarP(&p.quiet, "quiet", "q", false, "no messages of msb's own after the command has started")
	return cmd
}

// warnOfDisk says that the host fails writes of the sandbox's disk, which commands in it may not notice.
func (a *app) warnOfDisk(name string) {
	h, err := a.home()
	if err != nil || !h.Exists(name) {
		return
	}
	if st, err := h.State(name); err == nil && st.Status.Live() && st.DiskError != "" {
		fmt.Fprintf(a.io.Err, "msb: %s: the host fails writes of its disk, so what was written may be lost (%s); free space on the host, then msb restart %s\n",
			name, terminal.Line(st.DiskError), name)
	}
}

// attach runs a command on our streams and returns how it ended as an error with an exit code.
func (a *app) attach(ctx context.Context, c *agentclient.Client, o session.Options, name string, quiet bool) error {
	if !quiet {
		defer a.warnOfDisk(name)
	}
	res, err := session.Run(ctx, c, a.io, o)
	var failed *agentclient.ExecError
	var signalled *session.Signalled
	switch {
	case errors.As(err, &failed):
		return startFailure(ctx, c, o, failed)
	case errors.As(err, &signalled):
		return &exitError{128 + int(signalled.Signal), nil}
	case errors.Is(err, syscall.EPIPE) && errors.Is(err, session.ErrOutput):
		return &exitError{exitBrokenPipe, nil}
	case res.Detached:
		if !quiet {
			fmt.Fprintf(a.io.Err, "left %s; the sandbox keeps running\n", name)
		}
		return nil
	case res.TimedOut:
		err := fmt.Errorf("%s: killed after %s", o.Spec.Cmd, o.Timeout)
		if quiet {
			err = nil
		}
		return &exitError{exitTimeout, err}
	case err != nil:
		return ownFailure(fmt.Errorf("%s: %w", name, err))
	case res.Code < 0 && res.Signal != 0:
		return &exitError{128 + int(res.Signal), nil}
	case res.Code < 0:
		return &exitError{exitSIGKILL, nil}
	case res.Code > 0:
		return &exitError{res.Code, nil}
	}
	return nil
}

// ownFailure marks a failure of msb, to be told from one of the command.
func ownFailure(err error) error {
	var e *exitError
	var u *usageError
	if err == nil || errors.As(err, &e) || errors.As(err, &u) || errors.Is(err, context.Canceled) {
		return err
	}
	return &exitError{exitOwnFailure, err}
}

// startFailure says why the guest did not start the command.
func startFailure(ctx context.Context, c *agentclient.Client, o session.Options, e *agentclient.ExecError) error {
	cmd := o.Spec.Cmd
	// A directory that is missing looks like a command that is missing.
	if dir := o.Spec.Cwd; dir != "" && (e.Kind == "not_found" || e.Kind == "bad_cwd") {
		if _, err := c.FS().Stat(ctx, dir, true); errors.Is(err, fs.ErrNotExist) {
			return &exitError{exitOwnFailure, fmt.Errorf("working directory %s does not exist in the sandbox", dir)}
		}
	}
	switch e.Kind {
	case "not_found":
		return &exitError{exitNotFound, fmt.Errorf("%s: command not found in the sandbox", cmd)}
	case "permission_denied", "not_executable":
		return &exitError{exitNotExec, fmt.Errorf("%s: cannot be executed: %w", cmd, e)}
	}
	return &exitError{exitOwnFailure, fmt.Errorf("%s: not started (%s): %w", cmd, e.Kind, e)}
}

package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"msb/cmd/msb/session"
	"msb/vmm"
)

// runOptions are the flags of run.
type runOptions struct {
	machine machine
	process commandFlags
	detach  bool
}

func newRunCmd(app *app) *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run [IMAGE] [flags] [-- COMMAND [ARG...]]",
		Short: "Run a command in a new sandbox",
		Long: `Make a sandbox, run a command in it (default: a shell) and pass its exit code through.
Without -n the sandbox is removed at the end, however it ends; with -n it is stopped and
stays. With -d it keeps running, the command in the background, and its name is printed.`,
		Example: `  msb run -- uname -a
  msb run tiny -- sh -c 'exit 7'; echo $?
  msb run debian -n build -m 2G -- make -C /work/repo
  msb run -d -n server -- python3 -m http.server`,
		ValidArgsFunction: app.completeImages,
		RunE: func(cmd *cobra.Command, args []string) error {
			img, argv := args, []string(nil)
			if dash := cmd.ArgsLenAtDash(); dash >= 0 {
				img, argv = args[:dash], args[dash:]
			}
			if len(img) > 1 {
				return &usageError{fmt.Errorf("one image, please; a command comes behind \"--\": msb run %s -- %s", img[0], strings.Join(img[1:], " "))}
			}
			return ownFailure(runSandbox(cmd.Context(), app, &o, firstArg(img), argv))
		},
	}
	cmd.Flags().VarP(nameValue{&o.machine.name}, "name", "n", "name of a sandbox that stays (default: a temporary one)")
	o.machine.flags(app, cmd)
	cmd.Flags().BoolVar(&o.machine.replace, "replace", false, "remove a sandbox of that name first, also when it runs")
	o.process.userFlags(cmd)
	o.process.flags(cmd)
	cmd.Flags().BoolVarP(&o.detach, "detach", "d", false, "leave it running in the background")
	return cmd
}

func runSandbox(ctx context.Context, app *app, o *runOptions, img string, argv []string) (err error) {
	sh, args := session.LoginShell()
	if len(argv) == 0 {
		argv = append([]string{sh}, args...)
	}
	po, err := o.process.options(app, argv)
	if err != nil {
		return err
	}
	m := &o.machine
	m.env, m.user, m.workdir = o.process.env, o.process.user, o.process.workdir
	temporary := m.name == "" && !o.detach
	if m.name == "" {
		m.name = generatedName("run", func() string { return strings.ToLower(rand.Text()) })
	}
	// While the machine is made a signal ends that; once the command runs, signals are the command's, and this
	// process stays to tidy up.
	boot, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if _, err := createSandbox(boot, app, m, img, app.steps(m.quiet || !app.io.ErrTTY())); err != nil {
		return err
	}
	h, err := app.host()
	if err != nil {
		return err
	}
	if !o.detach {
		defer func() {
			if cerr := endRun(app, h, m.name, temporary); cerr != nil {
				fmt.Fprintf(app.io.Err, "msb: %v\n", cerr)
				if err == nil {
					err = &exitError{exitOwnFailure, nil}
				}
			}
		}()
	}
	t, err := app.target(m.name, "")
	if err != nil {
		return err
	}
	c, err := t.dial(boot)
	if err != nil {
		return err
	}
	defer c.Close()
	if boot.Err() != nil {
		return boot.Err()
	}
	if o.detach {
		return detachRun(ctx, app, o, c, po, m.name)
	}
	return app.attach(ctx, c, po, m.name, m.quiet)
}

// endRun stops what run made, or removes it.
func endRun(app *app, h *vmm.Host, name string, temporary bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if temporary {
		return removeSandbox(ctx, app, h, name, true)
	}
	err := h.Stop(ctx, name, vmm.StopOptions{})
	if errors.Is(err, vmm.ErrNotRunning) {
		return nil
	}
	return err
}

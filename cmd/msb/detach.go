package main

import (
	"bytes"
	"context"
	"fmt"

	"msb/agentclient"
	"msb/cmd/msb/session"
	"msb/cmd/msb/terminal"
)

// background starts its arguments in a session of their own, which outlives the command that started them.
const background = `command -v "$1" >/dev/null || { echo "$1: command not found" >&2; exit 127; }
setsid "$@" </dev/null >/tmp/msb-run.log 2>&1 &`

// detachRun starts the command of run -d and prints the sandbox's name. Its output is in the sandbox.
func detachRun(ctx context.Context, app *app, o *runOptions, c *agentclient.Client, po session.Options, name string) error {
	po.Spec.Args = append([]string{"-c", background, "sh", po.Spec.Cmd}, po.Spec.Args...)
	po.Spec.Cmd, po.Spec.TTY, po.NoStdin = "/bin/sh", false, true
	var errs bytes.Buffer
	res, err := session.Run(ctx, c, terminal.Test(bytes.NewReader(nil), app.io.Err, &errs), po)
	if err != nil {
		return err
	}
	if res.Code != 0 {
		return &exitError{max(res.Code, 1), fmt.Errorf("%s: the command did not start: %s", name, bytes.TrimSpace(errs.Bytes()))}
	}
	_, err = fmt.Fprintln(app.io.Out, name)
	return err
}

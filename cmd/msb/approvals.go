package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"msb/cmd/msb/question"
	"msb/turn/approval"
	"msb/turn/socket"
	"msb/turn/visible"
)

// approvalsOptions are the flags of approvals.
type approvalsOptions struct {
	list   bool
	json   bool
	allow  string
	deny   string
	scope  string
	reason string
}

func newApprovalsCmd(app *app) *cobra.Command {
	var o approvalsOptions
	cmd := &cobra.Command{
		Use:   "approvals NAME",
		Short: "Answer what an agent wants to do",
		Long: `On a terminal, wait for requests of all sessions of a sandbox and ask about each, until Ctrl-C.
Elsewhere, and with --list, show those that wait. Several people may answer; the first answer
counts. A request that nobody answers is denied.`,
		Example:           "  msb approvals demo\n  msb approvals demo --list --json\n  msb approvals demo --deny a-12 --reason 'not on a Friday'",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: app.completeNames(1),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			c, err := app.turnSocket(ctx, args[0])
			if err != nil {
				return err
			}
			defer c.Close()
			return app.approvals(ctx, c, &o)
		}),
	}
	f := cmd.Flags()
	f.BoolVar(&o.list, "list", false, "only list what waits")
	f.BoolVar(&o.json, "json", false, "list it as JSON")
	f.StringVar(&o.allow, "allow", "", "allow the request of this id")
	f.StringVar(&o.deny, "deny", "", "deny the request of this id")
	f.StringVar(&o.scope, "scope", approval.ScopeOnce, "how long --allow holds: once, session or workspace")
	f.StringVar(&o.reason, "reason", "", "reason of --deny, which the model is told")
	cmd.MarkFlagsMutuallyExclusive("allow", "deny", "list")
	_ = cmd.RegisterFlagCompletionFunc("scope", cobra.FixedCompletions([]string{approval.ScopeOnce, approval.ScopeSession, approval.ScopeWorkspace}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (a *app) approvals(ctx context.Context, c *socket.Client, o *approvalsOptions) error {
	switch {
	case o.scope != approval.ScopeOnce && o.scope != approval.ScopeSession && o.scope != approval.ScopeWorkspace:
		return &usageError{fmt.Errorf("--scope %q: there are once, session and workspace", o.scope)}
	case o.allow != "":
		return c.Answer(ctx, o.allow, approval.Answer{Allow: true, Scope: o.scope, By: "msb approvals"})
	case o.deny != "":
		return c.Answer(ctx, o.deny, approval.Answer{Reason: o.reason, By: "msb approvals"})
	case o.reason != "":
		return &usageError{errors.New("--reason is of --deny ID")}
	case o.list || o.json || !a.io.InTTY() || !a.io.ErrTTY():
		return a.listApprovals(ctx, c, o.json)
	}
	s, err := a.newAsker(ctx, c, true)
	if err != nil {
		return err
	}
	defer s.stop()
	fmt.Fprintln(a.io.Err, "waiting for requests; Ctrl-C ends this, and nothing is allowed by that")
	select {
	case <-ctx.Done():
		return nil // Ctrl-C is how this ends
	case <-s.over():
		return errors.New("there is nothing to wait for any more: the sandbox ended, or the terminal did")
	}
}

func (a *app) listApprovals(ctx context.Context, c *socket.Client, asJSON bool) error {
	list, err := c.Pending(ctx)
	if err != nil {
		return err
	}
	if asJSON {
		return writeJSON(a.io.Out, append([]approval.Request{}, list...))
	}
	for _, r := range list {
		fmt.Fprintf(a.io.Out, "%s  session %s, asked %s ago\n", visible.Text(r.ID), visible.Text(r.Session[:min(len(r.Session), 8)]), time.Since(r.Asked).Round(time.Second))
		for _, l := range question.Lines(r, a.io.Width()) {
			fmt.Fprintln(a.io.Out, l)
		}
	}
	return nil
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"msb/cmd/msb/question"
	"msb/turn/approval"
	"msb/turn/visible"
)

func newAuditCmd(app *app) *cobra.Command {
	var asJSON bool
	var session string
	cmd := &cobra.Command{
		Use:   "audit NAME",
		Short: "Show who allowed and denied what, and why",
		Long: `Print the log of every decision about a command or an MCP call in a sandbox, oldest first, and of
the rules that were added and removed. The log is only ever appended to.`,
		Example:           "  msb audit demo\n  msb audit demo --json | tail",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: app.completeNames(1),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			h, err := app.ownSandbox(args[0])
			if err != nil {
				return err
			}
			var errs []error
			for e, err := range approval.ReadAudit(auditPath(h.SandboxDir(args[0]))) {
				switch {
				case ctx.Err() != nil:
					return context.Cause(ctx)
				case err != nil:
					errs = append(errs, err)
					continue
				case session != "" && (e.Request == nil || e.Request.Session != session):
					continue
				}
				if err := app.auditEntry(e, asJSON); err != nil {
					return err
				}
			}
			return errors.Join(errs...)
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "entries as JSON, one a line")
	cmd.Flags().StringVar(&session, "session", "", "only of the session with this id")
	return cmd
}

func (a *app) auditEntry(e approval.Entry, asJSON bool) error {
	if asJSON {
		b, err := json.Marshal(e)
		if err != nil {
			return err
		}
		_, err = a.io.Out.Write(append(b, '\n'))
		return err
	}
	text := visible.Text(e.Event)
	switch {
	case e.Rule != nil && e.Event == approval.AuditRuleAdded:
		text = "rule " + visible.Text(e.Rule.ID) + " added: " + e.Rule.Describe()
	case e.Rule != nil:
		text = "rule " + visible.Text(e.Rule.ID) + " removed: " + e.Rule.Describe()
	case e.Request != nil && e.Outcome != nil:
		what := e.Request.Command
		if e.Request.Kind == approval.KindMCP {
			what = e.Request.Server + " · " + e.Request.MCPTool + " " + question.JSON(string(e.Request.Arguments))
		}
		text = fmt.Sprintf("%s: %s", visible.Text(e.Outcome.Tell()), visible.Text(what))
		if e.Outcome.Allowed && e.Outcome.Reason != "" {
			text += " (" + visible.Text(e.Outcome.Reason) + ")"
		}
		if s := e.Request.Session; s != "" {
			text += "  session " + visible.Text(s[:min(len(s), 8)])
		}
		if e.Waited >= time.Second {
			text += ", after " + e.Waited.Round(time.Second).String()
		}
	}
	by := e.By
	if by == "" && e.Outcome != nil {
		by = e.Outcome.By
	}
	if by != "" {
		text += "  by " + visible.Text(by)
	}
	_, err := fmt.Fprintf(a.io.Out, "%s  %s\n", e.Time.Local().Format(time.DateTime), text)
	return err
}

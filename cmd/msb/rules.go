package main

import (
	"context"
	"errors"
	"io/fs"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"msb/turn/approval"
	"msb/turn/socket"
)

func newRulesCmd(app *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rules",
		Short: "List and remove what is allowed without asking",
		Long: `Rules come from answers: "for this session" or "always in this workspace". A rule matches one
whole command, in one folder, or one tool of an MCP server; never a part of anything.`,
		Example: "  msb rules ls demo\n  msb rules rm demo r-12ab34cd",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newRulesLsCmd(app), newRulesRmCmd(app))
	return cmd
}

// withRules works on the rules of a running sandbox through its engine, on those of a stopped one in its file.
func (a *app) withRules(ctx context.Context, name string, live func(c *socket.Client) error, stored func(r *approval.Rules) error) error {
	h, err := a.ownSandbox(name)
	if err != nil {
		return err
	}
	c, err := socket.Dial(ctx, h.TurnSocket(name))
	if err == nil {
		defer c.Close()
		return live(c)
	}
	if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	r, err := approval.OpenRules(rulesPath(h.SandboxDir(name)))
	if err != nil {
		return err
	}
	return stored(r)
}

func newRulesLsCmd(app *app) *cobra.Command {
	var l listing
	cmd := &cobra.Command{
		Use:               "ls NAME",
		Aliases:           []string{"list"},
		Short:             "List the rules of a sandbox's workspace and of its open sessions",
		Example:           "  msb rules ls demo\n  msb rules ls demo --json",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: app.completeNames(1),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			asJSON, err := l.asJSON()
			if err != nil {
				return err
			}
			var list []approval.Rule
			err = app.withRules(ctx, args[0], func(c *socket.Client) (err error) {
				list, err = c.Rules(ctx)
				return err
			}, func(r *approval.Rules) error {
				list = r.List()
				return nil
			})
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(app.io.Out, append([]approval.Rule{}, list...))
			}
			var rows [][]string
			for _, r := range list {
				rows = append(rows, []string{r.ID, r.Added.Local().Format(time.DateTime), r.Describe()})
			}
			return writeTable(app.io.Out, []string{"RULE", "ADDED", "WHAT"}, rows)
		}),
	}
	l.flags(cmd, "")
	return cmd
}

func newRulesRmCmd(app *app) *cobra.Command {
	return &cobra.Command{
		Use:               "rm NAME RULE...",
		Short:             "Remove rules; what they allowed is asked about again",
		Example:           "  msb rules rm demo r-12ab34cd",
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: app.completeNames(1),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			h, err := app.ownSandbox(args[0])
			if err != nil {
				return err
			}
			var errs []error
			err = app.withRules(ctx, args[0], func(c *socket.Client) error {
				for _, id := range args[1:] {
					errs = append(errs, c.RemoveRule(ctx, id))
				}
				return nil
			}, func(r *approval.Rules) error {
				audit, err := approval.OpenAudit(auditPath(h.SandboxDir(args[0])))
				if err != nil {
					return err
				}
				defer audit.Close()
				for _, id := range args[1:] {
					rule, err := r.Remove(id)
					if err == nil {
						err = audit.Append(approval.Entry{Time: time.Now().UTC(), Event: approval.AuditRuleRemoved, Rule: &rule, By: "msb rules"})
					}
					errs = append(errs, err)
				}
				return nil
			})
			return errors.Join(append(errs, err)...)
		}),
	}
}

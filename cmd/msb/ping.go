package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"msb/agentclient"
	"msb/cmd/msb/progress"
	"msb/vmm"
)

// reach is the part that ping and touch share: sandboxes by name, label or socket, one connection each.
type reach struct {
	sel    selection
	socket string
	wait   time.Duration // how long each may take
}

// answerWait is how long the agent of one sandbox may take to answer.
const answerWait = 10 * time.Second

func (r *reach) each(ctx context.Context, app *app, args []string, do func(ctx context.Context, name string, c *agentclient.Client) error) error {
	one := func(t target) error {
		began := time.Now()
		err := r.one(ctx, t, do)
		if errors.Is(err, context.DeadlineExceeded) {
			// Without the cause: its exit code belongs to commands that were given a timeout.
			return fmt.Errorf("%s: no answer in %s", t.name, progress.Seconds(time.Since(began)))
		}
		return err
	}
	if r.socket != "" {
		t, err := app.target("", r.socket)
		if err != nil {
			return err
		}
		return one(t)
	}
	var h *vmm.Host
	h, err := app.host()
	if err != nil {
		return err
	}
	return r.sel.each(ctx, h, args, func(name string) error {
		t, err := app.target(name, "")
		if err != nil {
			return err
		}
		return one(t)
	})
}

func (r *reach) one(ctx context.Context, t target, do func(ctx context.Context, name string, c *agentclient.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, r.wait)
	defer cancel()
	c, err := t.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	return do(ctx, t.name, c)
}

func newPingCmd(app *app) *cobra.Command {
	r := reach{wait: answerWait, sel: selection{stock: true}}
	var touch bool
	cmd := &cobra.Command{
		Use:               "ping NAME...",
		Short:             "Ask the agents of sandboxes for an answer",
		Example:           "  msb ping demo\n  msb ping --socket /run/other/agent.sock",
		ValidArgsFunction: app.completeNames(0),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			return r.each(ctx, app, args, func(ctx context.Context, name string, c *agentclient.Client) error {
				took, err := c.Ping(ctx)
				if err != nil {
					return fmt.Errorf("ping %s: %w", name, err)
				}
				if touch {
					if _, err := c.Touch(ctx); err != nil {
						return fmt.Errorf("touch %s: %w", name, err)
					}
				}
				if r.sel.quiet {
					return nil
				}
				_, err = fmt.Fprintf(app.io.Out, "%s: %.2f ms, generation %d\n", name, float64(took.Microseconds())/1000, c.Ready().NegotiatedVersion)
				return err
			})
		}),
	}
	r.sel.flags(cmd)
	socketFlag(cmd, &r.socket)
	cmd.Flags().BoolVar(&touch, "touch", false, "also count as activity")
	return cmd
}

func newTouchCmd(app *app) *cobra.Command {
	r := reach{wait: answerWait, sel: selection{stock: true}}
	cmd := &cobra.Command{
		Use:               "touch NAME...",
		Short:             "Count as activity, so that --idle-timeout begins anew",
		Example:           "  msb touch demo",
		ValidArgsFunction: app.completeNames(0),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			return r.each(ctx, app, args, func(ctx context.Context, name string, c *agentclient.Client) error {
				if _, err := c.Touch(ctx); err != nil {
					return fmt.Errorf("touch %s: %w", name, err)
				}
				return nil
			})
		}),
	}
	r.sel.flags(cmd)
	socketFlag(cmd, &r.socket)
	return cmd
}

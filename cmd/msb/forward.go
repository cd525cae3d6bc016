package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/spf13/cobra"

	"msb/agentclient"
	"msb/cmd/msb/forward"
	"msb/cmd/msb/terminal"
	"msb/protocol/agent"
)

func newForwardCmd(app *app) *cobra.Command {
	var socket string
	cmd := &cobra.Command{
		Use:   "forward NAME [ADDR:]PORT:PORT...",
		Short: "Reach TCP ports of a sandbox from this host",
		Long: `Listen on ports of this host and carry every connection to a port inside the sandbox, until
Ctrl-C. The host's side comes first: 8080:80 makes port 80 of the sandbox's localhost appear on
port 8080 of this host. PORT alone is the same port on both sides, port 0 of the host any that
is free. Only this host reaches the port, unless ADDR says otherwise. The sandbox needs no
network for it. A sandbox that stops and starts again is connected to again.`,
		Example: `  msb forward demo 8080:80
  msb forward demo 3000 0:5432
  msb forward demo 0.0.0.0:8080:80 [::1]:9000:9000
  msb forward --socket /run/other/agent.sock 8080:80`,
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 || socket != "" {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return app.names(begin, nil), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: interruptible(func(ctx context.Context, args []string) error {
			name, rest, err := nameAndRest(socket, args)
			if err != nil {
				return err
			}
			specs, err := parseForwards(rest)
			if err != nil {
				return &usageError{err}
			}
			t, err := app.target(name, socket)
			if err != nil {
				return err
			}
			err = app.forward(ctx, t, specs)
			if errors.Is(err, context.Canceled) {
				return nil // Ctrl-C is how it ends
			}
			return err
		}),
	}
	socketFlag(cmd, &socket)
	return cmd
}

func parseForwards(args []string) ([]forward.Spec, error) {
	if len(args) == 0 {
		return nil, errors.New("which port? msb forward NAME PORT:PORT")
	}
	specs := make([]forward.Spec, len(args))
	for i, arg := range args {
		var err error
		if specs[i], err = forward.Parse(arg); err != nil {
			return nil, err
		}
	}
	return specs, nil
}

// forwardConnections is how many connections to the sandbox a forward uses: each carries a limited number of streams
// as raw bulk.
const forwardConnections = 4

// forward serves specs until ctx ends. A sandbox that cannot do it is an error before anything listens.
func (a *app) forward(ctx context.Context, t target, specs []forward.Spec) error {
	first, err := t.dial(ctx)
	if err != nil {
		return err
	}
	err = first.Ready().EnsureVersionCompat(agent.TCPConnect)
	first.Close()
	if err != nil {
		return err
	}
	pool := agentclient.NewPool(agentclient.PoolOptions{Size: forwardConnections, Dial: t.dial})
	defer pool.Close()
	listeners, err := forward.Listen(specs)
	if err != nil {
		return err
	}
	defer forward.Close(listeners)
	for _, l := range listeners {
		if _, err := fmt.Fprintf(a.io.Out, "%s -> %s:%d\n", l.Host, t.name, l.Guest); err != nil {
			return err
		}
	}
	trouble := forwardTrouble{app: a, t: t, said: map[uint16]string{}}
	s := forward.Server{
		Dial:   func(ctx context.Context, port uint16) (forward.Stream, error) { return dialPort(ctx, pool, port) },
		Report: trouble.report,
	}
	s.Serve(ctx, listeners)
	return ctx.Err()
}

// dialPort connects to a port of the guest's localhost, by whichever of its two addresses something listens on.
func dialPort(ctx context.Context, pool *agentclient.Pool, port uint16) (forward.Stream, error) {
	c, err := pool.Get(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := c.DialTCP(ctx, "127.0.0.1", port)
	var refused *agentclient.TCPError
	if errors.As(err, &refused) {
		if six, err6 := c.DialTCP(ctx, "::1", port); err6 == nil {
			return six, nil
		}
	}
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// forwardTrouble says what goes wrong, and says it once: a browser tries many times.
type forwardTrouble struct {
	app *app
	t   target

	mu   sync.Mutex
	said map[uint16]string // by the guest's port, until a connection is made
}

func (f *forwardTrouble) report(s forward.Spec, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		delete(f.said, s.Guest)
		return
	}
	text := err.Error()
	if f.said[s.Guest] == text {
		return
	}
	f.said[s.Guest] = text
	fmt.Fprintf(f.app.io.Err, "msb: %s:%d: %s\n", f.t.name, s.Guest, terminal.Indented(text, "     "))
}

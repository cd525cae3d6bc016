package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"msb/agentclient"
	"msb/cmd/msb/progress"
	"msb/cmd/msb/session"
	"msb/cmd/msb/terminal"
	"msb/protocol/turnrpc"
	"msb/tui"
	"msb/tui/plain"
	"msb/turn/config"
	"msb/turn/workspace"
	"msb/vmm"
	"msb/vmm/engine"
	"msb/vmm/store"
)

func newTuiCmd(app *app) *cobra.Command {
	var lines, keys bool
	cmd := &cobra.Command{
		Use:   "tui [NAME]",
		Short: "Open the screen: turns, approvals, shells and files in one place",
		Long: `Open the screen of a sandbox, or of all of them. Leaving it stops nothing: sandboxes and turns go
on. With --plain, ACCESSIBLE=1 or TERM=dumb the same work is done line by line, for screen readers
and for terminals that cannot be drawn on.

Keys can be changed in the settings, by the names that --keys prints:

  screen:
    keys:
      boxes.start: [f5]
      turns.open: [ctrl+g, f4]
    notify: [notify-send, msb]   # told what waits when the terminal is not in focus`,
		Example:           "  msb tui\n  msb tui demo\n  msb tui demo --plain\n  msb tui --keys",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: app.completeNames(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if keys {
				return app.printKeys()
			}
			return app.openScreen(cmd.Context(), firstArg(args), lines, "")
		},
	}
	cmd.Flags().BoolVar(&lines, "plain", false, "line by line, without drawing")
	cmd.Flags().BoolVar(&keys, "keys", false, "print every key and the name of what it does")
	return cmd
}

// openScreen shows the screen, or its line mode, until the user leaves it.
func (a *app) openScreen(ctx context.Context, name string, lines bool, prompt string) error {
	if name != "" {
		if err := store.ValidateName(name); err != nil {
			return &usageError{err}
		}
	}
	host, err := a.host()
	if err != nil {
		return err
	}
	home, err := a.home()
	if err != nil {
		return err
	}
	if name != "" && !home.Exists(name) {
		return unknownSandbox(name)
	}
	settings, keys, err := loadScreen(home.Config)
	if err != nil {
		return err
	}
	cost := costs(home.Config)
	if lines || a.io.Env("ACCESSIBLE") != "" || a.io.Env("TERM") == "dumb" || a.io.Env("TERM") == "" {
		if name, err = onlyRunning(ctx, host, name); err != nil {
			return err
		}
		return plain.Run(ctx, plain.Options{In: a.io.In, Out: a.io.Out, Width: a.io.Width(), Box: name, Socket: home.TurnSocket(name), Cost: cost})
	}
	if !a.io.Interactive() {
		return errors.New("the screen needs a terminal; `msb tui --plain` works line by line, `msb turn` runs one turn")
	}
	done, err := a.io.Guard()
	if err != nil {
		return err
	}
	defer done()
	sh, args := session.LoginShell()
	return tui.Run(ctx, tui.Options{
		Host: host, Name: name, Prompt: prompt, Keys: keys, Notify: settings.Notify, Settings: screenBackend{home.Config}, Shell: append([]string{sh}, args...), Cost: cost,
		Diff: func(ctx context.Context, sb vmm.Sandbox) (string, error) {
			var patch bytes.Buffer
			err := a.inWorkspace(ctx, sb.Name, func(w *workspace.Workspace, c *agentclient.Client) error {
				_, err := w.Diff(ctx, c, &patch)
				return err
			})
			return patch.String(), err
		},
		Create: a.createOnScreen,
		Copy:   a.copyOnScreen,
		Images: func() []string { return a.imageNames("") },
		Audit:  func(sb vmm.Sandbox) string { return auditPath(home.SandboxDir(sb.Name)) },
	})
}

// createOnScreen makes a sandbox; what would be progress on a terminal is said in a line.
func (a *app) createOnScreen(ctx context.Context, b tui.NewBox, report func(string)) error {
	report("making " + b.Name + ": this takes a while when its image has to be built first")
	m := machine{name: b.Name, engine: "qemu", accel: engine.AccelAuto, cpus: b.CPUs, memory: b.MemoryMiB, net: b.Net, quiet: true}
	_, err := createSandbox(ctx, a, &m, b.Image, progress.New(a.io, io.Discard, false, true))
	return err
}

// copyOnScreen is cp between this host and a sandbox, without its progress.
func (a *app) copyOnScreen(ctx context.Context, sb vmm.Sandbox, up bool, from, to string) error {
	quiet := *a
	quiet.io = terminal.Test(nil, io.Discard, io.Discard)
	c := &copying{app: &quiet, opt: cpOptions{quiet: true}, clients: map[string]*agentclient.Client{}}
	defer c.close()
	if up {
		return c.run(ctx, from, sb.Name+":"+to)
	}
	return c.run(ctx, sb.Name+":"+from, to)
}

// printKeys lists the keys of the screen as they are with the settings.
func (a *app) printKeys() error {
	home, err := a.home()
	if err != nil {
		return err
	}
	_, keys, err := loadScreen(home.Config)
	if err != nil {
		return err
	}
	var rows [][]string
	for _, s := range keys.Sections() {
		for _, e := range s.Entries {
			rows = append(rows, []string{e.Action, strings.Join(e.Keys, ", "), e.Help})
		}
	}
	return writeTable(a.io.Out, []string{"ACTION", "KEYS", "WHAT"}, rows)
}

// onlyRunning is the sandbox that is meant when none is named.
func onlyRunning(ctx context.Context, host *vmm.Host, name string) (string, error) {
	if name != "" {
		return name, nil
	}
	list, err := host.List(ctx)
	if err != nil {
		return "", err
	}
	for _, sb := range list {
		if sb.State != store.Running {
			continue
		}
		if name != "" {
			return "", &usageError{errors.New("which sandbox? `msb ls` shows those that run")}
		}
		name = sb.Name
	}
	if name == "" {
		return "", errors.New("no sandbox runs; `msb up demo` makes and starts one")
	}
	return name, nil
}

// costs says what models cost by the settings as they are now.
func costs(settings string) func(model string, u turnrpc.Usage) string {
	prices := make(map[string]*config.Price)
	if c, err := config.Load(settings); err == nil {
		for _, name := range c.ModelNames() {
			if m, err := c.Model(name); err == nil {
				prices[name] = m.Price
			}
		}
	}
	return func(model string, u turnrpc.Usage) string {
		p := prices[model]
		if p == nil {
			return ""
		}
		return fmt.Sprintf("%.4f", p.Cost(u))
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"msb/cmd/msb/progress"
	"msb/controlclient"
	"msb/protocol/control"
	"msb/vmm"
)

// sandboxView is a sandbox as inspect and ls print it in JSON.
type sandboxView struct {
	vmm.Sandbox
	Mounts []mountView `json:"mounts"`
	Live   *liveView   `json:"live,omitempty"` // with --live
}

// liveView is what the runtime of a sandbox says now.
type liveView struct {
	Protocol     string               `json:"protocol"` // "framed" or "json"
	Paused       bool                 `json:"paused"`
	Capabilities control.Capabilities `json:"capabilities"`
	Memory       *control.MemoryState `json:"memory,omitempty"`
	CPU          *control.CPUState    `json:"cpu,omitempty"`
}

// live asks the runtime of a sandbox that runs.
func (t controlled) live(ctx context.Context) (*liveView, error) {
	c, err := t.connect()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var v liveView
	if v.Paused, err = c.Paused(ctx); err != nil {
		var unknown *controlclient.ReplyError
		if t.own != nil || !errors.As(err, &unknown) { // older stock runtimes have no pause
			return nil, t.problem(err)
		}
	}
	if v.Capabilities, err = c.Capabilities(ctx); err != nil {
		return nil, t.problem(err)
	}
	mode, err := c.Mode(ctx)
	if err != nil {
		return nil, t.problem(err)
	}
	v.Protocol = mode.String()
	// A machine without a size of its own refuses these.
	if m, err := c.MemoryState(ctx); err == nil {
		v.Memory = &m
	}
	if s, err := c.CPUState(ctx); err == nil {
		v.CPU = &s
	}
	return &v, ctx.Err()
}

// mountView is one mount of a sandbox on the host.
type mountView struct {
	Dir   string `json:"dir"`   // mount point on the host
	Path  string `json:"path"`  // directory in the sandbox
	PID   int    `json:"pid"`   // process that serves it
	State string `json:"state"` // "connected", or "waiting" while the sandbox does not run
}

func viewOf(sb vmm.Sandbox) sandboxView {
	v := sandboxView{Sandbox: sb, Mounts: []mountView{}}
	state := "waiting"
	if sb.State == "running" {
		state = "connected"
	}
	for _, m := range sb.Mounts {
		v.Mounts = append(v.Mounts, mountView{Dir: m.Dir, Path: m.GuestPath, PID: m.PID, State: state})
	}
	return v
}

func newInspectCmd(app *app) *cobra.Command {
	var list listing
	var live bool
	var socket string
	cmd := &cobra.Command{
		Use:               "inspect NAME",
		Short:             "Show everything about one sandbox",
		Example:           "  msb inspect demo\n  msb inspect demo --json | jq -r .agent_socket",
		ValidArgsFunction: app.completeNames(1),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			asJSON, err := list.asJSON()
			if err != nil {
				return err
			}
			t, err := app.controlled(ctx, args, socket)
			if err != nil {
				return err
			}
			if t.own == nil {
				return inspectOther(ctx, app, t, live, asJSON)
			}
			v := viewOf(*t.own)
			if live {
				if v.Live, err = t.live(ctx); err != nil {
					return err
				}
			}
			if asJSON {
				return writeJSON(app.io.Out, v)
			}
			return inspectTable(app, v)
		}),
	}
	list.flags(cmd, "")
	cmd.Flags().BoolVar(&live, "live", false, "also ask its runtime for the size that it has now")
	controlFlag(cmd, &socket)
	return cmd
}

func inspectTable(app *app, v sandboxView) error {
	state := string(v.State)
	if v.Paused {
		state += ", paused"
	}
	if v.Reason != "" {
		state += " (" + v.Reason + ")"
	}
	rows := [][]string{
		{"state", state},
		{"engine", engineText(v.Sandbox)},
		{"image", fmt.Sprintf("%s  %.12s", v.Image, v.ImageSHA256)},
		{"cpus", fmt.Sprintf("%d of at most %d", v.CPUs, v.MaxCPUs)},
		{"memory", fmt.Sprintf("%d MiB of at most %d MiB", v.MemoryMiB, v.MaxMemoryMiB)},
		{"disk", progress.Bytes(v.RootDisk)},
		{"network", map[bool]string{true: "on", false: "off"}[v.Net]},
		{"user", fmt.Sprintf("%s in %s", v.User, v.Workdir)},
		{"created", v.Created.Local().Format(time.DateTime)},
		{"directory", v.Directory},
	}
	if v.Running() {
		rows = append(rows,
			[]string{"started", v.Started.Local().Format(time.DateTime)},
			[]string{"agent", fmt.Sprintf("generation %d  %s", v.Generation, v.AgentVersion)},
			[]string{"processes", fmt.Sprintf("runtime %d, machine %d", v.RuntimePID, v.EnginePID)},
			[]string{"agent socket", v.AgentSocket},
			[]string{"control socket", v.ControlSocket})
	}
	for _, s := range v.Secrets {
		rows = append(rows, []string{"secret", fmt.Sprintf("%s for %s (%s)", s.Name, strings.Join(s.Hosts, ", "), s.From)})
	}
	rows = append(rows, v.Live.rows()...)
	for k, val := range v.Labels {
		rows = append(rows, []string{"label", k + "=" + val})
	}
	for _, m := range v.Mounts {
		rows = append(rows, []string{"mount", fmt.Sprintf("%s -> %s (%s, process %d)", m.Dir, m.Path, m.State, m.PID)})
	}
	return writeTable(app.io.Out, []string{"name", v.Name}, rows)
}

func (l *liveView) rows() (rows [][]string) {
	if l == nil {
		return nil
	}
	if m := l.Memory; m != nil {
		rows = append(rows, []string{"memory now", fmt.Sprintf("%d MiB, target %d MiB, fixed %d MiB, maximum %d MiB", m.CurrentMiB, m.TargetMiB, m.BootMiB, m.MaxMiB)})
	}
	if c := l.CPU; c != nil {
		rows = append(rows, []string{"cpus now", fmt.Sprintf("%d, target %d, enforced %d, maximum %d", c.ActualOnline, c.RequestedOnline, c.Enforced, c.Possible)})
	}
	return append(rows, []string{"control", l.Protocol})
}

// otherView is a sandbox that is not ours: only its runtime can be asked.
type otherView struct {
	Name          string    `json:"name"`
	AgentSocket   string    `json:"agent_socket"`
	ControlSocket string    `json:"control_socket"`
	RuntimePID    int       `json:"runtime_pid"`
	Live          *liveView `json:"live"`
}

func inspectOther(ctx context.Context, app *app, t controlled, live, asJSON bool) error {
	if !live {
		return &usageError{fmt.Errorf("%s is no sandbox of this msb: what there is to know of it has its own; --live asks its runtime", t.name)}
	}
	l, err := t.live(ctx)
	if err != nil {
		return err
	}
	who, err := t.runtime(ctx)
	if err != nil {
		return t.problem(err)
	}
	v := otherView{t.name, t.agent, t.socket, who.PID, l}
	if asJSON {
		return writeJSON(app.io.Out, v)
	}
	state := "running"
	if l.Paused {
		state = "paused"
	}
	rows := append([][]string{
		{"state", state},
		{"processes", fmt.Sprintf("runtime %d", v.RuntimePID)},
		{"agent socket", v.AgentSocket},
		{"control socket", v.ControlSocket},
	}, l.rows()...)
	return writeTable(app.io.Out, []string{"name", v.Name}, rows)
}

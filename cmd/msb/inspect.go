package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"msb/cmd/msb/progress"
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
func (a *app) live(ctx context.Context, h *vmm.Host, sb vmm.Sandbox) (*liveView, error) {
	c, err := controlOf(h, sb)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var v liveView
	if v.Paused, err = c.Paused(ctx); err != nil {
		return nil, controlError(sb, err)
	}
	if v.Capabilities, err = c.Capabilities(ctx); err != nil {
		return nil, controlError(sb, err)
	}
	mode, err := c.Mode(ctx)
	if err != nil {
		return nil, controlError(sb, err)
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
	cmd := &cobra.Command{
		Use:               "inspect NAME",
		Short:             "Show everything about one sandbox",
		Example:           "  msb inspect demo\n  msb inspect demo --json | jq -r .agent_socket",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: app.completeNames(1),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			asJSON, err := list.asJSON()
			if err != nil {
				return err
			}
			h, err := app.host()
			if err != nil {
				return err
			}
			sb, err := h.Inspect(ctx, args[0])
			if errors.Is(err, vmm.ErrNotFound) {
				return unknownSandbox(args[0])
			}
			if err != nil {
				return err
			}
			v := viewOf(sb)
			if live {
				if v.Live, err = app.live(ctx, h, sb); err != nil {
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
	if l := v.Live; l != nil {
		if m := l.Memory; m != nil {
			rows = append(rows, []string{"memory now", fmt.Sprintf("%d MiB, target %d MiB, fixed %d MiB, maximum %d MiB", m.CurrentMiB, m.TargetMiB, m.BootMiB, m.MaxMiB)})
		}
		if c := l.CPU; c != nil {
			rows = append(rows, []string{"cpus now", fmt.Sprintf("%d, target %d, enforced %d, maximum %d", c.ActualOnline, c.RequestedOnline, c.Enforced, c.Possible)})
		}
		rows = append(rows, []string{"control", l.Protocol})
	}
	for k, val := range v.Labels {
		rows = append(rows, []string{"label", k + "=" + val})
	}
	for _, m := range v.Mounts {
		rows = append(rows, []string{"mount", fmt.Sprintf("%s -> %s (%s, process %d)", m.Dir, m.Path, m.State, m.PID)})
	}
	return writeTable(app.io.Out, []string{"name", v.Name}, rows)
}

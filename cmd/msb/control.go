package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"msb/controlclient"
	"msb/protocol/control"
	"msb/vmm"
	"msb/vmm/store"
)

// controlled is the sandbox whose runtime a command talks to: one of ours, one of a stock installation, or the one
// behind a socket.
type controlled struct {
	name   string // as the user typed it; the socket's path when there is no name
	socket string // control socket
	agent  string // agent socket
	host   *vmm.Host
	own    *vmm.Sandbox // nil: it has no directory in our home
}

// controlFlag adds --socket, which stands in place of NAME.
func controlFlag(cmd *cobra.Command, path *string) {
	cmd.Flags().StringVar(path, "socket", "", "control socket (or agent socket) of any sandbox, in place of NAME")
	_ = cmd.MarkFlagFilename("socket", "sock")
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if *path != "" {
			return cobra.NoArgs(cmd, args)
		}
		return cobra.ExactArgs(1)(cmd, args)
	}
}

// controlled finds the sandbox called by the one argument, or the one behind socket.
func (a *app) controlled(ctx context.Context, args []string, socket string) (controlled, error) {
	name := ""
	if len(args) > 0 {
		name = args[0]
	}
	t, err := a.target(name, socket)
	if err != nil {
		return controlled{}, err
	}
	c := controlled{name: t.name, socket: store.ControlSocketOf(t.socket), agent: t.socket}
	switch base := filepath.Base(t.socket); {
	case t.path && (base == "control.sock" || strings.HasSuffix(base, ".control.sock")):
		c.socket, c.agent = t.socket, store.AgentSocketOf(t.socket)
	case t.own:
		h, sb, err := a.inspectOwn(ctx, name)
		if err != nil {
			return c, err
		}
		c.socket, c.host, c.own = sb.ControlSocket, h, &sb
	}
	return c, nil
}

// inspectOwn returns a sandbox of ours by name.
func (a *app) inspectOwn(ctx context.Context, name string) (*vmm.Host, vmm.Sandbox, error) {
	if err := store.ValidateName(name); err != nil {
		return nil, vmm.Sandbox{}, &usageError{err}
	}
	h, err := a.host()
	if err != nil {
		return nil, vmm.Sandbox{}, err
	}
	sb, err := h.Inspect(ctx, name)
	if errors.Is(err, vmm.ErrNotFound) {
		return nil, sb, unknownSandbox(name)
	}
	return h, sb, err
}

// connect connects to the runtime. Nothing is sent to any other process.
func (t controlled) connect() (*controlclient.Connection, error) {
	if t.own != nil && t.own.State != store.Running {
		return nil, fmt.Errorf("sandbox %q is not running; start it with `msb start %s`", t.name, t.name)
	}
	return controlclient.Connect(t.socket, controlclient.WithRuntime(t.runtime)), nil
}

// runtime is the process that must serve the control socket: of a sandbox of ours the one in its record, of any other
// the one that serves its agent socket. Where there is no agent socket nobody can tell, and who serves it is believed.
func (t controlled) runtime(ctx context.Context) (controlclient.Identity, error) {
	if t.own != nil {
		now, err := t.host.Inspect(ctx, t.name)
		return controlclient.Identity{PID: now.RuntimePID, Start: now.RuntimeStart}, err
	}
	who, err := controlclient.Listener(ctx, t.agent)
	if errors.Is(err, fs.ErrNotExist) {
		return controlclient.Listener(ctx, t.socket)
	}
	return who, err
}

// problem says in one sentence what a request to the runtime came to.
func (t controlled) problem(err error) error {
	var refused *control.Error
	var negative *controlclient.ReplyError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused):
		return fmt.Errorf("%s: %s", t.name, refused.Message)
	case errors.As(err, &negative):
		return fmt.Errorf("%s: %s", t.name, negative.Message)
	case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%s: %w", t.name, err)
	case t.own == nil:
		return fmt.Errorf("%s: nobody serves %s: is that sandbox running?", t.name, t.socket)
	}
	return fmt.Errorf("%s: nobody serves its control socket: it was started by an older msb, or is ending; restart it with `msb restart %s`", t.name, t.name)
}

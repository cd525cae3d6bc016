package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"msb/controlclient"
	"msb/protocol/control"
	"msb/vmm"
	"msb/vmm/store"
)

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

// control connects to the runtime of a sandbox that runs. Nothing is sent to any other process.
func controlOf(h *vmm.Host, sb vmm.Sandbox) (*controlclient.Connection, error) {
	if sb.State != store.Running {
		return nil, fmt.Errorf("sandbox %q is not running; start it with `msb start %s`", sb.Name, sb.Name)
	}
	return controlclient.Connect(sb.ControlSocket, controlclient.WithRuntime(func(ctx context.Context) (controlclient.Identity, error) {
		now, err := h.Inspect(ctx, sb.Name)
		return controlclient.Identity{PID: now.RuntimePID, Start: now.RuntimeStart}, err
	})), nil
}

// controlError says in one sentence what a request to the runtime came to.
func controlError(sb vmm.Sandbox, err error) error {
	var refused *control.Error
	var negative *controlclient.ReplyError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused):
		return fmt.Errorf("%s: %s", sb.Name, refused.Message)
	case errors.As(err, &negative):
		return fmt.Errorf("%s: %s", sb.Name, negative.Message)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%s: nobody serves its control socket: it was started by an older msb, or is ending; restart it with `msb restart %s`", sb.Name, sb.Name)
	}
	return fmt.Errorf("%s: %w", sb.Name, err)
}

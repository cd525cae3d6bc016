package main

import (
	"context"
	"errors"
	"io"
	"sync"
	"syscall"

	"msb/agentclient"
	"msb/vmm/shells"
)

// shellWindow is how much output waits unread on its way here, in bytes.
const shellWindow = 256 << 10

// shellsOverAgent starts programs over connections to a sandbox's agent: one for all
// of them, dialed when the first is started, and anew when it was lost.
func shellsOverAgent(dial func(ctx context.Context) (*agentclient.Client, error)) shells.Starter {
	var mu sync.Mutex
	var c *agentclient.Client
	return func(ctx context.Context, s shells.Spec) (shells.Program, error) {
		mu.Lock()
		defer mu.Unlock()
		if c != nil && c.Err() != nil {
			c.Close()
			c = nil
		}
		if c == nil {
			fresh, err := dial(ctx)
			if err != nil {
				return nil, err
			}
			c = fresh
		}
		e, err := c.Exec(ctx, agentclient.ExecSpec{Cmd: s.Argv[0], Args: s.Argv[1:], Env: s.Env, User: s.User, Cwd: s.Cwd,
			TTY: true, Rows: s.Rows, Cols: s.Cols, Window: shellWindow})
		var failed *agentclient.ExecError
		if errors.As(err, &failed) {
			return nil, errors.Join(shells.ErrCommand, err)
		}
		if err != nil {
			return nil, err
		}
		return &shellProgram{Reader: e.Stdout(), Writer: e.Stdin(), exec: e}, nil
	}
}

type shellProgram struct {
	io.Reader
	io.Writer
	exec *agentclient.Exec
}

func (c *shellProgram) Resize(ctx context.Context, rows, cols uint16) error {
	return c.exec.Resize(ctx, rows, cols)
}

func (c *shellProgram) Signal(ctx context.Context, sig syscall.Signal) error {
	return c.exec.Signal(ctx, int(sig))
}

func (c *shellProgram) Wait() shells.End {
	code, err := c.exec.Wait()
	if err != nil {
		return shells.End{Code: -1, Error: err.Error()}
	}
	sig, _ := c.exec.Signaled()
	return shells.End{Code: code, Signal: int(sig)}
}

func (c *shellProgram) Close() { c.exec.Close() }

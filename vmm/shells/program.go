package shells

import (
	"context"
	"errors"
	"io"
	"sync"
	"syscall"

	"msb/agentclient"
)

// Spec is a program to start on a terminal of the sandbox.
type Spec struct {
	Argv, Env  []string
	User, Cwd  string
	Rows, Cols uint16
}

// Program is a started one. Its methods may be called at the same time.
type Program interface {
	io.ReadWriter // its terminal
	Resize(ctx context.Context, rows, cols uint16) error
	Signal(ctx context.Context, sig syscall.Signal) error
	// Wait returns after the end, when everything was read.
	Wait() End
	// Close kills it.
	Close()
}

// Starter starts programs.
type Starter func(ctx context.Context, s Spec) (Program, error)

// window is how much output waits unread on its way here, in bytes.
const window = 256 << 10

// OverAgent starts programs over connections to a sandbox's agent: one for all
// of them, dialed when the first is started, and anew when it was lost.
func OverAgent(dial func(ctx context.Context) (*agentclient.Client, error)) Starter {
	var mu sync.Mutex
	var c *agentclient.Client
	return func(ctx context.Context, s Spec) (Program, error) {
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
			TTY: true, Rows: s.Rows, Cols: s.Cols, Window: window})
		var failed *agentclient.ExecError
		if errors.As(err, &failed) {
			return nil, errors.Join(ErrCommand, err)
		}
		if err != nil {
			return nil, err
		}
		return &command{Reader: e.Stdout(), Writer: e.Stdin(), exec: e}, nil
	}
}

type command struct {
	io.Reader
	io.Writer
	exec *agentclient.Exec
}

func (c *command) Resize(ctx context.Context, rows, cols uint16) error {
	return c.exec.Resize(ctx, rows, cols)
}

func (c *command) Signal(ctx context.Context, sig syscall.Signal) error {
	return c.exec.Signal(ctx, int(sig))
}

func (c *command) Wait() End {
	code, err := c.exec.Wait()
	if err != nil {
		return End{Code: -1, Error: err.Error()}
	}
	sig, _ := c.exec.Signaled()
	return End{Code: code, Signal: int(sig)}
}

func (c *command) Close() { c.exec.Close() }

package shell

import (
	"context"
	"io"

	"msb/agentclient"
)

// InSandbox opens shells over the agent of a sandbox; argv is the program.
func InSandbox(socket string, argv []string) Opener {
	return func(ctx context.Context, rows, cols uint16) (Process, error) {
		c, err := agentclient.Dial(ctx, socket)
		if err != nil {
			return nil, err
		}
		e, err := c.Exec(ctx, agentclient.ExecSpec{Cmd: argv[0], Args: argv[1:], TTY: true, Rows: rows, Cols: cols,
			Env: env, Window: 256 << 10})
		if err != nil {
			c.Close()
			return nil, err
		}
		return &command{c: c, e: e, out: e.Stdout(), in: e.Stdin()}, nil
	}
}

// command is a command of a sandbox on a connection of its own.
type command struct {
	c   *agentclient.Client
	e   *agentclient.Exec
	out io.Reader
	in  io.Writer
}

func (c *command) Read(p []byte) (int, error)  { return c.out.Read(p) }
func (c *command) Write(p []byte) (int, error) { return c.in.Write(p) }
func (c *command) Wait() (int, error)          { return c.e.Wait() }
func (c *command) Resize(ctx context.Context, rows, cols uint16) error {
	return c.e.Resize(ctx, rows, cols)
}

func (c *command) Close() error {
	c.e.Close()
	return c.c.Close()
}

package warden

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"msb/guest/turn"
)

// Client asks the warden: it is the turn.Runner and turn.Machine of an agent. It is safe for concurrent use.
type Client struct {
	mu   sync.Mutex
	sock *socket
}

func newClient(fd int) *Client { return &Client{sock: newSocket(fd, "warden")} }

// Close gives the warden up; it ends when its peer is gone.
func (c *Client) Close() error { return c.sock.Close() }

func (c *Client) ask(r request, dir *os.File, maxFDs int) ([]*os.File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var err error
	if dir == nil {
		err = c.sock.send(r)
	} else {
		conn, cerr := dir.SyscallConn()
		if cerr != nil {
			return nil, cerr
		}
		cerr = conn.Control(func(fd uintptr) { err = c.sock.send(r, int(fd)) })
		err = errors.Join(err, cerr)
	}
	if err != nil {
		return nil, err
	}
	var a answer
	files, err := c.sock.receive(&a, maxFDs)
	if err != nil {
		return nil, fmt.Errorf("the starter of commands is gone: %w", err)
	}
	if a.Error != "" {
		closeAll(files)
		return nil, errors.New(a.Error)
	}
	return files, nil
}

// process is a running command.
type process struct {
	stdin, stdout, stderr *os.File
	control               *socket
	once                  sync.Once
}

// Start starts a command. A program that is missing shows in Wait.
func (c *Client) Start(ctx context.Context, cmd turn.Command) (turn.Process, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	files, err := c.ask(request{Op: opStart, Argv: cmd.Argv, Env: cmd.Env}, cmd.Dir, 4)
	if err != nil {
		return nil, fmt.Errorf("start the command: %w", err)
	}
	if len(files) != 4 {
		closeAll(files)
		return nil, errors.New("start the command: the starter of commands gave a wrong answer")
	}
	// Received files are in blocking mode; ours must wake up when they are closed.
	p := &process{
		stdin:   pollable(files[0], "stdin"),
		stdout:  pollable(files[1], "stdout"),
		stderr:  pollable(files[2], "stderr"),
		control: &socket{f: pollable(files[3], "keeper")},
	}
	return p, nil
}

func pollable(f *os.File, name string) *os.File {
	fd := dup(int(f.Fd()))
	f.Close()
	_ = unix.SetNonblock(fd, true)
	return os.NewFile(uintptr(fd), name)
}

// Files are the command's input and outputs.
func (p *process) Files() (stdin io.WriteCloser, stdout, stderr io.ReadCloser) {
	return p.stdin, p.stdout, p.stderr
}

// Kill kills the command and everything that came from it. Wait still has to be called.
func (p *process) Kill() {
	p.once.Do(func() {
		if conn, err := p.control.f.SyscallConn(); err == nil {
			_ = conn.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_WR) })
		}
	})
}

// Wait waits until the command has ended and everything that came from it is gone.
func (p *process) Wait() (turn.ExitStatus, error) {
	defer p.control.Close()
	var st status
	if _, err := p.control.receive(&st, 0); err != nil {
		return turn.ExitStatus{}, fmt.Errorf("the keeper of the command is gone: %w", err)
	}
	if st.Error != "" {
		return turn.ExitStatus{}, errors.New(st.Error)
	}
	return turn.ExitStatus{Code: st.Code, Signal: st.Signal, Left: st.Left}, nil
}

// Sync writes out the file system that a folder is on.
func (c *Client) Sync(dir *os.File) error {
	_, err := c.ask(request{Op: opSync}, dir, 0)
	return err
}

// Freeze does that and stops the file system until Thaw, or for half a minute.
func (c *Client) Freeze(dir *os.File) error {
	_, err := c.ask(request{Op: opFreeze}, dir, 0)
	return err
}

// Thaw ends a Freeze.
func (c *Client) Thaw() error {
	_, err := c.ask(request{Op: opThaw}, nil, 0)
	return err
}

// SetClock sets the clock of a machine that is the sandbox's own.
func (c *Client) SetClock(t time.Time) error {
	_, err := c.ask(request{Op: opClock, Micro: t.UnixMicro()}, nil, 0)
	return err
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"msb/agentclient"
	"msb/vmm/store"
)

// target is the sandbox that a client command talks to: one of ours, one of a stock installation, or any socket.
type target struct {
	name   string // as the user typed it; the socket's path when there is no name
	socket string
	path   bool // there is no name
	own    bool // it has a directory in our home
}

// socketFlag adds --socket, which stands in place of NAME.
func socketFlag(cmd *cobra.Command, path *string) {
	cmd.Flags().StringVar(path, "socket", "", "agent socket of any sandbox, in place of NAME")
	_ = cmd.MarkFlagFilename("socket", "sock")
}

// target finds the sandbox called name, or the one behind socket.
func (a *app) target(name, socket string) (target, error) {
	if socket != "" {
		abs, err := filepath.Abs(socket)
		if err != nil {
			return target{}, err
		}
		return target{name: socket, socket: abs, path: true}, store.CheckSocketPath(abs)
	}
	h, err := a.home()
	if err != nil {
		return target{}, err
	}
	if h.Exists(name) {
		return target{name: name, socket: h.AgentSocket(name), own: true}, nil
	}
	if path, err := store.StockAgentSocket(name); err == nil && name != "" {
		return target{name: name, socket: path}, nil
	}
	if err := store.ValidateName(name); err != nil {
		return target{}, &usageError{err}
	}
	return target{}, unknownSandbox(name)
}

func unknownSandbox(name string) error {
	return fmt.Errorf("%w: %q; `msb ls` shows those there are, `msb create -n %s` makes it", store.ErrNotFound, name, name)
}

// nameAndRest splits the arguments of a command that takes NAME first, unless --socket is given.
func nameAndRest(socket string, args []string) (name string, rest []string, err error) {
	if socket != "" {
		return "", args, nil
	}
	if len(args) == 0 {
		return "", nil, &usageError{errors.New("which sandbox? give its NAME, or --socket PATH")}
	}
	return args[0], args[1:], nil
}

// dial connects to the agent of t and says what to do when that fails.
func (t target) dial(ctx context.Context) (*agentclient.Client, error) {
	c, err := agentclient.Dial(ctx, t.socket)
	switch {
	case err == nil:
		return c, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case t.own && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)):
		return nil, fmt.Errorf("sandbox %q is not running; start it with `msb start %s`", t.name, t.name)
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("no agent socket at %s: is that sandbox running?", t.socket)
	case errors.Is(err, syscall.ECONNREFUSED) && !isSocket(t.socket):
		return nil, fmt.Errorf("%s is not a socket", t.socket)
	case errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("nobody listens at %s any more: its sandbox is not running", t.socket)
	}
	if t.path {
		return nil, err // which names the path
	}
	return nil, fmt.Errorf("connect to %s: %w", t.name, err)
}

func isSocket(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().Type() == fs.ModeSocket
}

// completeNames completes the names of sandboxes, as long as fewer than most (0: any number) are given.
func (a *app) completeNames(most int) func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return func(_ *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
		if most > 0 && len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.names(begin, args), cobra.ShellCompDirectiveNoFileComp
	}
}

func (a *app) names(begin string, but []string) []string {
	h, err := a.home()
	if err != nil {
		return nil
	}
	all, err := h.List()
	if err != nil {
		return nil
	}
	var found []string
	for _, n := range all {
		taken := false
		for _, b := range but {
			taken = taken || b == n
		}
		if !taken && strings.HasPrefix(n, begin) {
			found = append(found, n)
		}
	}
	return found
}

func (a *app) completeImages(_ *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.imageNames(begin), cobra.ShellCompDirectiveNoFileComp
}

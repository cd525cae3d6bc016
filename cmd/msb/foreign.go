package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"msb/protocol/turnrpc"
	"msb/turn"
	"msb/turn/socket"
	"msb/vmm/store"
)

// rpcOptions are about a guest that is not a sandbox of ours and dials a socket of ours.
type rpcOptions struct {
	socket string
	config string
}

func (o *rpcOptions) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.socket, "rpc-socket", "", "serve a guest that dials this Unix socket, in place of NAME")
	f.StringVar(&o.config, "rpc-config", "", "where to write what that guest must know, as JSON (default: the socket's path and .json)")
	_ = cmd.MarkFlagFilename("rpc-socket")
	_ = cmd.MarkFlagFilename("rpc-config")
}

// accept tells the guest its session and secret, in a file of mode 0600 that is removed after it has dialled.
func (o *rpcOptions) accept(ctx context.Context, a *app, c turnrpc.GuestConfig) (io.ReadWriteCloser, error) {
	l, err := turn.Listen(o.socket)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	path := o.config
	if path == "" {
		path = o.socket + ".json"
	}
	b, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return nil, err
	}
	if err := store.WriteFile(path, append(b, '\n'), 0o600); err != nil {
		return nil, fmt.Errorf("the guest's configuration: %w", err)
	}
	defer os.Remove(path) // it has been read, or never will be
	fmt.Fprintf(a.io.Err, "waiting for a guest at %s; its configuration is %s\n", o.socket, path)
	return l.Accept(ctx)
}

// randomHex is a random number of n bytes.
func randomHex(n int) string {
	b := make([]byte, n)
	rand.Read(b)
	return hex.EncodeToString(b)
}

// withForeignGuest runs an engine here for a guest that dials a socket. Its sessions are kept under the socket's name.
func (a *app) withForeignGuest(ctx context.Context, o *rpcOptions, do func(c *socket.Client) error) error {
	h, err := a.home()
	if err != nil {
		return err
	}
	quiet := slog.New(slog.DiscardHandler)
	e, err := newTurnEngine(engineParts{
		name: filepath.Base(o.socket), dir: filepath.Join(h.Root, "guests", filepath.Base(o.socket)), settings: h.Config,
		dial: func(ctx context.Context, c turnrpc.GuestConfig) (io.ReadWriteCloser, error) {
			return o.accept(ctx, a, c)
		}, log: quiet,
	})
	if err != nil {
		return err
	}
	defer e.close()
	dir, err := os.MkdirTemp("", "msb-turn-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "turn.sock")
	listener, err := socket.Listen(path)
	if err != nil {
		return err
	}
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	served := make(chan error, 1)
	go func() { served <- serveTurns(serving, e.Engine, listener, quiet) }()
	defer func() { stop(); <-served }()
	c, err := socket.Dial(ctx, path)
	if err != nil {
		return err
	}
	defer c.Close()
	return do(c)
}

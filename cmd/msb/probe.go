package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path"
	"sort"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"msb/protocol/turnrpc"
	"msb/turn"
	"msb/turn/visible"
	"msb/turn/workspace"
)

func newProbeCmd(app *app) *cobra.Command {
	var rpc rpcOptions
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "probe NAME",
		Short: "Ask the turn agent in a sandbox what it is",
		Long: `Start the turn agent of a sandbox, of any protocol version, look at the files of its workspace
through it, and end it. No model is asked.`,
		Example:           "  msb probe demo\n  msb probe --rpc-socket /run/guest/rpc.sock",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: app.completeNames(1),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			name := firstArg(args)
			if (name == "") == (rpc.socket == "") {
				return &usageError{errors.New("which sandbox? give its NAME, or --rpc-socket PATH")}
			}
			return app.probe(ctx, name, &rpc, asJSON)
		}),
	}
	rpc.flags(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return cmd
}

// probeTimeout bounds everything but the wait for a guest that dials.
const probeTimeout = 45 * time.Second

func (a *app) probe(ctx context.Context, name string, rpc *rpcOptions, asJSON bool) error {
	config := turnrpc.GuestConfig{SessionID: randomHex(16), Capability: randomHex(32), RepoDir: turnrpc.DefaultRepoDir}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	var rwc io.ReadWriteCloser
	var err error
	if rpc.socket != "" {
		rwc, err = rpc.accept(ctx, a, config)
	} else {
		h, herr := a.ownSandbox(name)
		if herr != nil {
			return herr
		}
		t := target{name: name, socket: h.AgentSocket(name), own: true}
		c, derr := t.dial(ctx)
		if derr != nil {
			return derr
		}
		c.Close()
		guest := agentGuest{socket: t.socket, work: workspace.At(workspaceDir(h, name)), log: slog.New(slog.DiscardHandler)}
		rwc, err = guest.dial(ctx, config)
	}
	if err != nil {
		return err
	}
	s, err := turn.Probe(ctx, rwc, turn.Options{ID: config.SessionID, Capability: config.Capability})
	if err != nil {
		return err
	}
	defer s.Close()
	files, err := s.ListFiles(ctx, turnrpc.ListFiles{Path: ".", Depth: 4, Limit: 50})
	if err != nil {
		return fmt.Errorf("list files: %w", err)
	}
	caps := s.Capabilities()
	if asJSON {
		return writeJSON(a.io.Out, struct {
			Capabilities turn.Capabilities `json:"capabilities"`
			Image        string            `json:"image"`
			Extensions   map[string]int    `json:"extensions,omitempty"`
			Files        []string          `json:"files"`
		}{caps, s.ImageID(), s.Extensions(), append([]string{}, files...)})
	}
	out := a.io.Out
	fmt.Fprintf(out, "guest ready: protocol %d, image %s\n", caps.Protocol, visible.Text(s.ImageID()))
	var names []string
	for n := range s.Extensions() {
		names = append(names, n)
	}
	sort.Strings(names)
	if len(names) > 0 {
		fmt.Fprintf(out, "extensions: %s\n", visible.Text(strings.Join(names, ", ")))
	}
	if caps.Protocol < turnrpc.Version {
		fmt.Fprintf(out, "it is too old for turns: make build && make image-update renews it, then restart the sandbox\n")
	}
	fmt.Fprintln(out, "files:")
	for _, f := range files {
		fmt.Fprintln(out, "  "+visible.Text(path.Clean(f)))
	}
	return nil
}

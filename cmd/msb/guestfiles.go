package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"msb/agentclient"
	"msb/protocol/agent"
	"msb/vmm/control"
	"msb/vmm/relay"
	"msb/vmm/runtime"
)

// relayFiles is how the runtime itself looks into a guest and turns its CPUs on and off: as a client of the relay that
// counts as nobody.
type relayFiles struct{ relay *relay.Relay }

func guestOf(s runtime.Sandbox) control.Guest { return relayFiles{s.Relay} }

// Open connects.
func (r relayFiles) Open(ctx context.Context) (control.GuestFiles, error) {
	ours, theirs := net.Pipe()
	r.relay.ServeQuietly(theirs)
	c, err := agentclient.New(ctx, ours)
	if err != nil {
		return nil, fmt.Errorf("connect to the guest: %w", err)
	}
	return quietFiles{c}, nil
}

// dialledFiles is a way to a guest that is not ours: through its agent socket, as any client.
type dialledFiles struct{ socket string }

// Open connects.
func (d dialledFiles) Open(ctx context.Context) (control.GuestFiles, error) {
	c, err := agentclient.Dial(ctx, d.socket)
	if err != nil {
		return nil, fmt.Errorf("connect to the guest: %w", err)
	}
	return quietFiles{c}, nil
}

type quietFiles struct{ c *agentclient.Client }

func (q quietFiles) ReadFile(ctx context.Context, path string, most int) ([]byte, error) {
	f, err := q.c.FS().OpenFile(ctx, path, agent.OpenOptions{Read: true})
	if err != nil {
		return nil, err
	}
	defer f.Close(ctx)
	b := make([]byte, most)
	n, err := f.ReadAt(ctx, b, 0)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return b[:n], err
}

func (q quietFiles) WriteFile(ctx context.Context, path string, data []byte) error {
	f, err := q.c.FS().OpenFile(ctx, path, agent.OpenOptions{Write: true})
	if err != nil {
		return err
	}
	_, err = f.WriteAt(ctx, data, 0)
	return errors.Join(err, f.Close(ctx))
}

func (q quietFiles) Close() error { return q.c.Close() }

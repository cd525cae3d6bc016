package fusefs

import (
	"context"

	"msb/protocol/agent"
)

// pathsOnly is for tests: every guest is treated as one without msb.fs.
var pathsOnly = false

// newBackend connects and chooses by what the guest offers.
func newBackend(ctx context.Context, dir string, dial DialFunc, o Options) (backend, error) {
	l, err := connect(ctx, dial, o.Logger)
	if err != nil {
		return nil, err
	}
	b := newBase(dir, l, o)
	if !pathsOnly && l.current().Ready().Supports(agent.NodeRequest) {
		return newNodeFS(b), nil
	}
	return newPathFS(b), nil
}

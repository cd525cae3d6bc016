// Package turn is the host side of the turn RPC: it talks to the turn agent in
// a sandbox, answers its calls for models, MCP tools and approvals, keeps the
// transcript of every session on disk, and runs the sessions of one sandbox.
package turn

import (
	"context"
	"errors"

	"msb/protocol/turnrpc"
)

// ErrGuestTooOld reports a guest, or a recorded session, whose protocol is
// below the one that brokers models, MCP and approvals. Wrapped errors say
// what to do.
var ErrGuestTooOld = errors.New("guest protocol too old")

// Provider brokers the models of one session. It is safe for concurrent use.
type Provider interface {
	// Open prepares a stream to a model profile.
	Open(ctx context.Context, alias string, rich bool) (turnrpc.ProviderOpened, error)
	// Send adds a piece of the request; the upstream request starts when last.
	Send(ctx context.Context, streamID string, data []byte, last bool) error
	// Cancel ends a stream; an unknown one is ignored.
	Cancel(streamID string)
	// Close ends all streams and waits for them.
	Close()
}

// NewProvider makes the provider of a session. selected names the session's
// model profile; emit sends an event to the guest and blocks while the guest
// is slow.
type NewProvider func(selected func() string, emit func(turnrpc.ProviderEvent) error) Provider

// MCP brokers the MCP servers of one session. It is safe for concurrent use.
type MCP interface {
	List(ctx context.Context) ([]turnrpc.MCPTool, error)
	// Claim is what a server says one of its tools does, such as that it only
	// reads; "" for nothing, and for a tool that is not known.
	Claim(server, tool string) string
	// Call runs a tool that has been approved.
	Call(ctx context.Context, c turnrpc.MCPCall) (turnrpc.MCPResult, error)
	// Cancel ends a call; an unknown one is ignored.
	Cancel(callID string)
	Close() error
}

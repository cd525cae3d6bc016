// Package socket is turn.sock: the server that lives in the process running a
// sandbox, and the client that every front end is. It carries JSON lines.
package socket

import (
	"context"
	"errors"

	"msb/protocol/turnrpc"
	"msb/turn"
	"msb/turn/approval"
)

// Client is a connection to turn.sock, safe for concurrent use. Closing it
// stops nothing but turns started with a lease.
type Client struct{}

var errBuilding = errors.New("being built")

// Dial connects to the socket of a running sandbox.
func Dial(ctx context.Context, path string) (*Client, error) { return nil, errBuilding }

// Close ends the connection.
func (c *Client) Close() error { return nil }

// Done is closed when the connection is gone; Err then says why.
func (c *Client) Done() <-chan struct{} { return nil }

// Err is the reason after Done.
func (c *Client) Err() error { return errBuilding }

// Status asks for the sessions and what waits.
func (c *Client) Status(ctx context.Context) (Status, error) { return Status{}, errBuilding }

// Sessions lists all sessions, newest first.
func (c *Client) Sessions(ctx context.Context) ([]turn.Info, error) { return nil, errBuilding }

// Show returns one session by id, start of an id, or name.
func (c *Client) Show(ctx context.Context, ref string) (turn.Info, error) {
	return turn.Info{}, errBuilding
}

// Open opens a new session or resumes one.
func (c *Client) Open(ctx context.Context, p OpenParams) (turn.Info, error) {
	return turn.Info{}, errBuilding
}

// CloseSession ends a session's guest agent; the session can be resumed.
func (c *Client) CloseSession(ctx context.Context, ref string) error { return errBuilding }

// Rename names a session.
func (c *Client) Rename(ctx context.Context, ref, name string) error { return errBuilding }

// Remove removes a closed session with its transcript.
func (c *Client) Remove(ctx context.Context, ref string) error { return errBuilding }

// StartTurn starts a turn and returns at once.
func (c *Client) StartTurn(ctx context.Context, p TurnParams) (Started, error) {
	return Started{}, errBuilding
}

// Cancel cancels the turn under way; it is no error if there is none.
func (c *Client) Cancel(ctx context.Context, ref string) error { return errBuilding }

// SetModel selects the model profile of the next turns.
func (c *Client) SetModel(ctx context.Context, ref, profile string) error { return errBuilding }

// ExportPatch asks the guest for its patch.
func (c *Client) ExportPatch(ctx context.Context, ref string) (turnrpc.PatchResult, error) {
	return turnrpc.PatchResult{}, errBuilding
}

// Subscribe delivers the events after seq from: those of the past from the
// transcript, then live ones.
func (c *Client) Subscribe(ctx context.Context, ref string, from uint64) (*Events, error) {
	return nil, errBuilding
}

// Events is a subscription. A reader that is slow is waited for; nothing is
// lost and nothing piles up.
type Events struct{}

// Next waits for the next event; io.EOF after the session was removed or closed with Close.
func (e *Events) Next(ctx context.Context) (turn.Event, error) { return turn.Event{}, errBuilding }

// Close ends the subscription.
func (e *Events) Close() error { return nil }

// Approvals watches the requests that wait. A client that may answer
// (approver) counts as someone to ask for as long as the watch is open.
func (c *Client) Approvals(ctx context.Context, approver bool) (*Approvals, error) {
	return nil, errBuilding
}

// Approvals is a watch over the gate.
type Approvals struct{}

// Next waits until the set of waiting requests changes and returns it, oldest
// first. The first call returns at once.
func (a *Approvals) Next(ctx context.Context) ([]approval.Request, error) { return nil, errBuilding }

// Close ends the watch.
func (a *Approvals) Close() error { return nil }

// Pending lists the requests that wait, oldest first.
func (c *Client) Pending(ctx context.Context) ([]approval.Request, error) { return nil, errBuilding }

// Answer answers a request; a late one gets approval.ErrAnswered.
func (c *Client) Answer(ctx context.Context, id string, a approval.Answer) error { return errBuilding }

// Rules lists the rules of this workspace and of open sessions.
func (c *Client) Rules(ctx context.Context) ([]approval.Rule, error) { return nil, errBuilding }

// RemoveRule removes a rule by its id.
func (c *Client) RemoveRule(ctx context.Context, id string) error { return errBuilding }

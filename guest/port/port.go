// Package port is the seam between the guest agent's main loop and its services (exec, files, tcp): how a service
// queues output, and how an admitted input frame reaches it.
package port

import (
	"errors"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

// ErrClosed is returned by Out once the link to the host is gone. Whatever was being sent is lost, and so is the
// operation: a service that sees it stops.
var ErrClosed = errors.New("guest port: the link to the host is closed")

// Owner returns the relay client slot that owns id.
func Owner(id uint32) uint32 { return id / frame.RangeStep }

// Out queues output for the host. It is safe for concurrent use. Frames with the same id leave in the order in which
// they were queued; frames with different ids may overtake each other, and small control frames overtake data.
type Out interface {
	// Send queues one message; the flags follow from its type, and whatever payload refers to may be reused after the
	// return. It blocks under back-pressure when t carries data, and fails with ErrClosed when the link, or the client
	// that owns id, is gone.
	Send(id uint32, t agent.Type, payload any) error

	// SendBulk queues one raw record of at most frame.MaxBulkRecord bytes and returns when payload may be reused. It
	// blocks under back-pressure and fails with ErrClosed as Send does. kind and flow are the wire's values.
	SendBulk(id uint32, kind, flow byte, offset uint64, payload []byte) error
}

// Input is one admitted data frame for a session.
type Input struct {
	ID   uint32
	Data []byte
	// Release gives the frame's transport credit back. It must be called exactly once, when Data has been consumed or
	// dropped; Data must not be touched afterwards.
	Release func()
}

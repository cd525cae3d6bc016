package client

import (
	"errors"
	"fmt"
)

var (
	// ErrClosed is the cause of a LostError after Close on this side.
	ErrClosed = errors.New("connection closed")
	// ErrIDsExhausted means that the connection has no correlation id left.
	// Open a fresh connection; nothing was sent.
	ErrIDsExhausted = errors.New("correlation ids of this connection are used up")
	// ErrStreamClosed is returned by a stream that its owner has closed.
	ErrStreamClosed = errors.New("stream closed")
)

// LostError ends every stream of a connection that is gone, once each.
// Whether a request that was under way took effect is unknown.
type LostError struct {
	Cause error // ErrClosed, io.EOF, a framing or an I/O error
}

func (e *LostError) Error() string { return fmt.Sprintf("connection lost: %v", e.Cause) }

// Unwrap returns Cause.
func (e *LostError) Unwrap() error { return e.Cause }

package controlclient

import (
	"errors"
	"fmt"
)

// HandshakeError is a framed opening that failed. Nothing has been asked for.
type HandshakeError struct {
	Err error // a *control.Error when the runtime refused
}

func (e *HandshakeError) Error() string { return fmt.Sprintf("control handshake: %v", e.Err) }

// Unwrap returns Err.
func (e *HandshakeError) Unwrap() error { return e.Err }

// DiscoveryError is a runtime that did not say by the rules which protocols it
// speaks. It is never a reason to fall back to another one.
type DiscoveryError struct{ Err error }

func (e *DiscoveryError) Error() string { return fmt.Sprintf("control discovery: %v", e.Err) }

// Unwrap returns Err.
func (e *DiscoveryError) Unwrap() error { return e.Err }

// OutcomeUnknownError is a request that the runtime may or may not have carried
// out: it was sent, and its reply did not come or made no sense. Whoever sent it
// has to look at the state before trying again; nothing here tries again.
type OutcomeUnknownError struct {
	Op    string
	Cause error
}

func (e *OutcomeUnknownError) Error() string {
	return fmt.Sprintf("%s: the request was sent and its outcome is unknown: %v", e.Op, e.Cause)
}

// Unwrap returns Cause.
func (e *OutcomeUnknownError) Unwrap() error { return e.Cause }

// ReplyError is a negative reply in the JSON form, which has no codes.
type ReplyError struct {
	Op      string
	Message string
	Raw     []byte // the reply as it came
}

func (e *ReplyError) Error() string { return fmt.Sprintf("%s: %s", e.Op, e.Message) }

// ErrRuntimeChanged says that another process than the sandbox's runtime serves
// the socket. Nothing has been sent.
var ErrRuntimeChanged = errors.New("runtime session changed: the process behind the control socket is not the sandbox's runtime")

// ErrClosed is returned after Close.
var ErrClosed = errors.New("control connection closed")

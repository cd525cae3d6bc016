package socket

import (
	"errors"

	"msb/turn"
	"msb/turn/approval"
)

// Error is a failed request. It unwraps to the error of the server where a
// caller may decide on it: errors.Is works with those of turn and approval.
type Error struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Error returns the message, which says what was tried.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the error that the code stands for, or nil.
func (e *Error) Unwrap() error {
	for _, c := range codes {
		if c.code == e.Code {
			return c.err
		}
	}
	return nil
}

// ErrRequest reports a request that the server does not understand.
var ErrRequest = errors.New("malformed request")

// codes name the errors that callers decide on.
var codes = []struct {
	code string
	err  error
}{
	{"no_session", turn.ErrNoSession},
	{"session_name", turn.ErrSessionName},
	{"session_active", turn.ErrSessionActive},
	{"session_closed", turn.ErrSessionClosed},
	{"turn_active", turn.ErrTurnActive},
	{"guest_too_old", turn.ErrGuestTooOld},
	{"answered", approval.ErrAnswered},
	{"unknown_request", approval.ErrUnknownRequest},
	{"bad_answer", approval.ErrAnswer},
	{"no_rule", approval.ErrNoRule},
	{"bad_request", ErrRequest},
}

// errorOf is how an error goes over the socket.
func errorOf(err error) *Error {
	for _, c := range codes {
		if errors.Is(err, c.err) {
			return &Error{Code: c.code, Message: err.Error()}
		}
	}
	return &Error{Code: "failed", Message: err.Error()}
}

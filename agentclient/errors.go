package agentclient

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"

	"msb/protocol/agent"
)

// UnsupportedOperationError says that the peer's generation is too old for a
// message. Nothing was sent and nothing else on the connection is disturbed.
type UnsupportedOperationError struct {
	Type       agent.Type
	Needs      uint8 // generation that introduced Type
	Negotiated uint8 // generation of this connection's gate
}

func (e *UnsupportedOperationError) Error() string {
	return fmt.Sprintf("%s needs agent generation %d, this sandbox speaks generation %d: restart the sandbox to bring in a current agent",
		e.Type, e.Needs, e.Negotiated)
}

// HandshakeError says that the peer did not open the connection as a relay
// does.
type HandshakeError struct{ Err error }

func (e *HandshakeError) Error() string { return "agent handshake: " + e.Err.Error() }

// Unwrap returns Err.
func (e *HandshakeError) Unwrap() error { return e.Err }

// ProtocolError is an answer that no agent may give. The operation it belongs
// to is over; the connection goes on.
type ProtocolError struct {
	ID      uint32 // of the operation, 0 when that says nothing
	Problem string
}

func (e *ProtocolError) Error() string {
	return fmt.Sprintf("the sandbox's agent broke the protocol (id %d): %s", e.ID, printable(e.Problem))
}

// broken makes a *ProtocolError of what a peer did wrong in an operation.
func broken(id uint32, op string, err error) error {
	var p *ProtocolError
	if errors.As(err, &p) {
		return err
	}
	return &ProtocolError{ID: id, Problem: op + ": " + err.Error()}
}

// AgentError is a core.error: the guest or the relay refused a message.
type AgentError struct {
	Kind      string // "invalid_session", "unsupported_message_type", ...
	Message   string // the peer's own words; not safe for a terminal as they are
	Offending string // the refused message's name, when given
}

func (e *AgentError) Error() string {
	s := fmt.Sprintf("the agent refused: %s: %s", printable(e.Kind), printable(e.Message))
	if e.Offending != "" {
		s += " (" + printable(e.Offending) + ")"
	}
	return s
}

// ExecError is the guest's answer when a command could not be started.
type ExecError struct {
	Kind    string        // one of agent.ExecNotFound, ...
	Errno   syscall.Errno // 0 when the guest names none
	Message string        // the guest's own words; not safe for a terminal as they are
	Stage   string        // what the guest was doing, may be empty
}

func (e *ExecError) Error() string { return "start command: " + printable(e.Message) }

// Unwrap returns Errno when there is one.
func (e *ExecError) Unwrap() error {
	if e.Errno == 0 {
		return nil
	}
	return e.Errno
}

// StdinError says that a command's input could not be written, usually because
// the command has closed it.
type StdinError struct {
	Message string // the guest's own words; not safe for a terminal as they are
	Errno   syscall.Errno
}

func (e *StdinError) Error() string { return "write to command: " + printable(e.Message) }

// Unwrap returns Errno.
func (e *StdinError) Unwrap() error { return e.Errno }

// ErrSpoolFull ends an output of a command that printed more than the spool
// holds while nobody read it. The command is killed: its output is incomplete.
var ErrSpoolFull = errors.New("output that nobody read has filled its spool")

// FSError is a file operation that the guest refused. errors.Is matches Errno
// and so fs.ErrNotExist, fs.ErrExist and fs.ErrPermission.
type FSError struct {
	Op      string // "stat", "open", "read", ...
	Path    string
	Message string        // the guest's own words; not safe for a terminal as they are
	Errno   syscall.Errno // 0 when the message names none
}

func (e *FSError) Error() string {
	if e.Path == "" {
		return fmt.Sprintf("%s: %s", e.Op, printable(e.Message))
	}
	return fmt.Sprintf("%s %s: %s", e.Op, printable(e.Path), printable(e.Message))
}

// Unwrap returns Errno when there is one.
func (e *FSError) Unwrap() error {
	if e.Errno == 0 {
		return nil
	}
	return e.Errno
}

// errnoOf finds the number in a text like "stat: No such file or directory
// (os error 2)"; the last one counts, as the text may quote a file name.
func errnoOf(text string) syscall.Errno {
	const mark = "(os error "
	i := strings.LastIndex(text, mark)
	if i < 0 {
		return 0
	}
	num, _, ok := strings.Cut(text[i+len(mark):], ")")
	if !ok {
		return 0
	}
	n, err := strconv.ParseUint(num, 10, 12)
	if err != nil {
		return 0
	}
	return syscall.Errno(n)
}

// printable makes text of the guest safe to show: control characters and
// bytes that are not UTF-8 are escaped, and it is cut at a sane length.
func printable(s string) string {
	const max = 1024
	cut := ""
	if len(s) > max {
		s, cut = s[:max], "…"
	}
	q := strconv.Quote(s)
	q = q[1 : len(q)-1]
	q = strings.ReplaceAll(q, `\"`, `"`)
	return strings.ReplaceAll(q, `\\`, `\`) + cut
}

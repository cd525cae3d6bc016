// Package approval decides whether what a model wants to do may be done. One
// Gate takes every request, asks rules and then people, and says no whenever
// anything is in doubt: no one to ask, an error, a timeout, a lost connection,
// an answer it does not know.
package approval

import (
	"encoding/json"
	"errors"
	"time"
)

// Kinds of a request.
const (
	KindCommand = "command"
	KindMCP     = "mcp"
)

// Request is one thing that waits for a decision. All text in it comes from a
// model and has to be made harmless before it is shown.
type Request struct {
	ID      string `json:"id"` // made by the gate
	Session string `json:"session"`
	Turn    string `json:"turn"`
	Tool    string `json:"tool"`
	ToolID  string `json:"tool_id,omitempty"`
	Kind    string `json:"kind"`

	Command string        `json:"command,omitempty"`
	Workdir string        `json:"workdir,omitempty"`
	User    string        `json:"user,omitempty"`
	Timeout time.Duration `json:"timeout,omitempty"` // of the command, in nanoseconds; 0: not known

	Server    string          `json:"server,omitempty"`
	MCPTool   string          `json:"mcp_tool,omitempty"`
	Arguments json.RawMessage `json:"arguments,omitempty"`
	// Claim is what the MCP server says its tool does, in words of the host's.
	// Nobody has checked it, and nothing is allowed because of it.
	Claim string `json:"claim,omitempty"`

	Reason string    `json:"reason,omitempty"` // the model's words
	Asked  time.Time `json:"asked"`
	// Deadline is when an unanswered request is denied; zero: with the turn.
	Deadline time.Time `json:"deadline,omitzero"`
	// Matches says in words what a remembered rule would match.
	Matches string `json:"matches,omitempty"`
	// Policy answers instead of people; nil asks them.
	Policy *Policy `json:"-"`
}

// Scopes of an answer: how long it is remembered. A denial is never
// remembered.
const (
	ScopeOnce      = "once"
	ScopeSession   = "session"
	ScopeWorkspace = "workspace"
)

// Answer is what someone decided.
type Answer struct {
	Allow  bool   `json:"allow"`
	Scope  string `json:"scope,omitempty"` // "" is ScopeOnce
	Reason string `json:"reason,omitempty"`
	By     string `json:"by,omitempty"`
}

// Causes of an outcome.
const (
	CauseUser       = "user"
	CauseRule       = "rule"
	CauseTimeout    = "timeout"
	CauseNoApprover = "no_approver"
	CauseCancelled  = "cancelled"
	CauseError      = "error"
)

// Outcome is the decision on a request.
type Outcome struct {
	Allowed bool   `json:"allowed"`
	Cause   string `json:"cause"`
	Reason  string `json:"reason,omitempty"`
	By      string `json:"by,omitempty"`
	Rule    string `json:"rule,omitempty"` // id of the rule that decided
}

// Tell says the decision as the model is told it: who or what said no is kept
// apart.
func (o Outcome) Tell() string {
	var s string
	switch {
	case o.Allowed:
		return "allowed"
	case o.Cause == CauseUser:
		s = "denied by the user"
	case o.Cause == CauseRule:
		s = "denied by a rule"
	case o.Cause == CauseTimeout:
		s = "denied because nobody answered in time"
	case o.Cause == CauseNoApprover:
		s = "denied because there is no one to ask"
	case o.Cause == CauseCancelled:
		s = "denied because the turn ended"
	default:
		s = "denied because the approval failed"
	}
	if o.Reason != "" {
		s += ": " + o.Reason
	}
	return s
}

var (
	// ErrAnswered reports an answer to a request that is already decided.
	ErrAnswered = errors.New("this request has already been answered")
	// ErrUnknownRequest reports an id that no request has.
	ErrUnknownRequest = errors.New("no such approval request")
	// ErrAnswer reports an answer that is not one; it counts as a denial.
	ErrAnswer = errors.New("not a valid answer")
)

package socket

import (
	"encoding/json"
	"time"

	"msb/turn"
	"msb/turn/approval"
)

// OpenParams opens a session: a new one, or an existing one by Session (id,
// start of an id, or name).
type OpenParams struct {
	Session string `json:"session,omitempty"`
	Name    string `json:"name,omitempty"`  // of a new session
	Model   string `json:"model,omitempty"` // profile; "": the default or the recorded one
}

// TurnParams starts a turn.
type TurnParams struct {
	Session  string        `json:"session"`
	Text     string        `json:"text"`
	MaxTurns int           `json:"max_turns,omitempty"`
	Timeout  time.Duration `json:"timeout,omitempty"` // nanoseconds
	Rich     bool          `json:"rich,omitempty"`
	// Lease cancels the turn when this connection ends.
	Lease bool `json:"lease,omitempty"`
	// Policy answers instead of people: nil asks them. It holds for this turn.
	Policy *approval.Policy `json:"policy,omitempty"`
}

// Started is a turn that has started. Its events follow From.
type Started struct {
	Turn string `json:"turn"`
	From uint64 `json:"from"` // last event before the turn
}

// Status is what the server says about itself.
type Status struct {
	Sandbox  string      `json:"sandbox"`
	Sessions []turn.Info `json:"sessions"`
	Pending  int         `json:"pending"`
	Models   []string    `json:"models,omitempty"`
}

// Methods of the socket.
const (
	methodStatus    = "status"
	methodSessions  = "sessions"
	methodShow      = "session.show"
	methodOpen      = "session.open"
	methodClose     = "session.close"
	methodRename    = "session.rename"
	methodRemove    = "session.remove"
	methodModel     = "session.model"
	methodPatch     = "session.patch"
	methodStart     = "turn.start"
	methodCancel    = "turn.cancel"
	methodEvents    = "events.subscribe"
	methodApprovals = "approvals.watch"
	methodNext      = "next"        // what a subscription or watch has, once it has something
	methodEnd       = "unsubscribe" // of either
	methodPending   = "approvals.pending"
	methodAnswer    = "approvals.answer"
	methodRules     = "rules"
	methodRemRule   = "rules.remove"
	methodAbandon   = "abandon" // a request by its id; no answer
)

// request is a line from a client, response one from the server. Every request
// has one response, in any order.
type request struct {
	ID     uint64          `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params,omitempty"`
}

type response struct {
	ID     uint64          `json:"id"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  *Error          `json:"error,omitempty"`
}

type (
	refParams struct {
		Session string `json:"session"`
		Name    string `json:"name,omitempty"`
		Model   string `json:"model,omitempty"`
		Turn    string `json:"turn,omitempty"`
		From    uint64 `json:"from,omitempty"`
	}
	watchParams struct {
		Approver bool `json:"approver"`
	}
	subParams struct {
		Sub uint64 `json:"sub"`
	}
	idParams struct {
		ID string `json:"id"`
	}
	abandonParams struct {
		Request uint64 `json:"request"`
	}
	answerParams struct {
		ID string `json:"id"`
		approval.Answer
	}
	// batch is what next returns: events, or the requests that wait now.
	batch struct {
		Events   []turn.Event       `json:"events,omitempty"`
		Requests []approval.Request `json:"requests,omitempty"`
		End      bool               `json:"end,omitempty"`
		Err      string             `json:"err,omitempty"` // why it ended, if not by itself
	}
)

const (
	// maxRequest bounds a line from a client, in bytes: a prompt and more.
	maxRequest = 8 << 20
	// maxResponse bounds a line from the server, in bytes.
	maxResponse = 64 << 20
	// maxRequests is the number of requests of a connection under way at once.
	// When they are all in use, no more are read.
	maxRequests = 256
	// Of one batch; a single larger event is sent alone.
	batchEvents = 128
	batchBytes  = 256 << 10
)

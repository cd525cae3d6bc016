package socket

import (
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

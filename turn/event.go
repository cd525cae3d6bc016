package turn

import (
	"time"

	"msb/protocol/turnrpc"
	"msb/turn/approval"
)

// Schema is the version of Event's JSON form.
const Schema = 1

// Kinds of an event beside those of turnrpc.AgentEvent. KindUser starts a turn
// and KindEnd is always its last event, also when the guest died.
const (
	KindUser    = turnrpc.EventUser
	KindEnd     = "end"
	KindSession = "session" // status: opened, resumed, closed, lost; text or err: details
	KindModel   = "model"   // text: the profile selected
)

// Statuses of KindSession and KindEnd.
const (
	StatusOpened   = "opened"
	StatusResumed  = "resumed"
	StatusClosed   = "closed"
	StatusLost     = "lost" // the guest went away, or this process did
	StatusCanceled = "canceled"
	StatusTimedOut = "timed_out" // the turn's deadline passed
)

// Codes of KindEnd beside those of the wire and CodeTimeout.
const CodeLost = "lost"

// Event is one line of a session's transcript: the contract's agent event with
// the host's additions.
type Event struct {
	Schema int       `json:"schema"`
	Seq    uint64    `json:"seq"` // counts the lines of the transcript from 1
	Time   time.Time `json:"time"`
	Turn   string    `json:"turn,omitempty"`
	turnrpc.AgentEvent
	// Request and Outcome are of approval events, which the host makes itself.
	Request *approval.Request `json:"request,omitempty"`
	Outcome *approval.Outcome `json:"outcome,omitempty"`
	// Code is of KindEnd: "" for success (Status ok), else the error's code
	// (canceled, agent, guest, host, timeout, lost); Err has the message.
	Code string `json:"code,omitempty"`
}

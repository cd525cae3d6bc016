package bulk

import (
	"golang.org/x/sys/unix"

	"msb/guest/port"
	"msb/protocol/agent"
)

// Ending is why an operation ends before its work is done.
type Ending struct {
	Silent bool   // nobody is left to hear about it
	Reason uint8  // of the core.bulk.cancel that goes first; 0: none goes
	Text   string // of the terminal failure
	Err    error  // what the system said, nil when it is not that which failed
}

// Violation is the ending of an operation whose host broke the protocol.
func Violation(text string) Ending { return Ending{Reason: agent.CancelProtocol, Text: text} }

// Cancelled is the ending of an operation that the host cancelled. Its terminal failure repeats the host's message.
func Cancelled(m agent.BulkCancelPayload) Ending {
	text := port.Clip(m.Message)
	if text == "" {
		text = "the host cancelled the operation"
	}
	return Ending{Text: text, Err: unix.ECANCELED}
}

package relay

import (
	"msb/protocol/agent"
	"msb/protocol/frame"
)

// Tap learns which messages cross, never what is in them. It is called on the path of all data: it must neither block
// nor take long.
type Tap interface {
	// Wants tells whether Crossed is to be called.
	Wants() bool
	Crossed(toGuest bool, client int, id uint32, method string, bytes int)
}

// bulkMethod is what raw records, which have no name, are called.
const bulkMethod = "bulk"

// tapToGuest tells of a client's message.
func (c *client) tapToGuest(p *packet, method string) {
	if t := c.relay.opts.Tap; t != nil && t.Wants() {
		t.Crossed(true, c.slot, p.id(), method, p.size)
	}
}

// tapFromGuest tells of a message of the guest.
func (c *client) tapFromGuest(p *packet) {
	t := c.relay.opts.Tap
	if t == nil || !t.Wants() {
		return
	}
	method := bulkMethod
	if p.flags()&frame.FlagBulk == 0 {
		e, _ := agent.ParseEnvelope(p.body())
		method = e.T
	}
	t.Crossed(false, c.slot, p.id(), method, p.size)
}

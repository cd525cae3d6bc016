package agent

import (
	"time"

	"msb/guest/files"
	"msb/guest/port"
	"msb/protocol/agent"
	"msb/protocol/frame"
)

// bulkService is what both services of raw bulk have in common.
type bulkService interface {
	Bulk(rec frame.Bulk, release func())
	Credit(id uint32, p agent.BulkCreditPayload)
	Finish(id uint32, p agent.BulkFinishPayload)
	Cancel(id uint32, p agent.BulkCancelPayload)
	Has(id uint32) bool
	CloseOwner(owner uint32) (quiet <-chan struct{})
	Close()
}

type fileService interface {
	bulkService
	Request(owner, id uint32, v uint8, p []byte, release func())
	Data(in port.Input)
	// Run streams for the service of nodes.
	Run(f files.Flow) (n uint64, err error)
}

type tcpService interface {
	bulkService
	Connect(owner, id uint32, v uint8, p []byte, release func())
	Data(in port.Input)
	EOF(id uint32, release func())
	Abort(id uint32)
}

// settlePatience is how long the end of a command waits for mounts to see what it changed.
const settlePatience = 500 * time.Millisecond

// sender is the services' way out.
type sender struct{ a *server }

func (a *server) sender() port.Out { return sender{a} }

func (s sender) Send(id uint32, t agent.Type, payload any) error {
	if t == agent.ExecExited {
		// Who hears that a command has ended may look at once at what it did, on a mount too.
		s.a.watch.Settle(settlePatience)
	}
	s.a.activity.sent(t, payload)
	return s.a.out.send(id, t, payload)
}

func (s sender) SendBulk(id uint32, kind, flow byte, offset uint64, payload []byte) error {
	s.a.activity.sentBulk(kind, len(payload))
	if s.a.bulkOut == nil {
		head := make([]byte, frame.BulkOverhead)
		frame.PutBulkHeader(head, id, kind, flow, offset, len(payload))
		return s.a.out.lend(id, entry{head: head, body: payload, data: true})
	}
	if offset == 0 {
		s.a.out.flushed(id) // what accepts the flow leaves before its first record
	}
	head := make([]byte, frame.IncarnationSize+frame.BulkOverhead)
	incarnation := s.a.leases.incarnation(port.Owner(id))
	copy(head, incarnation[:])
	frame.PutBulkHeader(head[frame.IncarnationSize:], id, kind, flow, offset, len(payload))
	return s.a.bulkOut.lend(id, entry{head: head, body: payload, data: true})
}

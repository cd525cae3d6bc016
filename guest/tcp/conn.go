package tcp

import (
	"context"
	"net"
	"sync"
	"time"

	"msb/guest/bulk"
	"msb/guest/port"
	"msb/protocol/agent"
	"msb/protocol/frame"
)

// maxQueuedChunks bounds what a stream may have waiting for its destination. Transport credit and, for bulk, the
// window bound it first.
const maxQueuedChunks = 1024

// chunk is data that waits for the destination.
type chunk struct {
	data    []byte
	release func()
}

// conn is one stream. Its two goroutines send frames for its id; the first sends the terminal one after the second has
// ended, so that nothing follows it.
type conn struct {
	svc      *Service
	own      *owner
	id       uint32
	host     string
	port     uint16
	bulk     bool
	accepted agent.BulkAcceptedPayload
	refused  error // why the offer was not accepted

	ctx    context.Context // ends when over is set
	cancel context.CancelFunc

	mu    sync.Mutex
	nc    *net.TCPConn
	over  *bulk.Ending
	wake  chan struct{} // 1 slot: the queue or done changed
	grant chan struct{} // 1 slot: more credit
	send  bulk.Sender
	recv  bulk.Receiver
	queue []chunk
	done  bool // the host sends no more
}

func newConn(s *Service, o *owner, id uint32, req agent.TCPConnectPayload) *conn {
	c := &conn{
		svc: s, own: o, id: id, host: req.Host, port: req.Port,
		wake: make(chan struct{}, 1), grant: make(chan struct{}, 1),
	}
	c.ctx, c.cancel = context.WithCancel(o.ctx)
	if req.Bulk != nil {
		c.bulk = true
		if c.accepted, c.refused = bulk.AcceptTCP(*req.Bulk); c.refused == nil {
			c.send = bulk.NewSender(c.accepted.MaxRecordPayload, c.accepted.GuestToHostCreditLimit)
			c.recv = bulk.NewReceiver(c.accepted.MaxRecordPayload, c.accepted.HostToGuestCreditLimit)
		}
	}
	return c
}

// End makes the stream end with e, unless it has ended already.
func (c *conn) End(e bulk.Ending) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLocked(e)
}

func (c *conn) endLocked(e bulk.Ending) {
	if c.over != nil {
		return
	}
	c.over = &e
	c.cancel()
	if c.nc != nil {
		_ = c.nc.SetDeadline(time.Unix(1, 0)) // wakes both goroutines
	}
}

// ended returns the ending, nil while there is none.
func (c *conn) ended() *bulk.Ending {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.over
}

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Data takes one core.tcp.data.
func (c *conn) Data(in port.Input) {
	if !c.takeData(in.Data, in.Release) {
		in.Release()
	}
}

func (c *conn) takeData(p []byte, release func()) (kept bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.over != nil:
		return false
	case c.bulk:
		c.endLocked(bulk.Ending{Text: "CBOR TCP data is invalid after raw bulk acceptance"})
		return false
	case c.done:
		c.endLocked(bulk.Ending{Text: "TCP data after the end of the stream"})
		return false
	case len(p) == 0:
		return false
	}
	return c.push(p, release)
}

func (c *conn) eof() {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.over != nil:
	case c.bulk:
		c.endLocked(bulk.Ending{Text: "CBOR TCP EOF is invalid after raw bulk acceptance"})
	default:
		c.done = true
		signal(c.wake)
	}
}

// Record takes one raw record.
func (c *conn) Record(rec frame.Bulk, release func()) {
	if !c.takeRecord(rec, release) {
		release()
	}
}

func (c *conn) takeRecord(rec frame.Bulk, release func()) (kept bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.over != nil:
		return false
	case !c.bulk || c.refused != nil:
		c.endLocked(bulk.Violation("raw bulk record sent to a TCP stream without raw bulk"))
		return false
	case rec.Kind != frame.BulkTCP || rec.Flow != frame.FlowHostToGuest:
		c.endLocked(bulk.Violation("invalid TCP bulk record: another kind or flow"))
		return false
	}
	if err := c.recv.Record(rec.Offset, len(rec.Payload)); err != nil {
		c.endLocked(bulk.Violation("invalid TCP bulk record: " + err.Error()))
		return false
	}
	kept = c.push(rec.Payload, release)
	c.done = c.recv.Finished()
	return kept
}

func (c *conn) push(p []byte, release func()) bool {
	if len(c.queue) >= maxQueuedChunks {
		c.endLocked(bulk.Ending{Reason: agent.CancelResourceLimit, Text: "too much TCP data is waiting for the destination"})
		return false
	}
	c.queue = append(c.queue, chunk{p, release})
	signal(c.wake)
	return true
}

// Finish takes the host's finish: it sends no more.
func (c *conn) Finish(m agent.BulkFinishPayload) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.over != nil:
	case !c.bulk || c.refused != nil:
		c.endLocked(bulk.Violation("bulk finish sent to a TCP stream without raw bulk"))
	case m.Kind != frame.BulkTCP || m.Flow != frame.FlowHostToGuest:
		c.endLocked(bulk.Violation("invalid TCP bulk finish: another kind or flow"))
	default:
		if err := c.recv.Finish(m.FinalOffset, c.svc.split); err != nil {
			c.endLocked(bulk.Violation("invalid TCP bulk finish: " + err.Error()))
			return
		}
		c.done = c.recv.Finished()
		signal(c.wake)
	}
}

// Credit takes the host's credit for the guest's data.
func (c *conn) Credit(m agent.BulkCreditPayload) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.over != nil:
	case !c.bulk || c.refused != nil:
		c.endLocked(bulk.Violation("bulk credit sent to a TCP stream without raw bulk"))
	case m.Kind != frame.BulkTCP || m.Flow != frame.FlowGuestToHost:
		c.endLocked(bulk.Violation("invalid TCP bulk credit: another kind or flow"))
	default:
		advanced, err := c.send.Apply(m.ConsumedOffset, m.CreditLimit)
		if err != nil {
			c.endLocked(bulk.Violation("invalid TCP bulk credit: " + err.Error()))
		} else if advanced {
			signal(c.grant)
		}
	}
}

// run carries the stream and says how it ended.
func (c *conn) run() {
	e := c.serve()
	if o := c.ended(); o != nil {
		e = o // what ended the stream comes before what that did to the socket
	}
	c.End(bulk.Ending{Silent: true}) // no more input
	c.mu.Lock()
	left := c.queue
	c.queue = nil
	c.mu.Unlock()
	for _, w := range left {
		w.release()
	}
	if e == nil {
		_ = c.svc.out.Send(c.id, agent.TCPClosed, agent.Empty{})
	} else {
		c.svc.Tell(c.id, *e)
	}
	c.svc.mu.Lock()
	c.svc.Remove(c.id, e != nil && c.own.ctx.Err() == nil)
	c.own.conns--
	c.svc.mu.Unlock()
}

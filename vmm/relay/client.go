package relay

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

// client is one connection to agent.sock.
type client struct {
	relay *Relay
	conn  net.Conn
	quiet bool // nothing of it is activity
	slot  int
	start uint32 // first id
	end   uint32 // after the last id
	inc   frame.Incarnation
	out   *outbox
	lane  *lane
	// heldBack: the reader waits for room in the lane.
	heldBack atomic.Bool

	mu   sync.Mutex
	open sessions

	ended sync.Once
	why   atomic.Pointer[error] // of the end
}

// errMisuse is why a client that breaks the rules loses its connection.
var errMisuse = errors.New("protocol violation")

func misuse(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errMisuse}, args...)...)
}

// read takes the client's frames until it disconnects or breaks a rule.
func (c *client) read() error {
	src := newSource(c.conn, c.relay.pool)
	for first := true; ; first = false {
		p, err := src.next()
		switch {
		case err == io.EOF:
			return nil
		case errors.Is(err, frame.ErrTooLarge), errors.Is(err, frame.ErrTooShort):
			return misuse("%v", err)
		case err != nil:
			return err
		}
		if err := c.admit(p, first); err != nil {
			return err
		}
	}
}

// admit applies the rules to one frame and passes it on, answers it or refuses it. It takes the packet over.
func (c *client) admit(p *packet, first bool) (err error) {
	r := c.relay
	forwarded := false
	defer func() {
		if !forwarded {
			p.free()
		}
	}()
	id, flags := p.id(), p.flags()
	if id == 0 {
		switch {
		case flags == frame.FlagShutdown:
			return c.shutdown(p, &forwarded)
		case first && r.guest.Generation >= agent.BulkGeneration && frame.IsShmRequest(p.frame()) && len(p.body()) == shmRequestSize:
			c.out.pushRaw(frame.ShmReject)
			return nil
		}
		return misuse("id 0 with flags 0x%02x", flags)
	}
	if id < c.start || id >= c.end {
		return misuse("id %d is outside [%d, %d)", id, c.start, c.end)
	}
	if flags&frame.FlagBulk != 0 {
		ok, err := c.record(p)
		if ok && err == nil {
			forwarded = true
			p.class = data
			c.tapToGuest(p, bulkMethod)
			c.send(p)
		}
		return err
	}
	if flags == frame.FlagShutdown && len(p.body()) == 0 {
		return c.shutdown(p, &forwarded)
	}
	m, err := r.readMessage(p.body())
	if err != nil {
		return misuse("%v", err)
	}
	if m.t == agent.Shutdown {
		return c.shutdown(p, &forwarded)
	}
	if why := r.refusal(m); why != "" {
		if m.v < agent.ErrorGeneration {
			return misuse("%s", why)
		}
		return c.answer(id, agent.Error, m.v, agent.ErrorPayload{Kind: agent.KindUnsupportedType, Message: why, OffendingType: &m.name})
	}
	if flags&frame.FlagSessionStart != 0 {
		if why := r.paused(); why != "" {
			return c.answer(id, agent.Error, m.v, agent.ErrorPayload{Kind: agent.KindInvalidSession, Message: why, OffendingType: &m.name})
		}
	}
	if flags == frame.FlagSessionStart && m.known && m.t.Flags() == frame.FlagSessionStart {
		ok, err := c.begin(id, m)
		if !ok || err != nil {
			return err
		}
	}
	switch m.t {
	case agent.TCPClose:
		// The guest owes no reply: the operation is over once this is sent.
		c.mu.Lock()
		if x, ok := c.open.open[id]; ok && x.kind == agent.TCPConnect {
			c.open.end(id)
			x.bulk.drop()
		}
		c.mu.Unlock()
	case agent.ExecSignal, agent.ExecResize, agent.ExecCredit, agent.NodeCancel:
		p.urgent = true
	}
	if m.known && m.t.IsDataClass() {
		p.class = data
	}
	if m.t != agent.Ping {
		c.active()
	}
	c.tapToGuest(p, m.name)
	forwarded = true
	c.send(p)
	return nil
}

// active counts use of the sandbox.
func (c *client) active() {
	if !c.quiet {
		c.relay.activity.Add(1)
	}
}

// shmRequestSize is the body of a request for shared memory.
const shmRequestSize = 6

func (c *client) send(p *packet) {
	// Nothing to do when the lane is gone: the reader is about to see its connection closed.
	c.relay.sched.push(c.lane, p, &c.heldBack)
}

// shutdown forwards a shutdown request. It does not wait in the client's lane: clients send it and leave.
func (c *client) shutdown(p *packet, forwarded *bool) error {
	r := c.relay
	if len(p.body()) > 0 {
		m, err := r.readMessage(p.body())
		if err != nil {
			return misuse("%v", err)
		}
		if m.t != agent.Shutdown || p.flags() != frame.FlagShutdown {
			if p.id() == 0 {
				return misuse("%s with id 0", m.name)
			}
			*forwarded = true
			c.send(p) // the guest answers: wrong flags
			return nil
		}
		*forwarded = true
		r.sched.pushHost(p)
	} else {
		// Without an envelope a stock guest would end without writing back what it has.
		if err := r.Shutdown(); err != nil {
			return err
		}
	}
	if r.opts.OnShutdown != nil {
		r.opts.OnShutdown()
	}
	return nil
}

// begin registers a session that a request opens. False means that the relay has answered it.
func (c *client) begin(id uint32, m message) (bool, error) {
	r := c.relay
	var op *bulkOp
	if r.guest.Generation >= agent.BulkGeneration && m.v >= agent.BulkGeneration && offers(m) {
		op = &bulkOp{kind: frame.BulkFilesystem}
		if m.t == agent.TCPConnect {
			op.kind = frame.BulkTCP
		}
	}
	c.mu.Lock()
	if _, active := c.open.open[id]; active {
		c.mu.Unlock()
		return false, misuse("id %d opens a second operation while the first one is active", id)
	}
	if r.strictIDs && !c.open.used.add(id) {
		c.mu.Unlock()
		return false, misuse("id %d was used before", id)
	}
	if op != nil && c.open.bulk >= maxBulk {
		c.mu.Unlock()
		why := fmt.Sprintf("more than %d bulk operations at a time", maxBulk)
		switch m.t {
		case agent.TCPConnect:
			return false, c.answer(id, agent.TCPFailed, m.v, agent.TCPFailedPayload{Error: why})
		case agent.NodeRequest:
			return false, c.answer(id, agent.NodeResponse, m.v, agent.NodeResponsePayload{Errno: uint32(syscall.EAGAIN), Message: why})
		}
		return false, c.answer(id, agent.FSResponse, m.v, agent.FSResponsePayload{Error: &why})
	}
	if len(c.open.open) >= maxSessions {
		c.mu.Unlock()
		return false, misuse("more than %d open operations", maxSessions)
	}
	if op != nil {
		// An id that comes again is a new operation: records are no longer late ones of the old.
		delete(c.open.retired, id)
	}
	kind := m.t
	if kind == agent.ExecOpen {
		kind = agent.ExecRequest // a command, however it was asked for
	}
	c.open.start(id, session{kind: kind, bulk: op})
	c.mu.Unlock()
	return true, nil
}

// record checks a raw record; false without an error means that it is dropped.
func (c *client) record(p *packet) (bool, error) {
	if c.relay.guest.Generation < agent.BulkGeneration {
		return false, misuse("raw record for a guest of generation %d", c.relay.guest.Generation)
	}
	rec, err := frame.ParseBulk(p.frame())
	if err != nil {
		return false, misuse("%v", err)
	}
	if rec.Flow != frame.FlowHostToGuest {
		return false, misuse("raw record with flow %d", rec.Flow)
	}
	c.mu.Lock()
	x, ok := c.open.open[rec.ID]
	_, late := c.open.retired[rec.ID]
	c.mu.Unlock()
	switch {
	case ok && x.bulk != nil && x.bulk.kind == rec.Kind:
		copy(p.mem, c.inc[:])
		c.active()
		return true, nil
	case !ok && late:
		return false, nil
	}
	return false, misuse("raw record for id %d, which is no open bulk operation of kind %d", rec.ID, rec.Kind)
}

// answer sends a message to the client as if the guest had.
func (c *client) answer(id uint32, t agent.Type, v uint8, payload any) error {
	wire, err := agent.AppendFrame(nil, id, t, v, payload)
	if err != nil {
		return err
	}
	c.out.waitRoom(len(wire))
	c.out.push(newPacket(wire))
	return nil
}

// close ends the client's connection; its goroutines end and the relay cleans up.
func (c *client) close(why error) {
	c.ended.Do(func() {
		c.why.Store(&why)
		c.out.close()
		c.conn.Close()
	})
}

// cleaning is what the guest is told when the client has gone: kill its commands, then forget its range.
func (c *client) cleaning(written func()) []*packet {
	c.mu.Lock()
	execs := c.open.execs()
	for _, x := range c.open.open {
		x.bulk.drop()
	}
	c.mu.Unlock()
	slices.Sort(execs)
	var packets []*packet
	add := func(id uint32, t agent.Type, payload any) {
		if wire, err := agent.AppendFrame(nil, id, t, agent.Generation, payload); err == nil {
			packets = append(packets, newPacket(wire))
		}
	}
	for _, id := range execs {
		add(id, agent.ExecSignal, agent.ExecSignalPayload{Signal: 9})
	}
	gone := agent.ClientDisconnectedPayload{IDStart: c.start, IDEndExclusive: c.end}
	if c.relay.leased {
		gone.Incarnation = agent.Octets(c.inc[:])
	}
	add(0, agent.ClientDisconnected, gone)
	if n := len(packets); n > 0 {
		packets[n-1].after = written
	}
	return packets
}

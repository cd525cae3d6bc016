package relay

import (
	"fmt"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

// readControl passes what comes from the guest's port on. It ends when the port does; a frame that cannot
// be one is the end too, as nobody knows where the next begins.
func (r *Relay) readControl() error {
	for {
		p, err := r.guest.control.next()
		if err != nil {
			return err
		}
		if err := r.fromGuest(p); err != nil {
			return err
		}
	}
}

// readBulk does the same for the bulk port, where every frame is a record with its client's incarnation.
func (r *Relay) readBulk() error {
	for {
		p, err := r.guest.bulk.next()
		if err != nil {
			return fmt.Errorf("port %s: %w", agent.BulkPortName, err)
		}
		c := r.client(p.id())
		rec, err := frame.ParseBulk(p.frame())
		if err != nil || rec.Flow != frame.FlowGuestToHost {
			r.log.Warn("guest sent a bad record", "id", p.id(), "error", err)
			p.free()
			continue
		}
		if c == nil || frame.Incarnation(p.mem[:headroom]) != c.inc {
			p.free() // late, of a client that has gone
			continue
		}
		c.out.waitRoom(p.size)
		c.bulkRecord(p, rec)
	}
}

// fromGuest routes one frame of the control port.
func (r *Relay) fromGuest(p *packet) error {
	id := p.id()
	switch {
	case id == frame.IDLifecycle:
		r.lifecycle(p)
		p.free()
		return nil
	case id == 0:
		r.uncorrelated(p)
		p.free()
		return nil
	}
	c := r.client(id)
	if c == nil {
		r.orphan(p)
		p.free()
		return nil
	}
	c.out.waitRoom(p.size)
	c.deliver(p)
	return nil
}

// deliver gives a frame of the control port to the client.
func (c *client) deliver(p *packet) {
	r := c.relay
	id := p.id()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tapFromGuest(p)
	x, ok := c.open.open[id]
	if ok || !p.terminal() {
		c.active()
	}
	if ok && r.opts.Output != nil && x.kind == agent.ExecRequest && p.flags() == 0 {
		r.opts.Output(id, p.body())
	}
	if ok && x.bulk != nil && r.guest.Dual() && c.order(p, x.bulk) {
		return
	}
	if p.terminal() && ok {
		c.open.end(id)
		x.bulk.drop()
	}
	c.out.push(p)
}

// order keeps a bulk operation's frames in order across the two ports: records that came before the
// acceptance follow it, and finish with all that comes after it waits for the last record. True means that
// the packet has been taken.
func (c *client) order(p *packet, op *bulkOp) bool {
	if len(op.held) > 0 {
		if len(op.held) >= maxHeldFrames {
			c.relay.log.Warn("guest sent too much behind a finish", "id", p.id())
			c.close(errGuest)
			p.free()
			return true
		}
		op.held = append(op.held, p)
		return true
	}
	if p.terminal() {
		return false
	}
	e, err := agent.ParseEnvelope(p.body())
	if err != nil {
		return false
	}
	switch t, _ := e.Type(); t {
	case agent.BulkAccepted:
		op.accepted = true
		c.out.push(p)
		for op.pending.len() > 0 {
			k := op.pending.pop()
			op.advance(k)
			c.out.push(k)
		}
		return true
	case agent.BulkFinish:
		var f agent.BulkFinishPayload
		if agent.DecodePayload(e.P, &f) == nil && f.Flow == frame.FlowGuestToHost && f.FinalOffset > op.received {
			op.final = f.FinalOffset
			op.held = append(op.held, p)
			return true
		}
	}
	return false
}

func (b *bulkOp) advance(p *packet) {
	if rec, err := frame.ParseBulk(p.frame()); err == nil {
		b.received = max(b.received, rec.Offset+uint64(len(rec.Payload)))
	}
}

// bulkRecord gives a record of the bulk port to the client, in order with the operation's other frames.
func (c *client) bulkRecord(p *packet, rec frame.Bulk) {
	c.mu.Lock()
	defer c.mu.Unlock()
	x, ok := c.open.open[rec.ID]
	if !ok || x.bulk == nil || x.bulk.kind != rec.Kind {
		p.free() // late, of an operation that has ended
		return
	}
	c.tapFromGuest(p)
	op := x.bulk
	if !op.accepted {
		if op.pending.len() >= maxPendingRecords || op.pending.bytes+p.size > maxPendingBytes+frame.MaxWire {
			c.relay.log.Warn("guest sent too many records before accepting the operation", "id", rec.ID)
			c.close(errGuest)
			p.free()
			return
		}
		op.pending.push(p)
		return
	}
	op.received = max(op.received, rec.Offset+uint64(len(rec.Payload)))
	c.active()
	c.out.push(p)
	if len(op.held) > 0 && op.received >= op.final {
		held := op.held
		op.held = nil
		for _, k := range held {
			if k.terminal() {
				c.open.end(rec.ID)
			}
			c.out.push(k)
		}
	}
}

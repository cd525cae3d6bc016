package agentclient

import (
	"context"
	"fmt"
	"io"

	"msb/protocol/agent"
	"msb/protocol/client"
	"msb/protocol/frame"
)

// onePacket is how much data goes out with its request and its end.
const onePacket = 256 << 10

// writing is a file write under way.
type writing struct {
	transfer
	offer agent.BulkOffer
	flow  outflow
	ended bool // the guest has been told the end
}

// write sends all of src to off. With size, src must hold exactly as much. It
// returns how many bytes the guest has taken, which it says at the end only.
func (c *Client) write(ctx context.Context, f streamed, src io.Reader, off int64, size *uint64, bulk bool) (n int64, accepted bool, err error) {
	w := &writing{
		transfer: transfer{c: c, f: f, op: "write", offered: bulk, wake: make(chan struct{}, 1)},
		offer:    agent.BulkOffer{Format: frame.BulkFormat, MaxRecordPayload: frame.DefaultBulkRecordFS},
	}
	small, inMemory := src.(*memory)
	switch {
	case bulk:
		n, err = w.bulk(ctx, off, size, src)
	case inMemory && len(small.p) <= onePacket:
		n, err = w.packet(ctx, off, size, small.p)
	default:
		n, err = w.inline(ctx, off, size, src)
	}
	if err != nil {
		n = 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return n, w.accepted, err
}

// packet sends request, data and end as one packet.
func (w *writing) packet(ctx context.Context, off int64, size *uint64, data []byte) (int64, error) {
	if err := w.c.ready.EnsureVersionCompat(agent.FSRequest); err != nil {
		return 0, err
	}
	if err := w.subscribe(w); err != nil {
		return 0, err
	}
	id, v := w.s.ID(), w.c.ready.EmittedVersion
	p := client.NewPacket(len(data) + 256)
	typ, request := w.f.request(w.op, uint64(off), size, nil)
	b, err := agent.AppendFrame(p.B, id, typ, v, request)
	if err == nil {
		b, err = agent.AppendDataFrame(b, id, agent.FSData, v, data)
	}
	if err == nil {
		b, err = agent.AppendDataFrame(b, id, agent.FSData, v, nil)
	}
	if err != nil {
		p.Free()
		w.unsubscribe()
		return 0, err
	}
	p.B = b
	w.ended = true
	if err := w.s.SendPacket(ctx, client.Data, p); err != nil {
		w.unsubscribe()
		return 0, err
	}
	return int64(len(data)), w.finish(ctx)
}

// inline streams src as CBOR data.
func (w *writing) inline(ctx context.Context, off int64, size *uint64, src io.Reader) (n int64, err error) {
	if err := w.start(ctx, w, off, size, nil); err != nil {
		return 0, err
	}
	p := client.NewPacket(w.c.cfg.record)
	defer p.Free()
	for {
		if over, err := w.state(); over {
			return 0, err
		}
		m, rerr := src.Read(p.B[:w.c.cfg.record])
		if m > 0 {
			n += int64(m)
			if err := w.c.sendData(ctx, w.s, agent.FSData, p.B[:m]); err != nil {
				w.giveUp("")
				return 0, err
			}
		}
		if rerr == nil {
			continue
		}
		w.setEnded()
		if err := w.c.sendData(ctx, w.s, agent.FSData, nil); err != nil {
			w.giveUp("")
			return 0, err
		}
		if rerr != io.EOF {
			w.s.Close()
			return 0, rerr
		}
		return n, w.finish(ctx)
	}
}

// bulk streams src as raw records. Nothing of src is read before the offer is
// accepted.
func (w *writing) bulk(ctx context.Context, off int64, size *uint64, src io.Reader) (n int64, err error) {
	if err := w.start(ctx, w, off, size, &w.offer); err != nil {
		return 0, err
	}
	if _, err := w.waitRoom(ctx); err != nil {
		w.giveUp("cancelled by the caller")
		return 0, err
	}
	for size == nil || uint64(n) < *size {
		p := client.NewPacket(frame.BulkOverhead + w.flow.max)
		buf := p.B[:frame.BulkOverhead+w.flow.max]
		m, rerr := src.Read(buf[frame.BulkOverhead:])
		p.B = buf[:frame.BulkOverhead+m]
		if m == 0 {
			p.Free()
		} else if err := w.record(ctx, p); err != nil {
			w.giveUp("cancelled by the caller")
			return 0, err
		}
		n += int64(m)
		if rerr == io.EOF {
			break
		}
		if rerr != nil {
			w.giveUp("the source failed")
			return 0, rerr
		}
	}
	w.setEnded()
	if err := w.c.send(ctx, w.s, client.Data, agent.BulkFinish, w.flow.finish()); err != nil {
		w.giveUp("cancelled by the caller")
		return 0, err
	}
	return n, w.finish(ctx)
}

// record sends a packet that has room for a record's header before its data.
// It takes p over and splits it where the credit ends.
func (w *writing) record(ctx context.Context, p *client.Packet) error {
	for {
		n := len(p.B) - frame.BulkOverhead
		room, err := w.waitRoom(ctx)
		if err != nil {
			p.Free()
			return err
		}
		if room >= n {
			return w.sendRecord(ctx, p)
		}
		rest := client.NewPacket(len(p.B) - room)
		rest.B = append(rest.B[:frame.BulkOverhead], p.B[frame.BulkOverhead+room:]...)
		p.B = p.B[:frame.BulkOverhead+room]
		if err := w.sendRecord(ctx, p); err != nil {
			rest.Free()
			return err
		}
		p = rest
	}
}

func (w *writing) sendRecord(ctx context.Context, p *client.Packet) error {
	n := len(p.B) - frame.BulkOverhead
	w.mu.Lock()
	frame.PutBulkHeader(p.B, w.s.ID(), frame.BulkFilesystem, frame.FlowHostToGuest, w.flow.sent, n)
	w.flow.sent += uint64(n)
	w.mu.Unlock()
	return w.s.SendPacket(ctx, client.Data, p)
}

// waitRoom waits for the acceptance and then for credit.
func (w *writing) waitRoom(ctx context.Context) (int, error) {
	for {
		w.mu.Lock()
		over, dead, err, room := w.over, w.dead, w.err, 0
		if w.accepted {
			room = w.flow.room()
		}
		w.mu.Unlock()
		switch {
		case over || dead:
			if err == nil {
				err = &ProtocolError{ID: w.s.ID(), Problem: "write: success before the end of the data"}
			}
			return 0, err
		case room > 0:
			return room, nil
		}
		select {
		case <-w.wake:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// finish waits for the answer to a write whose end has been sent.
func (w *writing) finish(ctx context.Context) error {
	for {
		over, err := w.state()
		if over {
			if err != nil {
				w.giveUp("protocol violation")
			}
			return err
		}
		select {
		case <-w.wake:
		case <-ctx.Done():
			w.giveUp("cancelled by the caller")
			return context.Cause(ctx)
		}
	}
}

// state tells whether there is nothing left to wait for.
func (w *writing) state() (over bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over && w.err == nil && !w.ended {
		return true, &ProtocolError{ID: w.s.ID(), Problem: "write: success before the end of the data"}
	}
	return w.over || w.dead, w.err
}

func (w *writing) setEnded() {
	w.mu.Lock()
	w.ended = true
	w.mu.Unlock()
}

// giveUp leaves the write. A CBOR stream can only be ended, not cancelled:
// what the guest has got stays written.
func (w *writing) giveUp(message string) {
	w.mu.Lock()
	unfinished := !w.offered && !w.ended && !w.over
	reason := agent.CancelCaller
	if w.dead {
		reason = agent.CancelProtocol
	}
	w.mu.Unlock()
	if unfinished {
		if p, err := w.c.packet(w.s.ID(), agent.FSData, agent.Data{}); err == nil {
			w.c.engine.Post(client.Data, p)
		}
	}
	w.leave(client.Data, reason, message)
}

// Frame takes what the guest sends for the write.
func (w *writing) Frame(h client.Header, body *client.Body) {
	m, err := w.c.open(h, body)
	w.mu.Lock()
	defer w.mu.Unlock()
	if h.Terminal() {
		w.end(h, m, err)
		return
	}
	if w.dead {
		return
	}
	if err == nil {
		err = w.message(h, m)
	}
	if err != nil {
		w.fail(h.ID, err)
	}
}

func (w *writing) message(h client.Header, m received) error {
	switch m.t {
	case agent.BulkAccepted:
		if !w.offered || w.accepted {
			return unexpected(h.ID, m)
		}
		a, err := accept(m.p, frame.BulkFilesystem, agent.MaskHostToGuest, w.offer)
		if err != nil {
			return err
		}
		w.accepted = true
		w.flow = outflow{kind: a.Kind, max: min(int(a.MaxRecordPayload), w.c.cfg.record), limit: a.HostToGuestCreditLimit}
		w.signal()
	case agent.BulkCredit:
		if !w.accepted {
			return unexpected(h.ID, m)
		}
		if err := w.flow.credit(m.p); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		w.signal()
	case agent.BulkCancel:
		// The answer that follows says why; until it is here nothing more is sent.
		w.flow.limit = w.flow.sent
	case 0:
	default:
		return unexpected(h.ID, m)
	}
	return nil
}

package agentclient

import (
	"errors"
	"io"
	"math"

	"msb/protocol/agent"
	"msb/protocol/client"
	"msb/protocol/frame"
)

// Frame takes what the guest sends for the stream.
func (t *TCPConn) Frame(h client.Header, body *client.Body) {
	if h.Flags == frame.FlagBulk {
		t.record(h.ID, body)
		return
	}
	m, err := t.c.open(h, body)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return
	}
	if err == nil {
		err = t.message(h, m)
	}
	switch {
	case err == nil:
	case h.Terminal():
		t.end(broken(h.ID, "tcp", err))
	default:
		t.abort(broken(h.ID, "tcp", err))
	}
}

func (t *TCPConn) message(h client.Header, m received) error {
	if !t.connected && m.t != agent.TCPConnected && !h.Terminal() && m.t != 0 {
		return unexpected(h.ID, m)
	}
	switch m.t {
	case agent.TCPConnected:
		if t.connected {
			return unexpected(h.ID, m)
		}
		t.connected = true
		if !t.offered {
			t.open()
		}
	case agent.BulkAccepted:
		if !t.offered || t.ready {
			return unexpected(h.ID, m)
		}
		a, err := accept(m.p, frame.BulkTCP, agent.MaskBoth, t.offer)
		if err != nil {
			return err
		}
		t.bulk = true
		t.flowIn = inflow{kind: a.Kind, max: a.MaxRecordPayload, window: t.c.cfg.window, limit: a.GuestToHostCreditLimit}
		t.flowOut = outflow{kind: a.Kind, max: int(a.MaxRecordPayload), limit: a.HostToGuestCreditLimit}
		t.open()
	case agent.TCPData:
		return t.inline(h, m)
	case agent.TCPEOF:
		if t.bulk || t.eofIn {
			return unexpected(h.ID, m)
		}
		t.open()
		t.endIn()
	case agent.BulkCredit:
		if !t.bulk {
			return unexpected(h.ID, m)
		}
		err := t.flowOut.credit(m.p)
		t.signal()
		return err
	case agent.BulkFinish:
		if !t.bulk {
			return unexpected(h.ID, m)
		}
		if err := t.flowIn.finish(m.p); err != nil {
			return err
		}
		t.endIn()
	case agent.TCPClosed:
		if t.bulk && !t.eofIn {
			t.end(io.ErrUnexpectedEOF)
			return nil
		}
		t.end(io.EOF)
	case agent.TCPFailed:
		var p agent.TCPFailedPayload
		if err := agent.DecodePayload(m.p, &p); err != nil {
			return err
		}
		t.end(&TCPError{Addr: string(t.addr), Message: p.Error})
	case agent.Error:
		t.end(agentError(h.ID, m.p))
	case agent.BulkCancel, 0: // the answer that follows says why
	default:
		return unexpected(h.ID, m)
	}
	return nil
}

// inline takes a CBOR data message.
func (t *TCPConn) inline(h client.Header, m received) error {
	if t.bulk || t.eofIn {
		return unexpected(h.ID, m)
	}
	if err := agent.DecodePayload(m.p, &t.data); err != nil {
		return err
	}
	t.open() // a guest that ignored the offer
	err := t.in.put(t.data.Data)
	t.data.Data = nil
	if err != nil {
		t.abort(err)
	}
	return nil
}

// endIn notes the other side's end.
func (t *TCPConn) endIn() {
	t.eofIn = true
	t.in.close(io.EOF)
}

// record takes a raw record.
func (t *TCPConn) record(id uint32, body *client.Body) {
	t.mu.Lock()
	if t.over {
		t.mu.Unlock()
		return
	}
	err := errors.New("raw record without an acceptance")
	if t.bulk {
		err = t.flowIn.record(body)
	}
	if err != nil {
		t.abort(broken(id, "tcp", err))
		t.mu.Unlock()
		return
	}
	n := body.Len()
	t.mu.Unlock()
	t.in.fill(body)

	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed || t.over {
		return
	}
	// Nobody reads any more: let it run off.
	t.flowIn.consumed += uint64(n)
	if credit, due := t.flowIn.credit(math.MaxUint64); due {
		t.c.post(t.s.ID(), client.Control, agent.BulkCredit, credit)
	}
}

// Lost ends the stream with the connection.
func (t *TCPConn) Lost(err *client.LostError) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.over {
		t.end(err)
	}
}

package agentclient

import (
	"encoding/binary"
	"fmt"
	"math"

	"msb/protocol/agent"
	"msb/protocol/client"
	"msb/protocol/frame"
)

// maxBulk is how many raw bulk operations a relay lets one client have open.
const maxBulk = 64

// takeBulk reserves one of the connection's raw bulk operations, or says that
// CBOR data has to do.
func (c *Client) takeBulk() bool {
	if !c.ready.Supports(agent.BulkAccepted) {
		return false
	}
	if c.bulk.Add(1) > maxBulk {
		c.bulk.Add(-1)
		return false
	}
	return true
}

func (c *Client) freeBulk() { c.bulk.Add(-1) }

// inflow checks what a guest sends on its flow of a raw bulk operation.
type inflow struct {
	kind     uint8
	max      uint32 // payload of one record
	window   uint64
	next     uint64 // offset of the next record
	consumed uint64
	limit    uint64 // granted
	finished bool
}

// record takes the header of a record and checks it; the payload is what body
// holds then.
func (f *inflow) record(body *client.Body) error {
	n := body.Len() - frame.BulkHeaderSize
	if n <= 0 {
		return fmt.Errorf("raw record without a payload")
	}
	h, err := body.Next(frame.BulkHeaderSize)
	if err != nil {
		return err
	}
	offset := binary.BigEndian.Uint64(h[4:])
	switch {
	case h[0] != f.kind || h[1] != frame.FlowGuestToHost || h[2] != 0 || h[3] != 0:
		return fmt.Errorf("raw record of kind %d, flow %d, reserved %d", h[0], h[1], binary.BigEndian.Uint16(h[2:]))
	case f.finished:
		return fmt.Errorf("raw record after the finish")
	case uint64(n) > uint64(f.max):
		return fmt.Errorf("raw record of %d bytes, the limit is %d", n, f.max)
	case offset != f.next:
		return fmt.Errorf("raw record at offset %d, expected %d", offset, f.next)
	case f.next > f.limit || uint64(n) > f.limit-f.next:
		return fmt.Errorf("raw record of %d bytes at %d is beyond the credit of %d", n, f.next, f.limit)
	}
	f.next += uint64(n)
	return nil
}

func (f *inflow) finish(p []byte) error {
	var m agent.BulkFinishPayload
	if err := agent.DecodePayload(p, &m); err != nil {
		return err
	}
	switch {
	case m.Kind != f.kind || m.Flow != frame.FlowGuestToHost:
		return fmt.Errorf("bulk finish of kind %d, flow %d", m.Kind, m.Flow)
	case f.finished:
		return fmt.Errorf("second bulk finish")
	case m.FinalOffset != f.next:
		return fmt.Errorf("bulk finish at %d after %d bytes", m.FinalOffset, f.next)
	}
	f.finished = true
	return nil
}

// credit returns the credit that is due, if any. total is how many bytes will
// come at most: no credit is given that the sender cannot need, as a late one
// disturbs it.
func (f *inflow) credit(total uint64) (agent.BulkCreditPayload, bool) {
	if f.finished || f.limit >= total || f.limit-f.consumed > f.window/2 || f.consumed > math.MaxUint64-f.window {
		return agent.BulkCreditPayload{}, false
	}
	f.limit = f.consumed + f.window
	return agent.BulkCreditPayload{Kind: f.kind, Flow: frame.FlowGuestToHost, ConsumedOffset: f.consumed, CreditLimit: f.limit}, true
}

// outflow keeps what we send within the guest's credit.
type outflow struct {
	kind     uint8
	max      int // payload of one record
	sent     uint64
	consumed uint64
	limit    uint64
}

func (f *outflow) credit(p []byte) error {
	var m agent.BulkCreditPayload
	if err := agent.DecodePayload(p, &m); err != nil {
		return err
	}
	switch {
	case m.Kind != f.kind || m.Flow != frame.FlowHostToGuest:
		return fmt.Errorf("bulk credit of kind %d, flow %d", m.Kind, m.Flow)
	case m.ConsumedOffset <= f.consumed && m.CreditLimit <= f.limit:
		return nil
	case m.ConsumedOffset < f.consumed || m.CreditLimit < f.limit:
		return fmt.Errorf("bulk credit goes back: %d/%d after %d/%d", m.ConsumedOffset, m.CreditLimit, f.consumed, f.limit)
	case m.ConsumedOffset > f.sent:
		return fmt.Errorf("bulk credit for %d bytes, %d were sent", m.ConsumedOffset, f.sent)
	case m.CreditLimit < m.ConsumedOffset || m.CreditLimit < f.sent || m.CreditLimit-m.ConsumedOffset > frame.MaxBulkWindow:
		return fmt.Errorf("bulk credit %d at %d consumed and %d sent", m.CreditLimit, m.ConsumedOffset, f.sent)
	}
	f.consumed, f.limit = m.ConsumedOffset, m.CreditLimit
	return nil
}

// room returns how many bytes the next record may have.
func (f *outflow) room() int { return int(min(f.limit-f.sent, uint64(f.max))) }

func (f *outflow) finish() agent.BulkFinishPayload {
	return agent.BulkFinishPayload{Kind: f.kind, Flow: frame.FlowHostToGuest, FinalOffset: f.sent}
}

// accept takes the answer to an offer.
func accept(p []byte, kind, mask uint8, offer agent.BulkOffer) (agent.BulkAcceptedPayload, error) {
	var a agent.BulkAcceptedPayload
	if err := agent.DecodePayload(p, &a); err != nil {
		return a, err
	}
	return a, a.Check(kind, mask, offer)
}

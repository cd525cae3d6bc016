package agent

import (
	"fmt"

	"msb/protocol/frame"
)

// BulkOffer asks for raw records in place of CBOR data. Sizes in bytes.
type BulkOffer struct {
	Format                 uint8  `cbor:"format"`
	MaxRecordPayload       uint32 `cbor:"max_record_payload"`
	GuestToHostCreditLimit uint64 `cbor:"guest_to_host_credit_limit"`
}

// Flow masks of an acceptance.
const (
	MaskHostToGuest uint8 = 1
	MaskGuestToHost uint8 = 2
	MaskBoth        uint8 = 3
)

// BulkAcceptedPayload opens the negotiated flows. Credits are absolute.
type BulkAcceptedPayload struct {
	Kind                   uint8  `cbor:"kind"`
	Flows                  uint8  `cbor:"flows"`
	Format                 uint8  `cbor:"format"`
	MaxRecordPayload       uint32 `cbor:"max_record_payload"`
	HostToGuestCreditLimit uint64 `cbor:"host_to_guest_credit_limit"`
	GuestToHostCreditLimit uint64 `cbor:"guest_to_host_credit_limit"`
}

// Check applies a client's rules to the answer to an offer: kind and mask as
// expected, format 1, record limit within bounds and the offer, the
// guest-to-host limit echoed, each limit non-zero exactly when its flow is on.
func (a BulkAcceptedPayload) Check(kind, mask uint8, offer BulkOffer) error {
	on := func(m uint8) bool { return a.Flows&m != 0 }
	switch {
	case a.Kind != kind:
		return fmt.Errorf("bulk acceptance: kind %d, want %d", a.Kind, kind)
	case a.Flows != mask:
		return fmt.Errorf("bulk acceptance: flows %d, want %d", a.Flows, mask)
	case a.Format != frame.BulkFormat:
		return fmt.Errorf("bulk acceptance: format %d", a.Format)
	case a.MaxRecordPayload < frame.MinBulkRecord || a.MaxRecordPayload > frame.MaxBulkRecord || a.MaxRecordPayload > offer.MaxRecordPayload:
		return fmt.Errorf("bulk acceptance: records of %d bytes, %d were offered", a.MaxRecordPayload, offer.MaxRecordPayload)
	case a.GuestToHostCreditLimit != offer.GuestToHostCreditLimit:
		return fmt.Errorf("bulk acceptance: guest-to-host limit %d, %d was offered", a.GuestToHostCreditLimit, offer.GuestToHostCreditLimit)
	case on(MaskGuestToHost) != (a.GuestToHostCreditLimit != 0), on(MaskHostToGuest) != (a.HostToGuestCreditLimit != 0):
		return fmt.Errorf("bulk acceptance: limits %d and %d do not fit flows %d", a.HostToGuestCreditLimit, a.GuestToHostCreditLimit, a.Flows)
	case a.HostToGuestCreditLimit > frame.MaxBulkWindow:
		return fmt.Errorf("bulk acceptance: host-to-guest limit %d is above %d", a.HostToGuestCreditLimit, frame.MaxBulkWindow)
	}
	return nil
}

// BulkCreditPayload credits a flow: Flow is the credited one.
type BulkCreditPayload struct {
	Kind           uint8  `cbor:"kind"`
	Flow           uint8  `cbor:"flow"`
	ConsumedOffset uint64 `cbor:"consumed_offset"`
	CreditLimit    uint64 `cbor:"credit_limit"`
}

// BulkFinishPayload ends a flow after exactly FinalOffset bytes.
type BulkFinishPayload struct {
	Kind        uint8  `cbor:"kind"`
	Flow        uint8  `cbor:"flow"`
	FinalOffset uint64 `cbor:"final_offset"`
}

// Reasons of a cancel.
const (
	CancelCaller        uint8 = 1
	CancelDestinationIO uint8 = 2
	CancelResourceLimit uint8 = 3
	CancelTransport     uint8 = 4
	CancelProtocol      uint8 = 5
)

// BulkCancelPayload ends an operation.
type BulkCancelPayload struct {
	Kind    uint8  `cbor:"kind"`
	Reason  uint8  `cbor:"reason"`
	Message string `cbor:"message"`
}

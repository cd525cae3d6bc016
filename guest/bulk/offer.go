package bulk

import (
	"errors"
	"fmt"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

// errGeneration is what a request older than generation 8 gets for an offer.
var errGeneration = fmt.Errorf("raw bulk offer requires protocol generation %d", agent.BulkGeneration)

// CheckGeneration refuses an offer in a request of generation v.
func CheckGeneration(v uint8) error {
	if v < agent.BulkGeneration {
		return errGeneration
	}
	return nil
}

// AcceptRead answers the offer of a file read: the guest sends.
func AcceptRead(o agent.BulkOffer) (agent.BulkAcceptedPayload, error) {
	if err := check("filesystem read", o); err != nil {
		return agent.BulkAcceptedPayload{}, err
	}
	if o.GuestToHostCreditLimit == 0 {
		return agent.BulkAcceptedPayload{}, errors.New("filesystem read bulk offer must grant guest-to-host credit")
	}
	return accept(frame.BulkFilesystem, agent.MaskGuestToHost, frame.DefaultBulkRecordFS, o), nil
}

// AcceptWrite answers the offer of a file write: the host sends.
func AcceptWrite(o agent.BulkOffer) (agent.BulkAcceptedPayload, error) {
	if err := check("filesystem write", o); err != nil {
		return agent.BulkAcceptedPayload{}, err
	}
	if o.GuestToHostCreditLimit != 0 {
		return agent.BulkAcceptedPayload{}, errors.New("filesystem write bulk offer must not grant guest-to-host credit")
	}
	return accept(frame.BulkFilesystem, agent.MaskHostToGuest, frame.DefaultBulkRecordFS, o), nil
}

// AcceptTCP answers the offer of a TCP stream: both sides send.
func AcceptTCP(o agent.BulkOffer) (agent.BulkAcceptedPayload, error) {
	if err := check("TCP", o); err != nil {
		return agent.BulkAcceptedPayload{}, err
	}
	if o.GuestToHostCreditLimit == 0 {
		return agent.BulkAcceptedPayload{}, errors.New("TCP bulk offer must grant guest-to-host credit")
	}
	return accept(frame.BulkTCP, agent.MaskBoth, frame.DefaultBulkRecord, o), nil
}

func check(what string, o agent.BulkOffer) error {
	switch {
	case o.Format != frame.BulkFormat:
		return fmt.Errorf("invalid %s bulk offer: unsupported bulk format %d", what, o.Format)
	case o.MaxRecordPayload < frame.MinBulkRecord || o.MaxRecordPayload > frame.MaxBulkRecord:
		return fmt.Errorf("invalid %s bulk offer: record payload limit %d is outside %d..=%d",
			what, o.MaxRecordPayload, frame.MinBulkRecord, frame.MaxBulkRecord)
	case o.GuestToHostCreditLimit > frame.MaxBulkWindow:
		return fmt.Errorf("invalid %s bulk offer: credit limit %d exceeds maximum %d",
			what, o.GuestToHostCreditLimit, frame.MaxBulkWindow)
	}
	return nil
}

func accept(kind, mask uint8, maxRecord uint32, o agent.BulkOffer) agent.BulkAcceptedPayload {
	a := agent.BulkAcceptedPayload{
		Kind:             kind,
		Flows:            mask,
		Format:           o.Format,
		MaxRecordPayload: min(o.MaxRecordPayload, maxRecord),
	}
	if mask&agent.MaskHostToGuest != 0 {
		a.HostToGuestCreditLimit = Window
	}
	if mask&agent.MaskGuestToHost != 0 {
		a.GuestToHostCreditLimit = o.GuestToHostCreditLimit
	}
	return a
}

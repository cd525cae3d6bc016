package agentclient

import (
	"bytes"

	"msb/protocol/agent"
)

// WireFormat tells which prologue the relay spoke.
type WireFormat int

const (
	// WireCurrent is the prologue with an id range.
	WireCurrent WireFormat = iota
	// WireLegacyV1 is the prologue of releases before 0.5, with an id offset.
	WireLegacyV1
)

func (w WireFormat) String() string {
	if w == WireLegacyV1 {
		return "legacy v1"
	}
	return "current"
}

// Ready is what the handshake brought. It does not change.
type Ready struct {
	// NegotiatedVersion gates what may be sent: the lower of both sides'
	// generations, at most 1 on the legacy prologue.
	NegotiatedVersion uint8
	// GuestVersion is the generation that the guest's ready frame carried.
	GuestVersion uint8
	// EmittedVersion is the generation on messages that are sent: this build's
	// own, whatever the gate, or 1 on the legacy prologue.
	EmittedVersion uint8
	WireFormat     WireFormat
	// Info is the guest's own description.
	Info agent.ReadyPayload
	// IDStart and IDEnd (exclusive) are the correlation ids of this connection.
	IDStart, IDEnd uint32

	raw []byte
}

// Supports tells whether messages of type t may be sent to this peer.
func (r *Ready) Supports(t agent.Type) bool {
	return t.AvailableTo(r.NegotiatedVersion, r.Info.Extensions)
}

// EnsureVersionCompat returns an *UnsupportedOperationError when t may not be
// sent to this peer, a *NotOfferedError when it belongs to an extension.
func (r *Ready) EnsureVersionCompat(t agent.Type) error {
	if name, version := t.Extension(); name != "" {
		if r.Supports(t) {
			return nil
		}
		return &NotOfferedError{Extension: name, Needs: version, Offered: r.Info.Extensions[name]}
	}
	return EnsureVersionCompatFor(r.NegotiatedVersion, t)
}

// ReadyBytes returns the ready frame as it was on the wire, with the fields
// that this build does not know.
func (r *Ready) ReadyBytes() []byte { return bytes.Clone(r.raw) }

// EnsureVersionCompatFor is EnsureVersionCompat for callers that kept only the
// negotiated generation. It says no to every extension.
func EnsureVersionCompatFor(negotiated uint8, t agent.Type) error {
	if t.AvailableAt(negotiated) {
		return nil
	}
	return &UnsupportedOperationError{Type: t, Needs: t.Since(), Negotiated: negotiated}
}

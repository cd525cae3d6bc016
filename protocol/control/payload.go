package control

import (
	"fmt"

	"msb/protocol/record"
)

// Hello opens a framed connection.
type Hello struct {
	Protocol      string `cbor:"protocol"`
	MinGeneration uint8  `cbor:"min_generation"`
	MaxGeneration uint8  `cbor:"max_generation"`
	MaxFrameSize  uint32 `cbor:"max_frame_size"`
	MaxInFlight   uint32 `cbor:"max_in_flight"`
}

// DefaultHello is the published client's offer.
func DefaultHello() Hello {
	return Hello{ProtocolName, Generation, Generation, MaxFrameSize, DefaultMaxFlight}
}

// Check returns an error for a hello that no server may accept.
func (h Hello) Check() error {
	switch {
	case h.Protocol != ProtocolName:
		return fmt.Errorf("hello for protocol %q", h.Protocol)
	case h.MinGeneration < 1 || h.MinGeneration > h.MaxGeneration:
		return fmt.Errorf("hello offers generations %d to %d", h.MinGeneration, h.MaxGeneration)
	case h.MaxFrameSize < MinFrameSize || h.MaxFrameSize > MaxFrameSize:
		return fmt.Errorf("hello offers frames of %d bytes, allowed are %d to %d", h.MaxFrameSize, MinFrameSize, MaxFrameSize)
	case h.MaxInFlight < 1:
		return fmt.Errorf("hello offers no request in flight")
	}
	return nil
}

// Welcome answers a hello with what was chosen inside its offer.
type Welcome struct {
	Protocol     string `cbor:"protocol"`
	Generation   uint8  `cbor:"generation"`
	MaxFrameSize uint32 `cbor:"max_frame_size"`
	MaxInFlight  uint32 `cbor:"max_in_flight"`
}

// Check returns an error for a welcome outside the offer.
func (w Welcome) Check(offer Hello) error {
	switch {
	case w.Protocol != offer.Protocol:
		return fmt.Errorf("welcome for protocol %q", w.Protocol)
	case w.Generation < offer.MinGeneration || w.Generation > offer.MaxGeneration:
		return fmt.Errorf("welcome chose generation %d, offered were %d to %d", w.Generation, offer.MinGeneration, offer.MaxGeneration)
	case w.MaxFrameSize < MinFrameSize || w.MaxFrameSize > offer.MaxFrameSize:
		return fmt.Errorf("welcome chose frames of %d bytes, offered were %d", w.MaxFrameSize, offer.MaxFrameSize)
	case w.MaxInFlight < 1 || w.MaxInFlight > offer.MaxInFlight:
		return fmt.Errorf("welcome chose %d requests in flight, offered were %d", w.MaxInFlight, offer.MaxInFlight)
	}
	return nil
}

// Empty is the payload of a query.
type Empty struct{}

// Capabilities says which operations a runtime serves.
type Capabilities struct {
	CPUResize     bool `cbor:"cpu_resize" json:"cpu_resize"`
	MemoryResize  bool `cbor:"memory_resize" json:"memory_resize"`
	SecretsUpdate bool `cbor:"secrets_update" json:"secrets_update"`
}

// MemoryState tells a target from what is there. MiB.
type MemoryState struct {
	BootMiB    uint64 `cbor:"boot_mib" json:"boot_mib"`
	TargetMiB  uint64 `cbor:"target_mib" json:"target_mib"`
	CurrentMiB uint64 `cbor:"current_mib" json:"current_mib"`
	MaxMiB     uint64 `cbor:"max_mib" json:"max_mib"`
}

// MemoryTarget asks for a total, in MiB.
type MemoryTarget struct {
	TotalMiB uint64 `cbor:"total_mib"`
}

// CPUState tells what was asked for from what is there.
type CPUState struct {
	Possible        uint32 `cbor:"possible" json:"possible"`
	RequestedOnline uint32 `cbor:"requested_online" json:"requested_online"`
	ActualOnline    uint32 `cbor:"actual_online" json:"actual_online"`
	Enforced        uint32 `cbor:"enforced" json:"enforced"`
}

// CPUTarget asks for a number of CPUs.
type CPUTarget struct {
	Online uint32 `cbor:"online"`
}

// Kinds of a secret change.
const (
	ChangeRotate          = "rotate"
	ChangeRemove          = "remove"
	ChangeSetAllowedHosts = "set_allowed_hosts"
)

// Change is one entry of a secrets update. Value goes with rotate, Hosts with
// set_allowed_hosts. It prints without its value.
type Change struct {
	Change string   `cbor:"change" json:"change"`
	Name   string   `cbor:"name" json:"name"`
	Value  *string  `cbor:"value,omitempty" json:"value,omitempty"`
	Hosts  []string `cbor:"hosts,omitzero" json:"hosts,omitzero"`
}

// String hides the value, and so do %v and %+v.
func (c Change) String() string { return fmt.Sprintf("%s %q", c.Change, c.Name) }

// GoString hides the value from %#v.
func (c Change) GoString() string { return c.String() }

// Check returns an error for a change that lacks what its kind needs or has
// what it must not have. The error never holds the value.
func (c Change) Check() error {
	var ok bool
	switch c.Change {
	case ChangeRotate:
		ok = c.Value != nil && c.Hosts == nil
	case ChangeRemove:
		ok = c.Value == nil && c.Hosts == nil
	case ChangeSetAllowedHosts:
		ok = c.Value == nil && c.Hosts != nil
	default:
		return record.Malformed("unknown secret change") // not quoted: it may be a value in the wrong place
	}
	if !ok {
		return record.Malformed("the fields of secret change %q do not fit it", c.Change)
	}
	return nil
}

// UnmarshalCBOR applies the strict rules to one entry.
func (c *Change) UnmarshalCBOR(p []byte) error {
	type plain Change
	if err := record.DecodeStrict(p, (*plain)(c)); err != nil {
		return err
	}
	return c.Check()
}

// SecretsUpdate is a batch, applied in order up to the first failure. At most
// MaxChanges.
type SecretsUpdate struct {
	Changes []Change `cbor:"changes"`
}

// Outcomes of a secrets update.
const (
	OutcomeComplete = "complete"
	OutcomeFailed   = "failed"
)

// SecretsResult says how far a batch got. With OutcomeFailed, FailedIndex
// equals AppliedCount and Error is there.
type SecretsResult struct {
	Outcome      string  `cbor:"outcome"`
	AppliedCount uint32  `cbor:"applied_count"`
	FailedIndex  *uint32 `cbor:"failed_index,omitempty"`
	Error        *Error  `cbor:"error,omitempty"`
}

// Check returns an error for a result that contradicts itself.
func (r SecretsResult) Check() error {
	switch {
	case r.Outcome == OutcomeComplete && r.FailedIndex == nil && r.Error == nil:
		return nil
	case r.Outcome == OutcomeFailed && r.Error != nil && r.FailedIndex != nil && *r.FailedIndex == r.AppliedCount:
		return nil
	}
	return record.Malformed("secrets result contradicts itself")
}

// Codes of a control error. Unknown codes are kept as they are.
const (
	CodeInvalidHandshake      = "invalid_handshake"
	CodeUnsupportedGeneration = "unsupported_generation"
	CodeInvalidRequest        = "invalid_request"
	CodeUnsupportedOperation  = "unsupported_operation"
	CodeBusy                  = "busy"
	CodeUnknownSecret         = "unknown_secret"
	CodeInvalidSecretHosts    = "invalid_secret_hosts"
	CodeInternal              = "internal"
)

// Effects of a failed operation. EffectNone promises that nothing changed.
const (
	EffectNone    = "none"
	EffectUnknown = "unknown"
)

// Error is control.error, and the failure inside a secrets result.
type Error struct {
	Code    string `cbor:"code"`
	Message string `cbor:"message"`
	Effect  string `cbor:"effect"`
}

// Error returns code and message.
func (e *Error) Error() string { return e.Code + ": " + e.Message }

// UnmarshalCBOR applies the strict rules where an error is inside a result.
func (e *Error) UnmarshalCBOR(p []byte) error {
	type plain Error
	if err := record.DecodeStrict(p, (*plain)(e)); err != nil {
		return err
	}
	if e.Effect != EffectNone && e.Effect != EffectUnknown {
		return record.Malformed("unknown effect %q", e.Effect)
	}
	return nil
}

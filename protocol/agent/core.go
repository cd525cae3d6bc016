package agent

// Empty is the payload of ping, touch, pong, init.ack, tcp.connected, …: `{}`.
type Empty struct{}

// InitResolvedPayload tells the host whose identity bind mounts map to.
type InitResolvedPayload struct {
	DefaultUser ResolvedUser `cbor:"default_user"`
}

// ResolvedUser is a user of the guest by number.
type ResolvedUser struct {
	UID uint32 `cbor:"uid"`
	GID uint32 `cbor:"gid"`
}

// ReadyPayload is what a guest says when it serves. Times are CLOCK_BOOTTIME
// or durations in nanoseconds.
type ReadyPayload struct {
	BootTimeNS   uint64         `cbor:"boot_time_ns"`
	InitTimeNS   uint64         `cbor:"init_time_ns"`
	ReadyTimeNS  uint64         `cbor:"ready_time_ns"`
	AgentVersion string         `cbor:"agent_version,omitempty"`
	Bulk         *BulkTransport `cbor:"bulk_transport,omitempty"`
	RelayLease   *FormatLimit   `cbor:"relay_lease,omitempty"`
	Local        *FormatLimit   `cbor:"local_transport,omitempty"` // added by a relay only
	// BarrierVersion is 2 when freeze and thaw can be used.
	BarrierVersion *uint8 `cbor:"workload_transport_barrier_version,omitempty"`
	// Extensions are the msb.* messages that the guest serves.
	Extensions Extensions `cbor:"msb_extensions,omitzero"`
}

// BarrierVersion is the only freeze barrier there is.
const BarrierVersion uint8 = 2

// BulkTransport says that raw records travel on a port of their own.
type BulkTransport struct {
	Profile      string `cbor:"profile"`
	Port         string `cbor:"port"`
	ConnectionID Octets `cbor:"connection_id"`
}

// Names of the dual-port transport.
const (
	DualPortProfile = "dual-port-v1"
	ControlPortName = "agent"
	BulkPortName    = "agent-bulk"
	// DualPortCmdline is the kernel command line word that asks for it.
	DualPortCmdline = "microsandbox.agent_transport=dual-port-v1"
)

// FormatLimit names the newest record format a side takes.
type FormatLimit struct {
	MaxFormat uint8 `cbor:"max_format"`
}

// ClientDisconnectedPayload tells the guest that a range's client has gone.
type ClientDisconnectedPayload struct {
	IDStart        uint32 `cbor:"id_start"`
	IDEndExclusive uint32 `cbor:"id_end_exclusive"`
	Incarnation    Octets `cbor:"incarnation,omitzero"` // 16 bytes when leased
}

// ClockSyncPayload is the host's wall clock.
type ClockSyncPayload struct {
	UnixTimeNanos uint64 `cbor:"unix_time_nanos"`
}

// TouchedPayload answers touch.
type TouchedPayload struct {
	ActivitySeq uint64 `cbor:"activity_seq"`
}

// Kinds of core.error.
const (
	KindMalformedMessage      = "malformed_message"
	KindUnsupportedType       = "unsupported_message_type"
	KindUnsupportedGeneration = "unsupported_protocol_generation"
	KindInvalidFlags          = "invalid_flags"
	KindInvalidPayload        = "invalid_payload"
	KindInvalidSession        = "invalid_session"
	KindCapabilityUnavailable = "capability_unavailable" // generation 9
)

// ErrorPayload is core.error.
type ErrorPayload struct {
	Kind            string           `cbor:"kind"`
	Message         string           `cbor:"message"`
	OffendingType   *string          `cbor:"offending_type,omitempty"`
	WorkloadFailure *WorkloadFailure `cbor:"workload_failure,omitempty"`
}

// Dispositions of a workload failure. Unknown ones are never permission.
const (
	DispositionUnavailable      = "unavailable"
	DispositionRecoveryRequired = "recovery_required"
)

// WorkloadFailure says what became of a freeze attempt.
type WorkloadFailure struct {
	AttemptID   string `cbor:"attempt_id"`
	Disposition string `cbor:"disposition"`
}

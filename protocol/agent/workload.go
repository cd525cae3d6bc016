package agent

// Position counts complete frames and their wire bytes, cumulatively.
// control_* is everything that is not data; bulk_* is data whatever port it
// takes: raw records, exec.stdin, fs.data, tcp.data, tcp.eof.
type Position struct {
	ControlBytes  uint64 `cbor:"control_bytes"`
	ControlFrames uint64 `cbor:"control_frames"`
	BulkBytes     uint64 `cbor:"bulk_bytes"`
	BulkFrames    uint64 `cbor:"bulk_frames"`
}

// InitialGrants is what a host may send to a generation 9 guest before its
// first transport credit.
var InitialGrants = Position{ControlBytes: 8 << 20, ControlFrames: 256, BulkBytes: 32 << 20, BulkFrames: 256}

// IsDataClass tells whether messages of this type count as data.
func (t Type) IsDataClass() bool {
	switch t {
	case ExecStdin, FSData, TCPData, TCPEOF:
		return true
	}
	return false
}

// FreezePayload asks for the workload to be frozen at a position.
type FreezePayload struct {
	ExternalMountTags []string `cbor:"external_mount_tags"`
	AttemptID         string   `cbor:"attempt_id"` // 1-128 printable ASCII, no space
	HostInput         Position `cbor:"host_input"`
}

// FrozenPayload answers freeze.
type FrozenPayload struct {
	AttemptID            string   `cbor:"attempt_id"`
	GuestBulkBytesTarget uint64   `cbor:"guest_bulk_bytes_target"`
	InputCredit          Position `cbor:"input_credit"`
	ExternalMountsSynced bool     `cbor:"external_mounts_synced"`
}

// Modes of a thaw.
const (
	ThawContinue = "continue"
	ThawRestore  = "restore"
)

// ThawPayload ends a freeze.
type ThawPayload struct {
	AttemptID string `cbor:"attempt_id"`
	Mode      string `cbor:"mode"`
}

// ThawedPayload answers thaw.
type ThawedPayload struct {
	AttemptID string `cbor:"attempt_id"`
}

// RootDiskPayload is the size asked for, in bytes.
type RootDiskPayload struct {
	SizeBytes uint64 `cbor:"size_bytes"`
}

// RootDiskStatePayload is the size that there is, in bytes.
type RootDiskStatePayload struct {
	FilesystemBytes uint64 `cbor:"filesystem_bytes"`
	DeviceBytes     uint64 `cbor:"device_bytes"`
}

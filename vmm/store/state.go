package store

import "time"

// Status is what a sandbox is doing.
type Status string

// The states of a sandbox, as `msb ls` prints them.
const (
	Starting Status = "starting" // a runtime holds the lock, the guest is not ready yet
	Running  Status = "running"
	Stopping Status = "stopping"
	Stopped  Status = "stopped" // never started, or stopped cleanly
	Crashed  Status = "crashed" // the last run ended in a way nobody asked for; Reason says how
)

// State is the record of one run. The runtime writes it; the lock, not this file, says whether the
// sandbox runs.
type State struct {
	Status     Status `json:"status"`
	Reason     string `json:"reason,omitempty"` // why it stopped or crashed
	RuntimePID int    `json:"runtime_pid,omitempty"`
	// RuntimeStart is the runtime's start time in clock ticks since boot, from /proc/PID/stat: together
	// with the pid it names one process for ever.
	RuntimeStart uint64 `json:"runtime_start,omitempty"`
	EnginePID    int    `json:"engine_pid,omitempty"`
	EngineStart  uint64 `json:"engine_start,omitempty"`
	Accel        string `json:"accel,omitempty"` // what is really used: "kvm", "tcg", "none"
	Generation   uint8  `json:"generation,omitempty"`
	AgentVersion string `json:"agent_version,omitempty"`

	Started time.Time `json:"started,omitzero"`
	Ready   time.Time `json:"ready,omitzero"`
	Ended   time.Time `json:"ended,omitzero"`
	Forced  bool      `json:"forced,omitempty"` // the run ended by force: last writes may be lost
	Boot    Boot      `json:"boot,omitzero"`
}

// Boot is how long the parts of the start took.
type Boot struct {
	EngineStart Duration `json:"engine_start"` // runtime start to the engine running
	Kernel      Duration `json:"kernel"`       // engine running to the guest's init
	Init        Duration `json:"init"`         // init to the agent
	Total       Duration `json:"total"`        // runtime start to ready
}

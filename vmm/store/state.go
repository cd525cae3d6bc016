package store

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"
)

// Status is what a sandbox is doing.
type Status string

// The states of a sandbox, as `msb ls` prints them.
const (
	Starting Status = "starting" // a process holds the lock, the guest is not ready yet
	Running  Status = "running"
	Stopping Status = "stopping"
	Stopped  Status = "stopped" // never started, or stopped on request
	Crashed  Status = "crashed" // the last run ended in a way nobody asked for; Reason says how
	Broken   Status = "broken"  // its files cannot be read
)

// Live says whether a runtime is behind the status.
func (s Status) Live() bool { return s == Starting || s == Running || s == Stopping }

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
	Accel        string `json:"accel,omitempty"` // what is really used: "kvm", "tcg", "none"
	Generation   uint8  `json:"generation,omitempty"`
	AgentVersion string `json:"agent_version,omitempty"`
	DualPort     bool   `json:"dual_port,omitempty"`  // bulk data goes over a port of its own
	DiskError    string `json:"disk_error,omitempty"` // the first access to the disk that the host failed in this run
	Paused       bool   `json:"paused,omitempty"`     // while it runs: its machine is stopped until it is resumed

	Started time.Time `json:"started,omitzero"`
	Ready   time.Time `json:"ready,omitzero"`
	Ended   time.Time `json:"ended,omitzero"`
	Forced  bool      `json:"forced,omitempty"` // the run ended by force: last writes may be lost
	Boot    Boot      `json:"boot,omitzero"`
}

// Boot is how long the parts of the last start took.
type Boot struct {
	Engine Duration `json:"engine"` // start of the runtime to the engine running
	Guest  Duration `json:"guest"`  // engine running to the guest's ready
	Total  Duration `json:"total"`  // start of the runtime to ready
}

// SaveState replaces the sandbox's run record. The holder of the lock calls it.
func (h *Home) SaveState(name string, s State) error {
	return writeJSON(filepath.Join(h.SandboxDir(name), stateFile), s)
}

// State is what the sandbox is doing now: the record, corrected by what the lock proves. It does not
// check that the sandbox exists.
func (h *Home) State(name string) (State, error) {
	// A runtime that ends writes its record before it gives the lock back, so a record read while the lock
	// was free before and after is final.
	locked := h.Locked(name)
	var s State
	var err error
	for {
		s = State{}
		err = readJSON(filepath.Join(h.SandboxDir(name), stateFile), &s)
		again := h.Locked(name)
		if again == locked {
			break
		}
		locked = again
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		s = State{Status: Stopped}
	case errors.As(err, new(*fs.PathError)) && !locked:
		return State{Status: Stopped}, fmt.Errorf("state of sandbox %q: %w", name, err)
	case err != nil || s.Status == "":
		// What it holds is damaged. The disk is whole all the same, and the next start writes a new record.
		s = State{Status: Crashed, Reason: "the record of its last run cannot be read", Forced: true}
	}
	switch {
	case locked && !(s.Status.Live() && Alive(s.RuntimePID, s.RuntimeStart)):
		// A runtime that has not written its record yet, or a command that changes the sandbox.
		return State{Status: Starting, Boot: s.Boot}, nil
	case !locked && s.Status.Live():
		s.Reason = "its runtime was killed"
		if s.Status == Starting {
			s.Reason = "its runtime was killed while it started"
		}
		s.Status, s.Forced = Crashed, true
	}
	if !s.Status.Live() {
		s.RuntimePID, s.RuntimeStart, s.EnginePID, s.Generation, s.Paused = 0, 0, 0, 0, false
	}
	return s, nil
}

package turn

import "time"

// Record is what is kept of a session.
type Record struct {
	ID       string    `json:"id"` // 32 hex digits
	Name     string    `json:"name,omitempty"`
	Created  time.Time `json:"created"`
	Used     time.Time `json:"used"` // start of the last turn
	Model    string    `json:"model"`
	Protocol int       `json:"protocol,omitempty"` // of the guest; 0 before its first hello
	ImageID  string    `json:"image_id,omitempty"`
	Turns    int       `json:"turns"`
	Title    string    `json:"title,omitempty"` // start of the first prompt
}

// States of a session.
const (
	StateOpening = "opening" // its guest is being started
	StateIdle    = "idle"    // open, no turn
	StateTurn    = "turn"    // a turn is under way
	StateClosed  = "closed"  // no guest
)

// Info is a session as front ends see it; it has no capability.
type Info struct {
	Record
	State        string       `json:"state"`
	Turn         string       `json:"turn,omitempty"` // the one under way
	Seq          uint64       `json:"seq"`            // last event
	Bytes        int64        `json:"bytes"`          // of the transcript
	Capabilities Capabilities `json:"capabilities,omitzero"`
}

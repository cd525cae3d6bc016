package store

import "time"

// Mount is the record of one host mount of a sandbox's files. The mount process writes it and removes
// it; a record whose process is gone is not listed.
type Mount struct {
	Dir       string    `json:"dir"`        // mount point on the host
	GuestPath string    `json:"guest_path"` // directory in the guest
	PID       int       `json:"pid"`
	Start     uint64    `json:"start"` // the process's start time, see State.RuntimeStart
	Since     time.Time `json:"since"`
}

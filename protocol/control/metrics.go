package control

// Metrics is one look at what a sandbox uses. Counters grow from the start of
// its machine; rates are the difference of two looks.
type Metrics struct {
	// TimeNanos is when the look was taken, as nanoseconds of a clock that only
	// goes forward.
	TimeNanos uint64        `json:"time_nanos"`
	Paused    bool          `json:"paused"`
	Machine   MachineUse    `json:"machine"`
	Memory    *MemoryState  `json:"memory,omitempty"` // absent where the machine has no size of its own
	CPU       *CPUState     `json:"cpu,omitempty"`
	Guest     *GuestMetrics `json:"guest,omitempty"` // absent when the guest did not answer in time
}

// MachineUse is what the machine costs the host.
type MachineUse struct {
	CPUNanos      uint64 `json:"cpu_nanos"`      // of all its threads
	ResidentBytes uint64 `json:"resident_bytes"` // its memory that is in the host's
	DiskBytes     uint64 `json:"disk_bytes"`     // blocks that its disk occupies
	ReadBytes     uint64 `json:"read_bytes"`     // from the host's disks
	WrittenBytes  uint64 `json:"written_bytes"`
}

// GuestMetrics is what the guest says about itself. A guest can lie.
type GuestMetrics struct {
	UptimeNanos          uint64 `json:"uptime_nanos"`
	CPUs                 uint32 `json:"cpus"` // online
	CPUBusyNanos         uint64 `json:"cpu_busy_nanos"`
	MemoryTotalBytes     uint64 `json:"memory_total_bytes"`
	MemoryAvailableBytes uint64 `json:"memory_available_bytes"`
	DiskReadBytes        uint64 `json:"disk_read_bytes"`
	DiskWrittenBytes     uint64 `json:"disk_written_bytes"`
	NetReceivedBytes     uint64 `json:"net_received_bytes"`
	NetSentBytes         uint64 `json:"net_sent_bytes"`
}

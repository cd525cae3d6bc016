package engine

import (
	"context"
	"io"
	"time"
)

// VM is one running machine. All methods may be called concurrently.
type VM interface {
	// Control is the guest's port "agent". Reads and writes block; Close ends both at once. It is never nil and
	// gives io.EOF when the machine is gone. It also has SetReadDeadline and SetWriteDeadline.
	Control() io.ReadWriteCloser
	// Bulk is the port "agent-bulk", nil unless Spec.DualPort was set.
	Bulk() io.ReadWriteCloser
	// PID is the process on the host whose end is the machine's end.
	PID() int
	// Device is the root disk as the guest opens it ("/dev/vda", "/dev/loop3"), for the bootstrap; "" without a disk.
	Device() string
	// Accel is what is really used: AccelKVM, AccelTCG or AccelNone.
	Accel() string
	// Notice is one line for the user about a choice made for them ("no working KVM here, using emulation …"), or "".
	Notice() string
	// Done is closed when the machine is gone and reaped, and all it held is released.
	Done() <-chan struct{}
	// Exit says how it ended. Valid after Done.
	Exit() Exit
	// Kill ends the machine at once; Done follows. Nothing the guest had not written out is kept.
	Kill() error
	// Pause stops the guest's CPUs; Resume lets them go on. Both may be repeated.
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
	// Events reports what happens to the machine. Bounded: the oldest is dropped when nobody reads. Closed with Done.
	Events() <-chan Event
}

// Exit is how a machine ended.
type Exit struct {
	// PoweredOff: the guest shut itself down in order (file systems synced). False for a kernel panic, a reset, a
	// kill, and an engine that failed.
	PoweredOff bool
	// Err says why when not PoweredOff, with what the engine printed.
	Err error
}

// EventKind is what an Event is about.
type EventKind string

// The kinds of Event.
const (
	EventDiskError EventKind = "disk-error" // the host failed a read or write of the disk; the guest saw an I/O error
	EventPanic     EventKind = "panic"      // the guest's kernel panicked
	EventPaused    EventKind = "paused"
	EventResumed   EventKind = "resumed"
	EventResized   EventKind = "resized" // the guest took or gave back memory
)

// Event is something that happened to a machine, for logs and people.
type Event struct {
	Time time.Time
	Kind EventKind
	Text string // one line, no control characters
	// NoSpace: a disk error because the host's disk is full.
	NoSpace bool
}

// Resizer is implemented by machines whose engine says ResizeCPUs or ResizeMemory.
type Resizer interface {
	// Size reports what the machine has now: CPUs, memory the guest has, memory it was asked to have, all in MiB.
	Size(ctx context.Context) (Size, error)
	// Resize asks for cpus and memoryMiB (0 = leave as it is), within the maxima of the Spec. Memory follows at the
	// guest's pace: poll Size. CPUs are only added; fewer is a matter for the guest (cpu hotplug online files).
	Resize(ctx context.Context, cpus, memoryMiB int) error
}

// Size is how big a machine is.
type Size struct {
	CPUs, MaxCPUs                         int
	MemoryMiB, RequestedMiB, MaxMemoryMiB int
	// BootMiB of the memory cannot be given back while the machine runs.
	BootMiB int
}

// Meter is implemented by machines that share the host's kernel: what their guests read in /proc is the host's.
type Meter interface {
	// Use is what all processes of the machine use. It fails where the host does not count that.
	Use() (Use, error)
}

// Use is what a machine uses.
type Use struct {
	CPU      time.Duration // since it started
	Resident uint64        // bytes of memory
}

// Limiter is implemented by machines whose CPUs the host can bound.
type Limiter interface {
	// LimitCPUs lets all the machine's CPUs together have the time of cpus of the host's from now on; as many as the
	// machine has lifts the bound. how names what enforces it.
	LimitCPUs(ctx context.Context, cpus int) (how string, err error)
}

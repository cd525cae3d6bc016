// Package engine is the seam between the runtime and what runs a sandbox.
//
// An engine takes a Spec and gives back a VM: two byte streams into the guest, a way to stop it, and the truth about
// how it ended. There are two: vmm/qemu (a virtual machine) and vmm/process (namespaces on the host's own kernel).
// A third one is one more package, and enginetest says whether it behaves.
package engine

import (
	"context"
)

// Engine runs sandboxes. All methods may be called concurrently.
type Engine interface {
	// Name is "qemu" or "process": what `--engine` takes and what the sandbox's configuration holds.
	Name() string

	// Capabilities says what the machines of this engine can do.
	Capabilities() Capabilities

	// Check reports whether the engine can run on this host; its error says what to install or to do.
	Check(ctx context.Context) error

	// CreateDisk makes the writable disk of one sandbox at path from the immutable raw ext4 image base, sizeBytes big
	// (0 = as big as base). It takes no time to speak of: blocks of base are shared or holes. An existing path is an
	// error (fs.ErrExist), and so is a size below that of base. A failed call leaves nothing at path.
	CreateDisk(ctx context.Context, base, path string, sizeBytes int64) error

	// Start boots a machine and returns as soon as it runs; whether the guest came up is learnt from Control.
	// ctx bounds the start only: cancelling it later does not stop the machine. The machine dies with the calling
	// process, however that dies.
	Start(ctx context.Context, s Spec) (VM, error)
}

// Capabilities of an engine, the same for all its machines.
type Capabilities struct {
	// DiskFormat is what CreateDisk makes: "qcow2" or "raw".
	DiskFormat string
	// NeedsKernel: Spec.Kernel and Spec.Initrd are required (qemu); otherwise Spec.Guest is (process).
	NeedsKernel bool
	// Boundary: a hardware boundary separates guest and host. Without one an engine must be asked for by name.
	Boundary bool
	// ResizeCPUs and ResizeMemory: a VM also implements Resizer and honours that part of it.
	ResizeCPUs, ResizeMemory bool
	// Net: Spec.Net is honoured.
	Net bool
}

package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"msb/protocol/control"
	"msb/vmm/engine"
	"msb/vmm/secrets"
)

// Pauser stops and resumes a sandbox.
type Pauser interface {
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
	Paused() bool
}

// Guest is a way to the files of the guest that does not count as use of the
// sandbox. What it returns is an attacker's.
type Guest interface {
	Open(ctx context.Context) (GuestFiles, error)
}

// GuestFiles is one conversation with the guest.
type GuestFiles interface {
	// ReadFile returns the first most bytes of a file.
	ReadFile(ctx context.Context, path string, most int) ([]byte, error)
	// WriteFile writes to a file that exists.
	WriteFile(ctx context.Context, path string, data []byte) error
	Close() error
}

// Parts is what a sandbox consists of, for Resources.
type Parts struct {
	VM     engine.VM
	CPUs   int    // the machine booted with
	Disk   string // path of its disk, "" = none
	Pauser Pauser
	Vault  *secrets.Vault
	Guest  Guest // nil = the guest is not asked
	Log    *slog.Logger
}

// Resources is the Backend of a real sandbox.
type Resources struct {
	p       Parts
	resizer engine.Resizer // nil: the machine has no size of its own
	cpus    guestCPUs
	memory  shrinker

	mu        sync.Mutex
	requested int // CPUs
	ceiling   int // CPUs whose time the host lets the machine have; 0 = as many as it has
}

var _ Backend = (*Resources)(nil)

// NewResources returns the backend. Run must run beside it.
func NewResources(p Parts) *Resources {
	r := &Resources{p: p, requested: p.CPUs}
	r.resizer, _ = p.VM.(engine.Resizer)
	r.cpus = guestCPUs{guest: p.Guest, paused: p.Pauser.Paused, log: p.Log, wake: make(chan struct{}, 1), seen: p.CPUs}
	r.cpus.changed.L = &r.cpus.mu
	r.memory = shrinker{resizer: r.resizer, guest: p.Guest, paused: p.Pauser.Paused, log: p.Log, wake: make(chan struct{}, 1)}
	return r
}

// Run brings the guest's CPUs and memory to what was asked for, until ctx ends.
func (r *Resources) Run(ctx context.Context) {
	var work sync.WaitGroup
	work.Go(func() { r.cpus.run(ctx) })
	work.Go(func() { r.memory.run(ctx) })
	work.Wait()
}

// Capabilities says what can be changed: a machine that has no memory to plug
// and one CPU cannot be resized.
func (r *Resources) Capabilities(ctx context.Context) control.Capabilities {
	c := control.Capabilities{SecretsUpdate: r.p.Vault != nil}
	if size, err := r.size(ctx); err == nil {
		c.CPUResize = size.MaxCPUs > 1
		c.MemoryResize = size.MaxMemoryMiB > size.BootMiB
	}
	return c
}

var errNoSize = errors.New("no size of its own")

func (r *Resources) size(ctx context.Context) (engine.Size, error) {
	if r.resizer == nil {
		return engine.Size{}, errNoSize
	}
	size, err := r.resizer.Size(ctx)
	if err != nil {
		return size, fmt.Errorf("ask the machine for its size: %w", err)
	}
	return size, nil
}

// refuse is an error of a request that has changed nothing.
func refuse(code, format string, args ...any) error {
	return &control.Error{Code: code, Message: fmt.Sprintf(format, args...), Effect: control.EffectNone}
}

// MemoryState returns the device's word, not the target.
func (r *Resources) MemoryState(ctx context.Context) (control.MemoryState, error) {
	size, err := r.size(ctx)
	if errors.Is(err, errNoSize) {
		return control.MemoryState{}, refuse(control.CodeUnsupportedOperation, "no hotplug memory: this sandbox uses the host's memory as it is")
	}
	return r.memoryState(size), err
}

func (r *Resources) memoryState(s engine.Size) control.MemoryState {
	return control.MemoryState{
		BootMiB: uint64(s.BootMiB), TargetMiB: uint64(r.memory.want(s.RequestedMiB)),
		CurrentMiB: uint64(s.MemoryMiB), MaxMiB: uint64(s.MaxMemoryMiB),
	}
}

// SetMemoryTarget asks the guest to take or give back memory. It follows at its
// own pace: memory that it uses, and a little more, stays until it becomes free,
// and the state says so.
func (r *Resources) SetMemoryTarget(ctx context.Context, total uint64) (control.MemoryState, error) {
	size, err := r.size(ctx)
	switch {
	case errors.Is(err, errNoSize):
		return control.MemoryState{}, refuse(control.CodeUnsupportedOperation, "no hotplug memory: this sandbox uses the host's memory as it is")
	case err != nil:
		return control.MemoryState{}, err
	case size.MaxMemoryMiB <= size.BootMiB:
		return control.MemoryState{}, refuse(control.CodeUnsupportedOperation, "no hotplug memory: this sandbox was started with a maximum of %d MiB, all of it fixed", size.BootMiB)
	case total > uint64(size.MaxMemoryMiB):
		return control.MemoryState{}, refuse(control.CodeInvalidRequest, "%d MiB are more than the maximum of %d MiB", total, size.MaxMemoryMiB)
	case total < uint64(size.BootMiB):
		return control.MemoryState{}, refuse(control.CodeInvalidRequest, "%d MiB are less than the %d MiB that this machine cannot give back", total, size.BootMiB)
	}
	// The device has blocks of 2 MiB, and an odd maximum has one more.
	if err := r.memory.set(ctx, min(int(total+1)/2*2, (size.MaxMemoryMiB+1)/2*2)); err != nil {
		return control.MemoryState{}, err
	}
	if size, err = r.size(ctx); err != nil {
		return control.MemoryState{}, err
	}
	return r.memoryState(size), nil
}

// UpdateSecrets changes what the vault holds.
func (r *Resources) UpdateSecrets(_ context.Context, changes []control.Change) control.SecretsResult {
	if r.p.Vault == nil {
		at := uint32(0)
		return control.SecretsResult{Outcome: control.OutcomeFailed, FailedIndex: &at,
			Error: &control.Error{Code: control.CodeUnsupportedOperation, Message: "secrets unavailable", Effect: control.EffectNone}}
	}
	result := r.p.Vault.Apply(changes)
	if result.Error != nil {
		result.Error = problem(result.Error, control.EffectUnknown)
	}
	return result
}

// Pause stops the sandbox.
func (r *Resources) Pause(ctx context.Context) error { return r.p.Pauser.Pause(ctx) }

// Resume lets it go on, and its CPUs follow what was asked for meanwhile.
func (r *Resources) Resume(ctx context.Context) error {
	if err := r.p.Pauser.Resume(ctx); err != nil {
		return err
	}
	r.cpus.poke()
	return nil
}

// Paused tells whether it is stopped.
func (r *Resources) Paused() bool { return r.p.Pauser.Paused() }

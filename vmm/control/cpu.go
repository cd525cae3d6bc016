package control

import (
	"context"
	"errors"
	"time"

	"msb/protocol/control"
	"msb/vmm/engine"
)

// settleTime is how long a request for CPUs waits for the guest to follow. The
// reply says how far it got.
const settleTime = 2 * time.Second

// CPUState returns what the guest says it uses and what the host lets it use.
func (r *Resources) CPUState(ctx context.Context) (control.CPUState, error) {
	size, err := r.size(ctx)
	if errors.Is(err, errNoSize) {
		return control.CPUState{}, refuse(control.CodeUnsupportedOperation, "no CPU capacity: this sandbox uses the host's CPUs as they are")
	}
	if err != nil {
		return control.CPUState{}, err
	}
	r.cpus.refresh(ctx, settleTime)
	return r.cpuState(size), nil
}

func (r *Resources) cpuState(size engine.Size) control.CPUState {
	r.mu.Lock()
	defer r.mu.Unlock()
	enforced := size.CPUs // a machine cannot use CPUs that it does not have
	if r.ceiling > 0 {
		enforced = min(enforced, r.ceiling)
	}
	return control.CPUState{
		Possible: uint32(size.MaxCPUs), RequestedOnline: uint32(r.requested),
		ActualOnline: uint32(min(r.cpus.observed(), size.CPUs)), Enforced: uint32(enforced),
	}
}

// SetCPUTarget plugs CPUs that are missing, bounds what the machine gets on the
// host at once, and has the guest use as many as were asked for.
func (r *Resources) SetCPUTarget(ctx context.Context, online uint32) (control.CPUState, error) {
	size, err := r.size(ctx)
	switch {
	case errors.Is(err, errNoSize):
		return control.CPUState{}, refuse(control.CodeUnsupportedOperation, "no CPU capacity: this sandbox uses the host's CPUs as they are")
	case err != nil:
		return control.CPUState{}, err
	case online < 1:
		return control.CPUState{}, refuse(control.CodeInvalidRequest, "a sandbox needs at least 1 CPU")
	case uint64(online) > uint64(size.MaxCPUs):
		return control.CPUState{}, refuse(control.CodeInvalidRequest, "%d CPUs are more than the maximum of %d", online, size.MaxCPUs)
	}
	want := int(online)
	r.mu.Lock()
	r.requested = want
	r.mu.Unlock()
	if want > size.CPUs {
		if err := r.resizer.Resize(ctx, want, 0); err != nil {
			return control.CPUState{}, err
		}
		if size, err = r.size(ctx); err != nil {
			return control.CPUState{}, err
		}
	}
	r.limit(ctx, want, size.CPUs)
	r.cpus.target(want)
	r.cpus.settle(ctx, settleTime)
	return r.cpuState(size), nil
}

// limit bounds the machine on the host. Where that fails the guest is asked all
// the same, and the state says that nothing is enforced.
func (r *Resources) limit(ctx context.Context, want, present int) {
	ceiling := 0
	if limiter, ok := r.p.VM.(engine.Limiter); ok {
		how, err := limiter.LimitCPUs(ctx, want)
		if err != nil {
			r.p.Log.Warn("the host does not bound the machine's CPUs", "cpus", want, "error", err)
		} else {
			ceiling = want
			r.p.Log.Info("CPUs", "target", want, "of", present, "enforced_by", how)
		}
	}
	r.mu.Lock()
	r.ceiling = ceiling
	r.mu.Unlock()
}

package controlclient

import (
	"context"

	"msb/protocol/control"
)

// Capabilities asks what the runtime can change.
func (c *Connection) Capabilities(ctx context.Context) (control.Capabilities, error) {
	return do(ctx, c, func(ctx context.Context, f *Client) (control.Capabilities, error) { return f.Capabilities(ctx) },
		control.Request{Op: control.OpCapabilities}, func(r LineReply) (control.Capabilities, error) {
			if r.Capabilities == nil {
				return control.Capabilities{}, incomplete(control.OpCapabilities, r.Raw)
			}
			return *r.Capabilities, nil
		})
}

// MemoryState asks for the memory of the sandbox.
func (c *Connection) MemoryState(ctx context.Context) (control.MemoryState, error) {
	return do(ctx, c, func(ctx context.Context, f *Client) (control.MemoryState, error) { return f.MemoryState(ctx) },
		control.Request{Op: control.OpMemoryState}, memoryOf(control.OpMemoryState))
}

// SetMemoryTarget asks for a total in MiB.
func (c *Connection) SetMemoryTarget(ctx context.Context, totalMiB uint64) (control.MemoryState, error) {
	return do(ctx, c, func(ctx context.Context, f *Client) (control.MemoryState, error) {
		return f.SetMemoryTarget(ctx, totalMiB)
	},
		control.Request{Op: control.OpMemoryTarget, TotalMiB: &totalMiB}, memoryOf(control.OpMemoryTarget))
}

func memoryOf(op string) func(LineReply) (control.MemoryState, error) {
	return func(r LineReply) (control.MemoryState, error) {
		if r.Memory == nil {
			return control.MemoryState{}, incomplete(op, r.Raw)
		}
		return *r.Memory, nil
	}
}

// CPUState asks for the CPUs of the sandbox.
func (c *Connection) CPUState(ctx context.Context) (control.CPUState, error) {
	return do(ctx, c, func(ctx context.Context, f *Client) (control.CPUState, error) { return f.CPUState(ctx) },
		control.Request{Op: control.OpCPUState}, cpuOf(control.OpCPUState))
}

// SetCPUTarget asks for a number of CPUs.
func (c *Connection) SetCPUTarget(ctx context.Context, online uint32) (control.CPUState, error) {
	return do(ctx, c, func(ctx context.Context, f *Client) (control.CPUState, error) { return f.SetCPUTarget(ctx, online) },
		control.Request{Op: control.OpCPUTarget, Online: &online}, cpuOf(control.OpCPUTarget))
}

func cpuOf(op string) func(LineReply) (control.CPUState, error) {
	return func(r LineReply) (control.CPUState, error) {
		if r.CPU == nil {
			return control.CPUState{}, incomplete(op, r.Raw)
		}
		return *r.CPU, nil
	}
}

// UpdateSecrets applies changes in order up to the first failure. In JSON a
// failure is a *ReplyError and how far the batch got is not told.
func (c *Connection) UpdateSecrets(ctx context.Context, changes []control.Change) (control.SecretsResult, error) {
	if changes == nil {
		changes = []control.Change{}
	}
	return do(ctx, c, func(ctx context.Context, f *Client) (control.SecretsResult, error) {
		return f.UpdateSecrets(ctx, changes)
	},
		control.Request{Op: control.OpSecretsUpdate, Changes: changes}, func(LineReply) (control.SecretsResult, error) {
			return control.SecretsResult{Outcome: control.OutcomeComplete, AppliedCount: uint32(len(changes))}, nil
		})
}

// Pause, Resume, Paused and Metrics have no framed form in generation 1 and go
// as JSON.

// Pause stops the sandbox until Resume.
func (c *Connection) Pause(ctx context.Context) error {
	_, err := c.Line(ctx, control.Request{Op: control.OpPause})
	return err
}

// Resume lets a paused sandbox go on.
func (c *Connection) Resume(ctx context.Context) error {
	_, err := c.Line(ctx, control.Request{Op: control.OpResume})
	return err
}

// Paused asks whether the sandbox is paused.
func (c *Connection) Paused(ctx context.Context) (bool, error) {
	r, err := c.Line(ctx, control.Request{Op: control.OpPauseState})
	return r.Paused, err
}

// Metrics takes one look at what the sandbox uses. Runtimes that are not ours
// refuse it.
func (c *Connection) Metrics(ctx context.Context) (control.Metrics, error) {
	r, err := c.Line(ctx, control.Request{Op: control.OpMetrics})
	if err != nil {
		return control.Metrics{}, err
	}
	if r.Metrics == nil {
		return control.Metrics{}, incomplete(control.OpMetrics, r.Raw)
	}
	return *r.Metrics, nil
}

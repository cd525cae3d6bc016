package main

import (
	"context"
	"errors"
	"time"

	"msb/controlclient"
	"msb/protocol/control"
	vmmcontrol "msb/vmm/control"
)

// metrics takes one look at what a sandbox uses. Runtimes that are not ours have no such request: of theirs the look is
// put together from what they, the host's kernel and the guest say.
func (t controlled) metrics(ctx context.Context, c *controlclient.Connection) (control.Metrics, error) {
	m, err := c.Metrics(ctx)
	if t.own != nil || err == nil {
		return m, err
	}
	var negative *controlclient.ReplyError
	var unknown *controlclient.OutcomeUnknownError // of a question: no harm
	if !errors.As(err, &negative) && !errors.As(err, &unknown) {
		return m, err
	}
	who, err := t.runtime(ctx)
	if err != nil {
		return m, err
	}
	m = control.Metrics{TimeNanos: uint64(time.Since(metricsEpoch)), Machine: vmmcontrol.MachineUse(who.PID, "")}
	if memory, err := c.MemoryState(ctx); err == nil {
		m.Memory = &memory
	} else if !refusedBy(err) {
		return m, err
	}
	if cpu, err := c.CPUState(ctx); err == nil {
		m.CPU = &cpu
	} else if !refusedBy(err) {
		return m, err
	}
	m.Paused, err = c.Paused(ctx)
	if err != nil && !refusedBy(err) {
		return m, err
	}
	look, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if m.Paused {
		return m, nil
	}
	if g, err := vmmcontrol.GuestMetrics(look, dialledFiles{t.agent}); err == nil {
		m.Guest = &g
	}
	return m, ctx.Err()
}

// metricsEpoch is where our own looks count from.
var metricsEpoch = time.Now()

// refusedBy tells a runtime that said no from one that could not be asked.
func refusedBy(err error) bool {
	var refused *control.Error
	var negative *controlclient.ReplyError
	return errors.As(err, &refused) || errors.As(err, &negative)
}

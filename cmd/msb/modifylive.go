package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"msb/cmd/msb/progress"
	"msb/controlclient"
	"msb/protocol/control"
	"msb/vmm/secrets"
)

func named(name string) func(secrets.Declaration) bool {
	return func(d secrets.Declaration) bool { return d.Name == name }
}

// apply changes a sandbox that runs, and its config with what was accepted. Only one process at a time does, so that
// the two are of one mind. The config of a sandbox that is not ours is not touched.
func (p *plan) apply(ctx context.Context, t controlled, o *modifyOptions, steps *progress.Steps) error {
	c, err := t.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	if err := p.applyLocked(ctx, c, t, steps); err != nil {
		return err
	}
	if !o.noWait {
		if err := p.converge(ctx, c, o.timeout, steps); err != nil {
			return t.problem(err)
		}
	}
	p.report(steps, o.noWait)
	return nil
}

func (p *plan) applyLocked(ctx context.Context, c *controlclient.Connection, t controlled, steps *progress.Steps) error {
	keep := func(func(what string) bool) error { return nil }
	if t.own != nil {
		lock, err := t.host.Home.LockChange(ctx, t.name)
		if err != nil {
			return err
		}
		defer lock.Unlock()
		keep = func(accepted func(what string) bool) error { return p.save(t.host, accepted) }
	}
	if p.memory > 0 {
		m, err := c.SetMemoryTarget(ctx, uint64(p.memory))
		if err != nil {
			return t.problem(err)
		}
		p.result.Memory = &m
	}
	if p.cpus > 0 {
		s, err := c.SetCPUTarget(ctx, uint32(p.cpus))
		if err != nil {
			err = t.problem(err)
			if p.memory > 0 { // that much is done and stays
				err = errors.Join(err, keep(func(what string) bool { return what == "memory" }))
			}
			return err
		}
		p.result.CPU = &s
	}
	// The config first: the runtime takes a new secret only when it is declared there.
	if err := keep(everything); err != nil {
		return err
	}
	return p.updateSecrets(ctx, c, t, steps)
}

// giveOnce gives the values that have no source to a sandbox that was started with the changes.
func (p *plan) giveOnce(ctx context.Context, t controlled, steps *progress.Steps) error {
	p.secrets = slices.DeleteFunc(p.secrets, func(s credential) bool { return !s.From.IsZero() })
	p.remove = nil // the config has none of them any more
	if len(p.secrets) == 0 {
		return nil
	}
	c, err := t.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	return p.updateSecrets(ctx, c, t, steps)
}

func (p *plan) updateSecrets(ctx context.Context, c *controlclient.Connection, t controlled, steps *progress.Steps) error {
	var changes []control.Change
	for _, s := range p.secrets {
		changes = append(changes,
			control.Change{Change: control.ChangeRotate, Name: s.Name, Value: &s.value},
			control.Change{Change: control.ChangeSetAllowedHosts, Name: s.Name, Hosts: s.Hosts})
	}
	for _, name := range p.remove {
		changes = append(changes, control.Change{Change: control.ChangeRemove, Name: name})
	}
	if len(changes) == 0 {
		return nil
	}
	r, err := c.UpdateSecrets(ctx, changes)
	if err == nil && r.Error != nil {
		return fmt.Errorf("%s: change %d of %d failed and those before it stay: %s", t.name, r.AppliedCount+1, len(changes), r.Error.Message)
	}
	if err != nil {
		return t.problem(err)
	}
	for _, s := range p.secrets {
		steps.Line("secret", "%s: held for %v", s.Name, s.Hosts)
	}
	for _, name := range p.remove {
		steps.Line("secret", "%s: removed", name)
	}
	return nil
}

// there tells whether the guest has followed.
func (m modified) there() bool {
	return (m.Memory == nil || m.Memory.CurrentMiB == m.Memory.TargetMiB) &&
		(m.CPU == nil || m.CPU.ActualOnline == m.CPU.RequestedOnline)
}

// converge waits for the guest to follow, at most so long.
func (p *plan) converge(ctx context.Context, c *controlclient.Connection, timeout time.Duration, steps *progress.Steps) error {
	if p.result.there() {
		return nil
	}
	step := steps.Start("resize", "%s: waiting for the guest", p.name)
	defer step.Drop()
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	poll := time.NewTicker(250 * time.Millisecond)
	defer poll.Stop()
	for !p.result.there() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline.C:
			return nil
		case <-poll.C:
		}
		if p.result.Memory != nil {
			m, err := c.MemoryState(ctx)
			if err != nil {
				return err
			}
			p.result.Memory = &m
			step.Update(fmt.Sprintf("%s: memory %d MiB, target %d MiB", p.name, m.CurrentMiB, m.TargetMiB), -1)
		}
		if p.result.CPU != nil {
			s, err := c.CPUState(ctx)
			if err != nil {
				return err
			}
			p.result.CPU = &s
		}
	}
	return nil
}

// report says what was asked for and what is there.
func (p *plan) report(steps *progress.Steps, noWait bool) {
	if m := p.result.Memory; m != nil {
		text := fmt.Sprintf("%s: %d MiB of at most %d MiB", p.name, m.CurrentMiB, m.MaxMiB)
		if m.CurrentMiB == m.TargetMiB || noWait {
			if m.CurrentMiB != m.TargetMiB {
				text += fmt.Sprintf(", target %d MiB", m.TargetMiB)
			}
			steps.Line("memory", "%s", text)
		} else {
			steps.Warn("memory", "%s, target %d MiB: the guest still uses the rest; it is taken when it becomes free", text, m.TargetMiB)
		}
	}
	if s := p.result.CPU; s != nil {
		text := fmt.Sprintf("%s: %d of at most %d CPUs", p.name, s.ActualOnline, s.Possible)
		if s.ActualOnline != s.RequestedOnline {
			text += fmt.Sprintf(", target %d", s.RequestedOnline)
		}
		if s.Enforced > s.RequestedOnline {
			steps.Warn("cpus", "%s; the host does not enforce it (%d)", text, s.Enforced)
		} else {
			steps.Line("cpus", "%s", text)
		}
	}
	for _, c := range p.changes {
		if c.What == "label" {
			steps.Line("label", "%s", orDash(c.To))
		}
	}
}

package runtime

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"msb/vmm/store"
)

// keep looks after a running sandbox until its machine is gone. nil is an end that somebody wanted.
func (r *run) keep(ctx context.Context) error {
	ready := time.Now()
	clock := clockWatch{}
	idle := idleWatch{limit: time.Duration(r.config.IdleTimeout), seen: r.relay.Activity()}
	r.syncClock(&clock, ready)
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	looked := ready
	cancelled := ctx.Done()
	for {
		select {
		case <-r.vm.Done():
			return r.gone()
		case <-r.relay.Done():
			return r.lost()
		case <-r.shutdown:
			return r.powerOff("a client asked for shutdown", false)
		case s := <-r.signals:
			if s == StopNow {
				return r.stopNow()
			}
			return r.powerOff("stopped", true)
		case <-cancelled:
			return r.powerOff("stopped", true)
		case <-r.pauser.changed:
			r.state.Paused = r.pauser.Paused()
			if err := r.save(); err != nil {
				r.log.Error("run record", "error", err)
			}
		case <-r.diskFailed:
			r.state.DiskError = clean(*r.diskError.Load(), 300)
			if err := r.save(); err != nil {
				r.log.Error("run record", "error", err)
			}
		case now := <-ticks.C:
			up := time.Since(ready)
			if paused := r.pauser.Paused(); paused {
				idle.since = up // a paused sandbox is kept on purpose
			} else if now.Sub(looked) >= clockPoll {
				looked = now
				r.syncClock(&clock, ready)
			}
			if idle.idle(r.relay.Activity(), r.relay.Execs(), up) {
				return r.powerOff(fmt.Sprintf("idle for %s", idle.limit), true)
			}
			if max := time.Duration(r.config.MaxDuration); max > 0 && up >= max {
				return r.powerOff(fmt.Sprintf("ran for %s, its maximum", max), true)
			}
		}
	}
}

func (r *run) syncClock(w *clockWatch, since time.Time) {
	now := time.Now()
	if !w.due(now, now.Sub(since)) {
		return
	}
	if err := r.relay.SyncClock(now); err != nil {
		r.log.Warn("clock", "error", err)
	}
}

// powerOff waits until the guest has powered itself off; only that is a clean end.
func (r *run) powerOff(reason string, ask bool) error {
	limit := shutdownLimit()
	r.log.Info("shutting down", "reason", reason, "limit", limit)
	r.state.Status, r.state.Reason = store.Stopping, reason
	if err := r.pauser.end(context.Background()); err != nil {
		r.log.Error("resume for the shutdown", "error", err)
	}
	r.state.Paused = false
	if err := r.save(); err != nil {
		r.log.Error("run record", "error", err)
	}
	if ask {
		if err := r.relay.Shutdown(); err != nil {
			r.log.Warn("shutdown request", "error", err)
		}
	}
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	for {
		select {
		case <-r.vm.Done():
			if exit := r.vm.Exit(); !exit.PoweredOff {
				return fmt.Errorf("%w: the machine ended before the guest had shut down: %w", errForced, orUnknown(exit.Err))
			}
			return nil
		case s := <-r.signals:
			if s == StopNow {
				return r.stopNow()
			}
		case <-timeout.C:
			return r.force(fmt.Errorf("%w: the guest did not power itself off within %s", errForced, limit))
		}
	}
}

// stopNow kills the machine on request.
func (r *run) stopNow() error {
	r.log.Warn("killing the machine on request")
	return r.force(errForced)
}

func (r *run) force(why error) error {
	if err := r.kill(); err != nil {
		return fmt.Errorf("%w; %w", why, err)
	}
	return why
}

// ending notes that the machine goes away or has gone, so that nobody takes the sandbox for running while
// its services end.
func (r *run) ending() {
	if r.state.Status != store.Running {
		return
	}
	r.state.Status = store.Stopping
	if err := r.save(); err != nil {
		r.log.Error("run record", "error", err)
	}
}

// gone is the end of a machine that nobody asked for.
func (r *run) gone() error {
	select {
	case <-r.shutdown:
		// The guest was quicker than the loop.
		r.state.Reason = "a client asked for shutdown"
	default:
		r.state.Reason = "the guest powered itself off"
	}
	exit := r.vm.Exit()
	if exit.PoweredOff {
		return nil
	}
	return fmt.Errorf("the machine ended: %w", orUnknown(exit.Err))
}

// lost is the end of the link to the guest. Mostly the machine is about to end too.
func (r *run) lost() error {
	r.ending()
	timeout := time.NewTimer(lostTimeout)
	defer timeout.Stop()
	select {
	case <-r.vm.Done():
		return r.gone()
	case <-timeout.C:
	}
	select {
	case <-r.shutdown:
		return r.powerOff("a client asked for shutdown", false)
	default:
	}
	why := fmt.Errorf("lost the link to the guest's agent: %w", r.relay.Err())
	if err := r.kill(); err != nil {
		return fmt.Errorf("%w; %w", why, err)
	}
	return why
}

// orUnknown is why a machine ended, in a length that people read: engines add all that was printed.
func orUnknown(err error) error {
	const longest = 600
	switch {
	case err == nil:
		return errors.New("it gave no reason")
	case len(err.Error()) > longest:
		return errors.New(clean(err.Error(), longest))
	}
	return err
}

// clean makes text of the guest or the machine fit for one line of a terminal.
func clean(s string, max int) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case r < ' ' || r >= 0x7f && r < 0xa0 || r == 0xfffd:
			return '?'
		}
		return r
	}, strings.TrimSpace(s))
	if len(s) > max {
		s = strings.ToValidUTF8(s[:max], "") + "…"
	}
	return s
}

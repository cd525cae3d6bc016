package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

// ErrNoFreeze is returned by Freeze for a guest that cannot be frozen. Nothing has been changed then.
var ErrNoFreeze = errors.New("the guest's agent cannot freeze its work: it needs generation 9 with freeze barrier 2; restart the sandbox to bring its agent up to date")

// reply is a message of the guest on the lifecycle channel.
type reply struct {
	t agent.Type
	p []byte
}

// SyncClock sends the host's wall clock to the guest.
func (r *Relay) SyncClock(now time.Time) error {
	return r.sendHost(agent.ClockSync, agent.ClockSyncPayload{UnixTimeNanos: uint64(now.UnixNano())})
}

// Shutdown asks the guest to power itself off.
func (r *Relay) Shutdown() error { return r.sendHost(agent.Shutdown, nil) }

func (r *Relay) sendHost(t agent.Type, payload any) error {
	select {
	case <-r.done:
		return r.err
	default:
	}
	wire, err := agent.AppendFrame(nil, 0, t, agent.Generation, payload)
	if err != nil {
		return err
	}
	r.sched.pushHost(newPacket(wire))
	return nil
}

// Freeze stops ordinary input at a frame boundary and has the guest freeze its work at that position.
// attempt names the try (1 to 128 printable characters without blanks). When it fails, input flows again.
func (r *Relay) Freeze(ctx context.Context, attempt string) (agent.FrozenPayload, error) {
	var frozen agent.FrozenPayload
	if err := r.CanFreeze(); err != nil {
		return frozen, err
	}
	r.life.Lock()
	defer r.life.Unlock()
	at, err := r.sched.hold(ctx)
	if err != nil {
		return frozen, fmt.Errorf("freeze: input did not reach a frame boundary: %w", err)
	}
	rep, err := r.request(ctx, agent.WorkloadFreeze, agent.FreezePayload{ExternalMountTags: []string{}, AttemptID: attempt, HostInput: at})
	if err == nil {
		err = rep.decode(agent.WorkloadFrozen, &frozen)
	}
	if err == nil && frozen.AttemptID != attempt {
		err = errors.New("the guest answered for another attempt")
	}
	if err != nil {
		if ctx.Err() != nil {
			// It may still happen: take it back, without waiting, before input flows again.
			r.sendLifecycle(agent.WorkloadThaw, agent.ThawPayload{AttemptID: attempt, Mode: agent.ThawContinue})
		}
		r.sched.release()
		return frozen, fmt.Errorf("freeze: %w", err)
	}
	r.sched.credit(frozen.InputCredit, time.Now())
	return frozen, nil
}

// Thaw ends a freeze; mode is agent.ThawContinue or agent.ThawRestore. Input flows again once the guest
// has answered; on an error it stays held.
func (r *Relay) Thaw(ctx context.Context, attempt, mode string) error {
	r.life.Lock()
	defer r.life.Unlock()
	rep, err := r.request(ctx, agent.WorkloadThaw, agent.ThawPayload{AttemptID: attempt, Mode: mode})
	var thawed agent.ThawedPayload
	if err == nil {
		err = rep.decode(agent.WorkloadThawed, &thawed)
	}
	if err != nil {
		return fmt.Errorf("thaw: %w", err)
	}
	r.sched.release()
	return nil
}

// request sends a message of the lifecycle channel and waits for the answer.
func (r *Relay) request(ctx context.Context, t agent.Type, payload any) (reply, error) {
	select {
	case <-r.replies: // of a request that was given up
	default:
	}
	r.expected.Store(true)
	defer r.expected.Store(false)
	if err := r.sendLifecycle(t, payload); err != nil {
		return reply{}, err
	}
	select {
	case rep := <-r.replies:
		return rep, nil
	case <-ctx.Done():
		return reply{}, fmt.Errorf("no answer to %s: %w", t, ctx.Err())
	case <-r.done:
		return reply{}, r.err
	}
}

func (r *Relay) sendLifecycle(t agent.Type, payload any) error {
	wire, err := agent.AppendFrame(nil, frame.IDLifecycle, t, agent.Generation, payload)
	if err != nil {
		return err
	}
	r.sched.pushLifecycle(newPacket(wire))
	return nil
}

func (a reply) decode(want agent.Type, payload any) error {
	if a.t == agent.Error {
		var why agent.ErrorPayload
		if err := agent.DecodePayload(a.p, &why); err != nil {
			return err
		}
		return fmt.Errorf("the guest refused: %.300q (%.60q)", why.Message, why.Kind)
	}
	if a.t != want {
		return fmt.Errorf("the guest answered %s where %s was due", a.t, want)
	}
	return agent.DecodePayload(a.p, payload)
}

// lifecycle handles what the guest sends on the private channel. Clients never see it.
func (r *Relay) lifecycle(p *packet) {
	e, err := agent.ParseEnvelope(p.body())
	if err != nil {
		r.log.Warn("guest sent a bad frame on the lifecycle channel", "error", err)
		return
	}
	t, known := e.Type()
	if t == agent.TransportCredit {
		var credit agent.Position
		if err := agent.DecodePayload(e.P, &credit); err != nil {
			r.log.Warn("guest sent bad transport credit", "error", err)
			return
		}
		r.sched.credit(credit, time.Now())
		return
	}
	if t == agent.InputConsumed {
		var report agent.InputConsumedPayload
		if err := agent.DecodePayload(e.P, &report); err != nil {
			r.log.Warn("guest sent a bad report of consumed input", "error", err)
			return
		}
		r.sched.consumed(report)
		return
	}
	if !known || !r.expected.Load() {
		r.log.Warn("guest sent an unexpected message on the lifecycle channel", "type", fmt.Sprintf("%.60q", e.T))
		return
	}
	select {
	case r.replies <- reply{t: t, p: slices.Clone(e.P)}:
	default:
	}
}

// uncorrelated handles what the guest sends with id 0.
func (r *Relay) uncorrelated(p *packet) {
	if frame.IsLease(p.frame()) {
		l, err := frame.ParseLease(p.frame())
		if err != nil || !r.leased {
			r.log.Warn("guest sent a bad lease", "error", err)
			return
		}
		r.confirmed(l)
		return
	}
	e, err := agent.ParseEnvelope(p.body())
	if err != nil {
		r.log.Warn("guest sent a bad frame with id 0", "error", err)
		return
	}
	var why agent.ErrorPayload
	if t, _ := e.Type(); t == agent.Error && agent.DecodePayload(e.P, &why) == nil {
		r.log.Warn("guest reports an error", "kind", fmt.Sprintf("%.60q", why.Kind), "message", fmt.Sprintf("%.300q", why.Message))
		return
	}
	r.log.Warn("guest sent an unexpected message with id 0", "type", fmt.Sprintf("%.60q", e.T))
}

// hold stops ordinary input and waits until no frame is half written; the position is what was written.
func (s *scheduler) hold(ctx context.Context) (agent.Position, error) {
	stop := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		s.quiet.Broadcast()
		s.mu.Unlock()
	})
	defer stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = true
	for s.busy[controlPort] || s.busy[bulkPort] {
		if err := ctx.Err(); err != nil || s.closed {
			s.held = false
			s.poke()
			return agent.Position{}, errors.Join(err)
		}
		s.quiet.Wait()
	}
	return s.gate.position(), nil
}

// release lets ordinary input flow again.
func (s *scheduler) release() {
	s.mu.Lock()
	s.held = false
	s.mu.Unlock()
	s.poke()
}

// credit takes new limits from the guest.
func (s *scheduler) credit(p agent.Position, now time.Time) {
	s.mu.Lock()
	if consumed := s.gate.credit(p); consumed.frames > 0 {
		s.turn.deadline = now.Add(s.turn.pause)
	}
	s.mu.Unlock()
	s.poke()
}

// consumed takes the guest's report of whose data it has consumed. The credit that goes with it follows.
func (s *scheduler) consumed(p agent.InputConsumedPayload) {
	s.mu.Lock()
	s.unread.consumed(p)
	s.mu.Unlock()
}

// openLane lets a client's frames flow.
func (s *scheduler) openLane(l *lane) {
	s.mu.Lock()
	l.open = true
	s.mu.Unlock()
	s.poke()
}

package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"msb/guest/port"
	"msb/protocol/agent"
	"msb/protocol/frame"
)

// freezer is the state of freeze and thaw. A freeze stops every command at a position of the input that both sides
// agree on; from the answer to the thaw no workload output leaves.
type freezer struct {
	a *server

	mu      sync.Mutex
	state   freezeState
	attempt string
	request *agent.FreezePayload // while waiting or stopping
	answer  agent.FrozenPayload  // while frozen
	last    string               // the attempt that was thawed last
	abort   context.CancelFunc   // of the last attempt to stop the commands
	stopped chan struct{}        // closed when that attempt is over
}

type freezeState uint8

const (
	running  freezeState = iota
	awaiting             // for input on the bulk port to reach the position
	stopping             // the kernel stops the commands
	frozen
	thawing
	stuck // the kernel could not thaw
)

func (z *freezer) init(a *server) { z.a = a }

// freeze serves core.workload.freeze.
func (z *freezer) freeze(id uint32, v uint8, p *agent.FreezePayload) {
	if !z.check(id, v, p.AttemptID) {
		return
	}
	if z.a.workload == nil {
		z.fail(p.AttemptID, agent.KindCapabilityUnavailable, agent.DispositionUnavailable, "the guest has no cgroup v2 freezer")
		return
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	switch z.state {
	case frozen:
		if z.attempt == p.AttemptID {
			z.send(agent.WorkloadFrozen, z.answer)
			return
		}
		z.refuse(p.AttemptID, fmt.Sprintf("the workload is frozen by attempt %s", z.attempt))
		return
	case awaiting, stopping, thawing:
		if z.state != thawing && z.attempt == p.AttemptID {
			return // its answer is on the way
		}
		z.refuse(p.AttemptID, fmt.Sprintf("attempt %s is under way", z.attempt))
		return
	case stuck:
		z.fail(p.AttemptID, agent.KindInvalidSession, agent.DispositionRecoveryRequired, "the last thaw failed")
		return
	}
	reached, err := z.reached(p.HostInput)
	if err != nil {
		z.refuse(p.AttemptID, err.Error())
		return
	}
	z.attempt, z.request = p.AttemptID, p
	if !reached {
		z.state = awaiting
		return
	}
	z.stopLocked()
}

// reached compares the host's position with what has arrived. Control frames come in order on one port, so they must
// be equal; only input on the bulk port may still be on its way.
func (z *freezer) reached(want agent.Position) (bool, error) {
	got := z.a.credit.position()
	switch {
	case want == got:
		return true, nil
	case want.ControlBytes != got.ControlBytes || want.ControlFrames != got.ControlFrames:
	case want.BulkBytes < got.BulkBytes || want.BulkFrames < got.BulkFrames:
	case z.a.bulkOut != nil:
		return false, nil
	}
	return false, fmt.Errorf("the host's input position %v is not the guest's %v", want, got)
}

// arrived is called when a record has come, so that a waiting freeze can go on.
func (z *freezer) arrived() {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.state != awaiting {
		return
	}
	reached, err := z.reached(z.request.HostInput)
	switch {
	case err != nil:
		z.state = running
		z.refuse(z.attempt, err.Error())
	case reached:
		z.stopLocked()
	}
}

// stopLocked starts to stop the commands; the answer follows.
func (z *freezer) stopLocked() {
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	z.state, z.abort, z.stopped = stopping, cancel, stopped
	z.a.exec.Latch(true)
	request := z.request
	z.a.helpers.Go(func() {
		defer close(stopped)
		defer cancel()
		err := z.a.workload.Freeze(ctx)
		synced := err == nil && syncTags(request.ExternalMountTags)
		if err == nil {
			z.a.holdOutput()
		}
		z.mu.Lock()
		defer z.mu.Unlock()
		if z.state != stopping {
			return // abandoned by a thaw, which lifts what was done here
		}
		if err != nil {
			z.state = running
			z.a.exec.Latch(false)
			z.refuse(request.AttemptID, err.Error())
			return
		}
		z.state = frozen
		grants := z.grants()
		z.answer = agent.FrozenPayload{
			AttemptID:            request.AttemptID,
			GuestBulkBytesTarget: z.a.bulkWritten(),
			InputCredit:          grants,
			ExternalMountsSynced: synced,
		}
		z.send(agent.WorkloadFrozen, z.answer)
	})
}

// thaw serves core.workload.thaw. Both modes lift the freeze and carry the counters on: the grants that go with the answer
// are the first ones and what was consumed, whoever the host is, so that input which nobody has consumed yet is charged to
// the next host as it was to the last. Only `continue` may end a freeze that has not been answered; `restore` comes from a
// host that took over a frozen guest, which knows the position and the grants of that moment and has asked for nothing.
func (z *freezer) thaw(id uint32, v uint8, p *agent.ThawPayload) {
	if !z.check(id, v, p.AttemptID) {
		return
	}
	if p.Mode != agent.ThawContinue && p.Mode != agent.ThawRestore {
		z.fail(p.AttemptID, agent.KindInvalidPayload, agent.DispositionUnavailable, fmt.Sprintf("thaw mode %q is unknown", p.Mode))
		return
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	switch {
	case z.state == running && z.last == p.AttemptID:
		z.thawed(p.AttemptID)
	case z.state == running || z.attempt != p.AttemptID:
		z.refuse(p.AttemptID, "the workload is not frozen by this attempt")
	case z.state == awaiting && p.Mode == agent.ThawContinue:
		z.state = running
		z.refuse(p.AttemptID, "the freeze was abandoned by a thaw")
		z.last = p.AttemptID
		z.thawed(p.AttemptID)
	case z.state == stopping && p.Mode == agent.ThawContinue:
		z.abort()
		z.refuse(p.AttemptID, "the freeze was abandoned by a thaw")
		z.startThaw(p.Mode)
	case z.state == frozen || z.state == stuck:
		z.startThaw(p.Mode)
	case z.state == thawing: // its answer is on the way
	default:
		z.refuse(p.AttemptID, "the freeze has not been answered yet")
	}
}

// startThaw lets the commands run again; the answer follows.
func (z *freezer) startThaw(mode string) {
	z.state = thawing
	attempt, stopped := z.attempt, z.stopped
	z.a.helpers.Go(func() {
		<-stopped
		err := z.a.workload.Thaw(context.Background())
		z.mu.Lock()
		defer z.mu.Unlock()
		if err != nil {
			z.state = stuck
			z.fail(attempt, agent.KindInvalidSession, agent.DispositionRecoveryRequired, err.Error())
			return
		}
		z.state, z.last = running, attempt
		z.a.exec.Latch(false)
		if mode == agent.ThawRestore {
			z.a.credit.unwatch()
		}
		z.thawed(attempt)
		z.a.releaseOutput()
	})
}

// thawed answers a thaw: the grants first, so that the host can go on at once.
func (z *freezer) thawed(attempt string) {
	z.send(agent.TransportCredit, z.grants())
	z.send(agent.WorkloadThawed, agent.ThawedPayload{AttemptID: attempt})
}

// grants are the limits that go with an answer; the host hears first whose data was consumed, if it asked for that.
func (z *freezer) grants() agent.Position {
	if by := z.a.credit.report(); len(by) > 0 {
		z.send(agent.InputConsumed, agent.InputConsumedPayload{Operations: by})
	}
	limits, _ := z.a.credit.grant()
	return limits
}

// check refuses what is not on the private channel or has no usable attempt id.
func (z *freezer) check(id uint32, v uint8, attempt string) bool {
	if id != frame.IDLifecycle {
		z.a.reject(id, v, agent.KindInvalidSession, "freeze and thaw have a channel of their own", "")
		return false
	}
	valid := len(attempt) >= 1 && len(attempt) <= 128
	for i := 0; i < len(attempt); i++ {
		valid = valid && attempt[i] > ' ' && attempt[i] < 0x7f
	}
	if !valid {
		z.a.reject(id, v, agent.KindInvalidPayload, "attempt_id must be 1 to 128 printable ASCII characters without blanks", "")
	}
	return valid
}

func (z *freezer) send(t agent.Type, payload any) { _ = z.a.out.send(frame.IDLifecycle, t, payload) }

func (z *freezer) refuse(attempt, message string) {
	z.fail(attempt, agent.KindInvalidSession, agent.DispositionUnavailable, message)
}

func (z *freezer) fail(attempt, kind, disposition, message string) {
	z.send(agent.Error, agent.ErrorPayload{
		Kind:            kind,
		Message:         port.Clip(message),
		WorkloadFailure: &agent.WorkloadFailure{AttemptID: attempt, Disposition: disposition},
	})
}

// end lifts whatever freeze there is, so that the commands can be ended.
func (z *freezer) end() {
	z.mu.Lock()
	state, stopped := z.state, z.stopped
	if z.abort != nil {
		z.abort()
	}
	z.mu.Unlock()
	if stopped != nil {
		<-stopped
	}
	if state != running && z.a.workload != nil {
		_ = z.a.workload.Thaw(context.Background())
	}
	z.a.releaseOutput()
}

func (a *server) holdOutput() {
	a.nodes.Hold()
	a.out.hold()
	if a.bulkOut != nil {
		a.bulkOut.hold()
	}
}

func (a *server) releaseOutput() {
	a.nodes.Release()
	a.out.release()
	if a.bulkOut != nil {
		a.bulkOut.release()
	}
}

// bulkWritten is how many bytes of records the host has to read on the bulk port to have all that was sent.
func (a *server) bulkWritten() uint64 {
	if a.bulkOut == nil {
		return 0
	}
	return a.bulkOut.written()
}

// syncTags writes the named external mounts out. Mounts are found by their tag as the source in the mount table; a
// missing one is a failure.
func syncTags(tags []string) bool {
	ok := true
	for _, tag := range tags {
		path, err := mountPoint(tag)
		if err == nil {
			err = syncFS(path)
		}
		ok = ok && err == nil
	}
	return ok
}

func syncFS(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Syncfs(fd)
}

var errNotMounted = errors.New("no such mount")

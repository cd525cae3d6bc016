package runtime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"msb/protocol/agent"
	"msb/vmm/engine"
	"msb/vmm/relay"
)

// Bounds of a pause and of a resume, however the guest behaves.
const (
	pauseTimeout  = 20 * time.Second
	resumeTimeout = 20 * time.Second
)

// pausedText is what clients hear that want to start something meanwhile.
const pausedText = "the sandbox is paused; resume it with `msb resume`"

// Pauser stops a sandbox and lets it go on: the guest's commands are frozen at a position of the input that both sides
// agree on, then the machine's CPUs are stopped. Its methods may be called concurrently.
type Pauser struct {
	relay *relay.Relay
	vm    engine.VM
	log   *slog.Logger
	// changed gets a value when the state has changed. Holds one.
	changed chan struct{}

	work     sync.Mutex // one pause or resume at a time
	attempts int
	ending   bool // the sandbox shuts down: no pause any more

	mu      sync.Mutex
	attempt string // of the freeze, while it lasts
}

func newPauser(r *relay.Relay, vm engine.VM, log *slog.Logger) *Pauser {
	return &Pauser{relay: r, vm: vm, log: log, changed: make(chan struct{}, 1)}
}

// Paused tells whether the sandbox is paused, or half way from there.
func (p *Pauser) Paused() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.attempt != ""
}

func (p *Pauser) set(attempt string) {
	p.mu.Lock()
	p.attempt = attempt
	p.mu.Unlock()
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// Pause stops the sandbox; one that is paused stays so. A guest that cannot be frozen is refused before anything has
// changed, and what fails half way is undone.
func (p *Pauser) Pause(ctx context.Context) error {
	p.work.Lock()
	defer p.work.Unlock()
	if p.ending {
		return errors.New("pause: the sandbox is shutting down")
	}
	if p.Paused() {
		return nil
	}
	if err := p.relay.CanFreeze(); err != nil {
		return fmt.Errorf("pause: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, pauseTimeout)
	defer cancel()
	p.attempts++
	attempt := fmt.Sprintf("pause-%d", p.attempts)
	p.relay.Pause(pausedText)
	if _, err := p.relay.Freeze(ctx, attempt); err != nil {
		p.relay.Resume()
		return fmt.Errorf("pause: %w", err)
	}
	if err := p.vm.Pause(ctx); err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), resumeTimeout)
		defer cancel()
		if uerr := p.letGo(undo, attempt); uerr != nil {
			p.set(attempt) // so that a resume can be tried
			err = fmt.Errorf("%w; and it could not be undone: %w", err, uerr)
		}
		return fmt.Errorf("pause: stop the machine: %w", err)
	}
	p.set(attempt)
	p.log.Info("paused")
	return nil
}

// Resume lets a paused sandbox go on and tells the guest the time. One that is not paused is left alone. When it fails
// the sandbox is still paused, and Resume can be tried again.
func (p *Pauser) Resume(ctx context.Context) error {
	p.work.Lock()
	defer p.work.Unlock()
	return p.resume(ctx)
}

// end resumes the sandbox for good: a frozen guest cannot shut down.
func (p *Pauser) end(ctx context.Context) error {
	p.work.Lock()
	defer p.work.Unlock()
	p.ending = true
	return p.resume(ctx)
}

func (p *Pauser) resume(ctx context.Context) error {
	p.mu.Lock()
	attempt := p.attempt
	p.mu.Unlock()
	if attempt == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, resumeTimeout)
	defer cancel()
	if err := p.letGo(ctx, attempt); err != nil {
		return fmt.Errorf("resume: %w", err)
	}
	p.set("")
	p.log.Info("resumed")
	return nil
}

// letGo undoes a pause. Input of clients waits behind the clock, which waits for the thaw.
func (p *Pauser) letGo(ctx context.Context, attempt string) error {
	if err := p.vm.Resume(ctx); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	if err := p.relay.SyncClock(time.Now()); err != nil {
		return err
	}
	if err := p.relay.Thaw(ctx, attempt, agent.ThawContinue); err != nil {
		return err
	}
	p.relay.Resume()
	return nil
}

package control

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"msb/vmm/engine"
)

// Pace of taking memory back.
const (
	// keepFree is what a guest keeps available, in MiB. A device that takes all it can leaves a guest that cannot start
	// another program, and whose kernel kills those it has.
	keepFree   = 48
	shrinkStep = 500 * time.Millisecond
	shrinkSlow = 5 * time.Second // once the guest has not followed for shrinkLong
	shrinkLong = 30 * time.Second
)

// shrinker takes memory back from a guest, as far as the guest has some to spare, until the target is reached. Growing
// needs no such care.
type shrinker struct {
	resizer engine.Resizer
	guest   Guest
	paused  func() bool
	log     *slog.Logger
	wake    chan struct{}

	mu     sync.Mutex // also: one change of the device at a time
	target int        // MiB; 0 = what the device was asked for
}

// want is the target, given what the device was asked for.
func (s *shrinker) want(requested int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.target == 0 {
		return requested
	}
	return s.target
}

// set takes a new target and the first step towards it.
func (s *shrinker) set(ctx context.Context, total int) error {
	s.mu.Lock()
	s.target = total
	s.mu.Unlock()
	_, err := s.step(ctx)
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return err
}

// step moves the device as far as the guest can bear now, and tells whether nothing is left to take.
func (s *shrinker) step(ctx context.Context) (done bool, err error) {
	size, err := s.resizer.Size(ctx)
	if err != nil {
		return false, err
	}
	spare, known := 0, false
	s.mu.Lock()
	shrinks := s.target != 0 && s.target < size.MemoryMiB
	s.mu.Unlock()
	if shrinks && s.guest != nil && !s.paused() {
		spare, known = s.spare(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ask := s.target
	switch {
	case ask == 0:
		return true, nil
	case ask >= size.MemoryMiB:
	case s.paused():
		return false, nil // it does not follow now anyway
	case known:
		ask = max(ask, size.MemoryMiB-max(spare, 0))
	}
	if ask != size.RequestedMiB {
		err = s.resizer.Resize(ctx, 0, ask)
	}
	// Until the guest has given back all, what it can spare may change.
	return err == nil && s.target >= size.MemoryMiB, err
}

// spare is how much of its memory the guest could give back now, in MiB. A guest that does not say has itself to blame
// for what it loses.
func (s *shrinker) spare(ctx context.Context) (mib int, known bool) {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	files, err := s.guest.Open(ctx)
	if err != nil {
		return 0, false
	}
	defer files.Close()
	b, err := files.ReadFile(ctx, "/proc/meminfo", 16<<10)
	if err != nil {
		return 0, false
	}
	available, known := pairs(string(b))["MemAvailable:"]
	return int(min(available>>10, 1<<40)) - keepFree, known
}

// run goes on with what set began, until ctx ends.
func (s *shrinker) run(ctx context.Context) {
	var next <-chan time.Time
	var since time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
			since = time.Now()
		case <-next:
		}
		next = nil
		done, err := s.step(ctx)
		if err != nil && ctx.Err() == nil {
			s.log.Warn("memory", "error", err)
		}
		if done {
			continue
		}
		pace := shrinkStep
		if time.Since(since) > shrinkLong {
			pace = shrinkSlow
		}
		next = time.After(pace)
	}
}

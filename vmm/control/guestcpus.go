package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Paths in the guest.
const (
	cpuOnline  = "/sys/devices/system/cpu/online"
	cpuPresent = "/sys/devices/system/cpu/present"
	cpuSwitch  = "/sys/devices/system/cpu/cpu%d/online"
)

const (
	guestTimeout  = 5 * time.Second        // of one pass over the guest's CPUs
	guestPatience = 30 * time.Second       // until a guest that does not follow is asked less often
	guestRetry    = 200 * time.Millisecond // between passes: a CPU takes a moment to be noticed
	guestSlow     = 10 * time.Second       // the same, once patience is at its end
)

// guestCPUs brings the guest's CPUs online and offline. A guest that does not
// answer holds up nobody but the goroutine of run.
type guestCPUs struct {
	guest  Guest
	paused func() bool
	log    *slog.Logger
	wake   chan struct{}

	mu      sync.Mutex
	changed sync.Cond
	want    int // 0 = only look
	seen    int // online at the last look
	asked   int // passes that were asked for
	done    int // the pass that is over
	settled bool
}

// observed is what the guest had at the last look.
func (g *guestCPUs) observed() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.seen
}

// target asks for a number of CPUs.
func (g *guestCPUs) target(n int) {
	g.mu.Lock()
	g.want, g.settled = n, false
	g.asked++
	g.mu.Unlock()
	g.poke()
}

func (g *guestCPUs) poke() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// refresh looks at the guest again and waits for that at most so long.
func (g *guestCPUs) refresh(ctx context.Context, most time.Duration) {
	if g.guest == nil || g.paused() {
		return
	}
	g.mu.Lock()
	g.asked++
	pass := g.asked
	g.mu.Unlock()
	g.poke()
	g.await(ctx, most, func() bool { return g.done >= pass })
}

// settle waits until the guest has what was asked for, at most so long.
func (g *guestCPUs) settle(ctx context.Context, most time.Duration) {
	if g.guest == nil || g.paused() {
		return
	}
	g.await(ctx, most, func() bool { return g.settled })
}

func (g *guestCPUs) await(ctx context.Context, most time.Duration, reached func() bool) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.changed.Broadcast()
	})
	defer stop()
	g.mu.Lock()
	defer g.mu.Unlock()
	for !reached() && ctx.Err() == nil {
		g.changed.Wait()
	}
}

// run serves until ctx ends.
func (g *guestCPUs) run(ctx context.Context) {
	var again <-chan time.Time
	var since time.Time // of the first pass for the present target that did not reach it
	chasing, complained := 0, false
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.wake:
		case <-again:
		}
		again = nil
		if g.guest == nil || g.paused() {
			continue
		}
		g.mu.Lock()
		want, pass := g.want, g.asked
		g.mu.Unlock()
		if want != chasing {
			chasing, since, complained = want, time.Now(), false
		}
		seen, err := g.pass(ctx, want)
		g.mu.Lock()
		if seen > 0 {
			g.seen = seen
		}
		g.done = pass
		reached := g.want == want && (want == 0 || err == nil && seen == want)
		if reached {
			g.settled, g.want, chasing = true, 0, 0
		}
		g.changed.Broadcast()
		g.mu.Unlock()
		switch {
		case reached || ctx.Err() != nil:
		case time.Since(since) < guestPatience:
			again = time.After(guestRetry)
		default:
			if !complained {
				g.log.Warn("the guest does not use the CPUs that it should", "target", want, "online", seen, "error", err)
			}
			complained = true
			again = time.After(guestSlow)
		}
	}
}

// pass moves the guest one step towards want CPUs and returns how many are
// online then; 0 when it did not say.
func (g *guestCPUs) pass(ctx context.Context, want int) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, guestTimeout)
	defer cancel()
	files, err := g.guest.Open(ctx)
	if err != nil {
		return 0, err
	}
	defer files.Close()
	online, err := readCPUs(ctx, files, cpuOnline)
	if err != nil || want == 0 || len(online) == want {
		return len(online), err
	}
	if len(online) > want {
		err = g.offline(ctx, files, online, len(online)-want)
	} else {
		err = g.online(ctx, files, online, want-len(online))
	}
	now, rerr := readCPUs(ctx, files, cpuOnline)
	return len(now), errors.Join(err, rerr)
}

// offline turns the last n CPUs off, and an earlier one for each that stays.
func (g *guestCPUs) offline(ctx context.Context, files GuestFiles, online []int, n int) error {
	var failed []error
	for i := len(online) - 1; i >= 0 && n > 0; i-- {
		if err := files.WriteFile(ctx, fmt.Sprintf(cpuSwitch, online[i]), []byte("0")); err != nil {
			failed = append(failed, err)
			continue
		}
		n--
	}
	if n == 0 {
		return nil
	}
	return errors.Join(failed...)
}

// online turns the first n CPUs on that are off.
func (g *guestCPUs) online(ctx context.Context, files GuestFiles, online []int, n int) error {
	present, err := readCPUs(ctx, files, cpuPresent)
	if err != nil {
		return err
	}
	on := map[int]bool{}
	for _, c := range online {
		on[c] = true
	}
	var failed []error
	for _, c := range present {
		if n == 0 {
			return nil
		}
		if on[c] {
			continue
		}
		if err := files.WriteFile(ctx, fmt.Sprintf(cpuSwitch, c), []byte("1")); err != nil {
			failed = append(failed, err)
			continue
		}
		n--
	}
	return errors.Join(failed...)
}

func readCPUs(ctx context.Context, files GuestFiles, path string) ([]int, error) {
	b, err := files.ReadFile(ctx, path, 4<<10)
	if err != nil {
		return nil, err
	}
	return parseCPUs(string(b))
}

// parseCPUs reads a list such as "0-2,5".
func parseCPUs(s string) ([]int, error) {
	const most = 1 << 12
	var all []int
	for part := range strings.SplitSeq(strings.TrimSpace(s), ",") {
		first, last, isRange := strings.Cut(part, "-")
		a, err := strconv.ParseUint(first, 10, 16)
		b := a
		if err == nil && isRange {
			b, err = strconv.ParseUint(last, 10, 16)
		}
		if err != nil || b < a || len(all) > 0 && int(a) <= all[len(all)-1] || b >= most {
			return nil, fmt.Errorf("the guest's list of CPUs makes no sense: %.40q", s)
		}
		for c := a; c <= b; c++ {
			all = append(all, int(c))
		}
	}
	return all, nil
}

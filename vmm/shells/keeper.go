package shells

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
)

// Bounds of a keeper.
const (
	MaxShells   = 32 // shells that live, or ended unseen
	maxFronts   = 96 // connections at once
	maxArgs     = 64
	maxArgBytes = 32 << 10
)

// Keeper holds the shells of a sandbox. All its methods may be called at the same
// time.
type Keeper struct {
	start Starter
	log   *slog.Logger
	ctx   context.Context
	end   context.CancelFunc
	work  sync.WaitGroup

	mu       sync.Mutex
	shells   map[uint32]*kept
	next     uint32
	starting int
	watchers map[chan struct{}]struct{}
	fronts   int
}

// New returns a keeper without shells. Close ends them.
func New(start Starter, log *slog.Logger) *Keeper {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	k := &Keeper{start: start, log: log, shells: make(map[uint32]*kept), watchers: make(map[chan struct{}]struct{})}
	k.ctx, k.end = context.WithCancel(context.Background())
	return k
}

// Close ends every shell and waits.
func (k *Keeper) Close() {
	k.end()
	k.work.Wait()
}

// open starts a shell.
func (k *Keeper) open(ctx context.Context, s Spec) (*kept, error) {
	if err := checkSpec(s); err != nil {
		return nil, err
	}
	if err := k.reserve(); err != nil {
		return nil, err
	}
	s.Rows, s.Cols = max(s.Rows, 1), max(s.Cols, 2)
	p, err := k.start(ctx, s)
	k.mu.Lock()
	k.starting--
	if err == nil && k.ctx.Err() != nil {
		err = errors.New("the sandbox stops")
		p.Close()
	}
	if err != nil {
		k.mu.Unlock()
		return nil, err
	}
	k.next++
	sh := newKept(k.ctx, k.next, s, p, k.changed)
	k.shells[sh.id] = sh
	k.work.Go(sh.run)
	k.mu.Unlock()
	k.changed()
	return sh, nil
}

func checkSpec(s Spec) error {
	size := len(s.User) + len(s.Cwd)
	for _, a := range slices.Concat(s.Argv, s.Env) {
		size += len(a)
	}
	switch {
	case len(s.Argv) == 0 || s.Argv[0] == "":
		return errors.New("no program is named")
	case len(s.Argv)+len(s.Env) > maxArgs || size > maxArgBytes:
		return fmt.Errorf("a command of more than %d words or %d bytes", maxArgs, maxArgBytes)
	}
	return nil
}

// reserve makes room for one more shell: those that ended unseen go first.
func (k *Keeper) reserve() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for len(k.shells)+k.starting >= MaxShells {
		var oldest *kept
		for _, s := range k.shells {
			if i := s.info(); i.Ended != nil && i.Attached == 0 && (oldest == nil || s.id < oldest.id) {
				oldest = s
			}
		}
		if oldest == nil {
			return fmt.Errorf("%w: %d live; end one first", ErrTooMany, MaxShells)
		}
		delete(k.shells, oldest.id)
	}
	k.starting++
	return nil
}

// find returns a shell by its id; 0 is the one that was used last and lives.
func (k *Keeper) find(id uint32) (*kept, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if id != 0 {
		if s := k.shells[id]; s != nil {
			return s, nil
		}
		return nil, fmt.Errorf("%w: %d", ErrNotFound, id)
	}
	var last *kept
	var used Info
	for _, s := range k.shells {
		if i := s.info(); i.Ended == nil && (last == nil || i.Used.After(used.Used)) {
			last, used = s, i
		}
	}
	if last == nil {
		return nil, fmt.Errorf("%w: none lives", ErrNotFound)
	}
	return last, nil
}

// forget drops a shell that has ended.
func (k *Keeper) forget(s *kept) {
	if s.info().Ended == nil {
		return
	}
	k.mu.Lock()
	_, there := k.shells[s.id]
	delete(k.shells, s.id)
	k.mu.Unlock()
	if there {
		k.changed()
	}
}

// List returns the shells, oldest first.
func (k *Keeper) List() []Info {
	k.mu.Lock()
	defer k.mu.Unlock()
	list := make([]Info, 0, len(k.shells))
	for _, s := range k.shells {
		list = append(list, s.info())
	}
	slices.SortFunc(list, func(a, b Info) int { return int(a.ID) - int(b.ID) })
	return list
}

// changed tells watchers.
func (k *Keeper) changed() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for w := range k.watchers {
		select {
		case w <- struct{}{}:
		default: // it knows already
		}
	}
}

// watch returns a channel that gets a word after changes, until stop.
func (k *Keeper) watch() (c chan struct{}, stop func()) {
	c = make(chan struct{}, 1)
	k.mu.Lock()
	k.watchers[c] = struct{}{}
	k.mu.Unlock()
	return c, func() {
		k.mu.Lock()
		delete(k.watchers, c)
		k.mu.Unlock()
	}
}

package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// lockPoll is how often a lock that another process holds is asked for again.
const lockPoll = 100 * time.Millisecond

// lock takes the library-wide lock of that name for this caller alone and waits for it until ctx ends. waiting is
// called once when somebody else has it. The lock ends with release or with the process.
func (l *Library) lock(ctx context.Context, name string, waiting func()) (release func(), err error) {
	f, err := l.openLock(name)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for first := true; ; first = false {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			_ = f.Close()
			return nil, fmt.Errorf("cannot lock %s: %w", f.Name(), err)
		}
		if first && waiting != nil {
			waiting()
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// tryLock takes the lock shared or exclusively, or reports ErrInUse at once.
func (l *Library) tryLock(name string, how int) (release func(), err error) {
	f, err := l.openLock(name)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, ErrInUse
		}
		return nil, fmt.Errorf("cannot lock %s: %w", f.Name(), err)
	}
	return func() { _ = f.Close() }, nil
}

// openLock opens a lock file. Lock files are never removed: two processes could hold two files of one name.
func (l *Library) openLock(name string) (*os.File, error) {
	path := filepath.Join(l.locksDir(), name)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open lock %s: %w", path, err)
	}
	return f, nil
}

// How tryLock takes a lock.
const (
	lockShared    = unix.LOCK_SH
	lockExclusive = unix.LOCK_EX
)

package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Lock is the exclusive right to run or change one sandbox. The kernel releases it when its holder
// dies, so a lock that is free proves that no runtime is left, whatever files say.
type Lock struct {
	f    *os.File
	path string
}

// lockPatience is how long Lock retries: another process may hold the lock for the moment in which it
// looks whether the sandbox runs.
const lockPatience = 300 * time.Millisecond

// Lock takes the sandbox's lock. It fails with ErrLocked when another process keeps it.
func (h *Home) Lock(ctx context.Context, name string) (*Lock, error) {
	if err := ValidateName(name); err != nil {
		return nil, err
	}
	path := h.LockPath(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("lock of sandbox %q: %w", name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	for {
		f, err := tryLock(path, syscall.LOCK_EX, os.O_CREATE)
		if err == nil {
			return &Lock{f: f, path: path}, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock of sandbox %q: %w", name, err)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("sandbox %q: %w", name, ErrLocked)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// LockChange is held by whoever changes a sandbox and its config together, so that the two stay of one mind when
// several do. It waits for its turn until ctx ends; running sandboxes can be changed, so it is another lock than Lock's.
func (h *Home) LockChange(ctx context.Context, name string) (*Lock, error) {
	if err := ValidateName(name); err != nil {
		return nil, err
	}
	path := filepath.Join(h.SandboxDir(name), "change.lock")
	for {
		f, err := tryLock(path, syscall.LOCK_EX, os.O_CREATE)
		switch {
		case err == nil:
			return &Lock{f: f, path: path}, nil
		case errors.Is(err, os.ErrNotExist):
			return nil, fmt.Errorf("%w: %q", ErrNotFound, name)
		case !errors.Is(err, syscall.EWOULDBLOCK):
			return nil, fmt.Errorf("change of sandbox %q: %w", name, err)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("sandbox %q is being changed by another process: %w", name, context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Unlock gives the lock back. The file stays: a process that already opened it would otherwise lock a
// file that nobody sees.
func (l *Lock) Unlock() error { return l.f.Close() }

// Remove removes the file and gives the lock back, when the sandbox is gone for good.
func (l *Lock) Remove() error { return errors.Join(os.Remove(l.path), l.f.Close()) }

// Locked says whether a process holds the sandbox's lock.
func (h *Home) Locked(name string) bool {
	f, err := tryLock(h.LockPath(name), syscall.LOCK_SH, 0)
	if err == nil {
		f.Close()
		return false
	}
	return errors.Is(err, syscall.EWOULDBLOCK)
}

func tryLock(path string, how, flags int) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NOFOLLOW|flags, 0o600)
		if err != nil {
			return nil, err
		}
		if err := flock(f, how|syscall.LOCK_NB); err != nil {
			f.Close()
			return nil, err
		}
		// Remove may have taken the file away between open and flock.
		mine, err1 := f.Stat()
		theirs, err2 := os.Lstat(path)
		if err1 == nil && err2 == nil && os.SameFile(mine, theirs) {
			return f, nil
		}
		f.Close()
		if err := errors.Join(err1, err2); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		} else if err != nil && flags&os.O_CREATE == 0 {
			return nil, err
		}
	}
}

func flock(f *os.File, how int) error {
	for {
		if err := syscall.Flock(int(f.Fd()), how); err != syscall.EINTR {
			return err
		}
	}
}

func isInvalid(err error) bool { return errors.Is(err, syscall.EINVAL) }

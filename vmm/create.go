package vmm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"msb/vmm/store"
)

// Create makes a sandbox and starts it; it returns when the guest is ready. On failure, and when ctx ends,
// nothing of the sandbox is left.
func (h *Host) Create(ctx context.Context, o CreateOptions, report Progress) (Sandbox, error) {
	c, err := o.config()
	if err != nil {
		return Sandbox{}, err
	}
	if err := h.Home.CheckSockets(c.Name); err != nil {
		return Sandbox{}, err
	}
	if h.Home.Exists(c.Name) {
		return Sandbox{}, fmt.Errorf("%w: %q; start it with `msb start %[2]s`, or remove it first", ErrExists, c.Name)
	}
	if err := h.build(ctx, c, report); err != nil {
		return Sandbox{}, err
	}
	if o.NoStart {
		return h.Inspect(ctx, c.Name)
	}
	if err := h.launch(ctx, c.Name, report); err != nil {
		tail := h.logTail(c.Name)
		if rerr := h.discard(c.Name); rerr != nil {
			return Sandbox{}, fmt.Errorf("%w; and it could not be removed again: %w", err, rerr)
		}
		if tail != "" {
			err = fmt.Errorf("%w\n%s", err, tail)
		}
		return Sandbox{}, err
	}
	return h.Inspect(ctx, c.Name)
}

// build makes the sandbox's directory with its disk, all at once or not at all.
func (h *Host) build(ctx context.Context, c store.Config, report Progress) error {
	draft, err := h.Home.Draft()
	if err != nil {
		return err
	}
	committed := false
	defer func() {
		if !committed {
			draft.Discard()
		}
	}()
	disk := filepath.Join(draft.Dir, filepath.Base(h.Home.DiskPath(c.Name, c.Engine)))
	if err := h.makeDisk(ctx, &c, disk, report); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := draft.Commit(c); err != nil {
		return err
	}
	committed = true
	return nil
}

func (h *Host) makeDisk(ctx context.Context, c *store.Config, path string, report Progress) error {
	if h.deps.Disk == nil {
		return errors.New("this program cannot make disks")
	}
	if report == nil {
		report = func(Event) {}
	}
	return h.deps.Disk(ctx, c, path, report)
}

// discard removes a sandbox whose first start failed.
func (h *Host) discard(name string) error {
	lock, err := h.Home.Lock(context.Background(), name)
	if err != nil {
		return err
	}
	return errors.Join(h.Home.Remove(name), lock.Remove())
}

// Remove deletes a sandbox with its disk and logs; ErrRunning if it runs and Force is not set.
func (h *Host) Remove(ctx context.Context, name string, o RemoveOptions) error {
	if err := store.ValidateName(name); err != nil {
		return err
	}
	if !h.Home.Exists(name) {
		return fmt.Errorf("%w: %q", ErrNotFound, name)
	}
	if o.Force {
		if err := h.Stop(ctx, name, StopOptions{Force: true}); err != nil && !errors.Is(err, ErrNotRunning) && !errors.Is(err, ErrForced) {
			return err
		}
	}
	lock, err := h.lockIdle(ctx, name)
	if err != nil {
		return err
	}
	if err := h.Home.Remove(name); err != nil {
		lock.Unlock()
		return err
	}
	return lock.Remove()
}

// Reset gives a stopped sandbox a fresh disk from its image; ErrRunning if it runs. If that fails the old
// disk stays.
func (h *Host) Reset(ctx context.Context, name string, report Progress) error {
	c, err := h.Home.Load(name)
	if err != nil {
		return err
	}
	lock, err := h.lockIdle(ctx, name)
	if err != nil {
		return err
	}
	defer lock.Unlock()
	disk := h.Home.DiskPath(name, c.Engine)
	fresh := filepath.Join(filepath.Dir(disk), ".fresh-"+filepath.Base(disk))
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("reset %q: %w", name, err)
	}
	if err := h.makeDisk(ctx, &c, fresh, report); err != nil {
		os.Remove(fresh)
		return err
	}
	if err := os.Rename(fresh, disk); err != nil {
		os.Remove(fresh)
		return fmt.Errorf("reset %q: %w", name, err)
	}
	if err := h.Home.Save(c); err != nil {
		return err
	}
	return h.Home.SaveState(name, store.State{Status: store.Stopped})
}

// lockIdle takes the lock of a sandbox that does not run.
func (h *Host) lockIdle(ctx context.Context, name string) (*store.Lock, error) {
	lock, err := h.Home.Lock(ctx, name)
	if errors.Is(err, store.ErrLocked) {
		return nil, fmt.Errorf("%w: %q; stop it first (`msb stop %[2]s`)", ErrRunning, name)
	}
	return lock, err
}

package vmm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"msb/protocol/agent"
	"msb/protocol/frame"
	"msb/vmm/runtime"
	"msb/vmm/store"
)

const (
	stopPoll = 10 * time.Millisecond
	// killTimeout is how long a runtime may take to end its machine by force before it is killed itself.
	killTimeout = 5 * time.Second
	dialTimeout = 2 * time.Second
)

// Stop asks the guest to power itself off and waits for it. ErrNotRunning if it does not run; ErrForced
// if it had to be killed. When ctx ends first the request stands, and the sandbox stops by itself.
func (h *Host) Stop(ctx context.Context, name string, o StopOptions) error {
	// Not Load: a sandbox whose config is damaged has a machine that can be stopped all the same.
	if err := store.ValidateName(name); err != nil {
		return err
	}
	if !h.Home.Exists(name) {
		return fmt.Errorf("%w: %q", ErrNotFound, name)
	}
	st, err := h.Home.State(name)
	if err != nil {
		return err
	}
	if !st.Status.Live() {
		return fmt.Errorf("%w: %q", ErrNotRunning, name)
	}
	if st.RuntimePID == 0 {
		// It has only just taken the lock.
		if st, err = h.awaitRecord(ctx, name); err != nil {
			return err
		}
		if !st.Status.Live() {
			return fmt.Errorf("%w: %q", ErrNotRunning, name)
		}
	}
	timeout := o.Timeout
	if timeout <= 0 {
		timeout = DefaultStopTimeout
	}
	if !o.Force {
		if st.Status != store.Running || askShutdown(ctx, h.Home.AgentSocket(name)) != nil {
			// Still starting, or no way in: the runtime itself asks the guest.
			if err := signal(st, syscall.SIGTERM); err != nil {
				return err
			}
		}
		done, err := h.awaitEnd(ctx, name, st, timeout)
		if err != nil {
			return err
		}
		if done {
			return h.outcome(name)
		}
	}
	if err := signal(st, runtime.StopNow); err != nil {
		return err
	}
	done, err := h.awaitEnd(ctx, name, st, killTimeout)
	if err != nil {
		return err
	}
	if !done {
		if err := signal(st, syscall.SIGKILL); err != nil {
			return err
		}
		if done, err = h.awaitEnd(ctx, name, st, killTimeout); err != nil {
			return err
		}
		if !done {
			return fmt.Errorf("stop %q: its runtime (process %d) does not end", name, st.RuntimePID)
		}
	}
	return h.outcome(name)
}

// outcome says how the run that has just ended did.
func (h *Host) outcome(name string) error {
	st, err := h.Home.State(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if st.Forced {
		why := strings.TrimPrefix(strings.TrimPrefix(st.Reason, ErrForced.Error()), ": ")
		if why == "" {
			return fmt.Errorf("stop %q: %w", name, ErrForced)
		}
		return fmt.Errorf("stop %q: %w: %s", name, ErrForced, why)
	}
	return nil
}

// awaitEnd waits until a runtime has ended and let go of the lock; false when it has not in time.
func (h *Host) awaitEnd(ctx context.Context, name string, st store.State, timeout time.Duration) (bool, error) {
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	poll := time.NewTicker(stopPoll)
	defer poll.Stop()
	for {
		if !store.Alive(st.RuntimePID, st.RuntimeStart) {
			return true, nil
		}
		select {
		case <-poll.C:
		case <-deadline.C:
			return false, nil
		case <-ctx.Done():
			return false, fmt.Errorf("stop %q: %w; it is still shutting down", name, ctx.Err())
		}
	}
}

// awaitRecord waits until the process that holds the lock has said who it is.
func (h *Host) awaitRecord(ctx context.Context, name string) (store.State, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	for {
		st, err := h.Home.State(name)
		if err != nil || st.RuntimePID != 0 || !st.Status.Live() {
			return st, err
		}
		select {
		case <-time.After(stopPoll):
		case <-ctx.Done():
			return st, fmt.Errorf("stop %q: another command is working on it; try again", name)
		}
	}
}

// signal sends a signal to a runtime, never to a process that got its pid later.
func signal(st store.State, sig syscall.Signal) error {
	p, err := os.FindProcess(st.RuntimePID) // holds a pidfd where the kernel has them
	if err != nil {
		return fmt.Errorf("runtime (process %d): %w", st.RuntimePID, err)
	}
	defer p.Release()
	if !store.Alive(st.RuntimePID, st.RuntimeStart) {
		return nil
	}
	if err := p.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("runtime (process %d): %w", st.RuntimePID, err)
	}
	return nil
}

// askShutdown sends core.shutdown as any client does: the prologue is read, one frame is written.
func askShutdown(ctx context.Context, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		conn.SetDeadline(deadline)
	}
	var ids [8]byte
	if _, err := io.ReadFull(conn, ids[:]); err != nil {
		return err
	}
	if _, err := frame.NewReader(conn).Next(); err != nil {
		return err
	}
	wire, err := agent.AppendFrame(nil, 0, agent.Shutdown, agent.Generation, nil)
	if err != nil {
		return err
	}
	_, err = conn.Write(wire)
	return err
}

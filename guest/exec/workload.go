package exec

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// WorkloadName is the cgroup that holds every command and what descends from it.
const WorkloadName = "microsandbox-workload"

// freezeTimeout is how long the kernel gets to stop every process.
const freezeTimeout = 5 * time.Second

// Workload is the cgroup of all commands. It can be frozen as one.
type Workload struct {
	dir  *os.File
	path string
}

// OpenWorkload makes the cgroup below parent, a cgroup v2 directory, and checks that it can be frozen.
func OpenWorkload(parent string) (*Workload, error) {
	path := filepath.Join(parent, WorkloadName)
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("make the workload cgroup: %w", err)
	}
	if err := unix.Access(filepath.Join(path, "cgroup.freeze"), unix.W_OK); err != nil {
		return nil, fmt.Errorf("the kernel has no cgroup v2 freezer: %w", err)
	}
	dir, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the workload cgroup: %w", err)
	}
	return &Workload{dir: dir, path: path}, nil
}

func (w *Workload) fd() int { return int(w.dir.Fd()) }

// Freeze stops every process of the workload and returns when all have stopped.
func (w *Workload) Freeze(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, freezeTimeout)
	defer cancel()
	if err := w.write("1"); err != nil {
		return fmt.Errorf("freeze the workload: %w", err)
	}
	if err := w.await(ctx, "frozen 1"); err != nil {
		return errors.Join(fmt.Errorf("freeze the workload: %w", err), w.Thaw(context.WithoutCancel(ctx)))
	}
	return nil
}

// Thaw lets the workload run again.
func (w *Workload) Thaw(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, freezeTimeout)
	defer cancel()
	if err := w.write("0"); err != nil {
		return fmt.Errorf("thaw the workload: %w", err)
	}
	if err := w.await(ctx, "frozen 0"); err != nil {
		return fmt.Errorf("thaw the workload: %w", err)
	}
	return nil
}

// Close gives the cgroup up; it disappears once it is empty.
func (w *Workload) Close() {
	_ = w.dir.Close()
	_ = os.Remove(w.path)
}

func (w *Workload) write(v string) error {
	return os.WriteFile(filepath.Join(w.path, "cgroup.freeze"), []byte(v), 0)
}

// await waits until cgroup.events says what is wanted. The kernel wakes pollers of that file when it changes.
func (w *Workload) await(ctx context.Context, want string) error {
	f, err := os.Open(filepath.Join(w.path, "cgroup.events"))
	if err != nil {
		return err
	}
	defer f.Close()
	buf := make([]byte, 256)
	for {
		n, err := f.ReadAt(buf, 0)
		if n == 0 {
			return err
		}
		for line := range strings.Lines(string(buf[:n])) {
			if strings.TrimSpace(line) == want {
				return nil
			}
		}
		if err := ctx.Err(); err != nil {
			return errors.New("the kernel did not stop every process in time")
		}
		// A bounded wait: a change between the read and the poll is reported, a lost wakeup costs 50 ms.
		_, err = unix.Poll([]unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLPRI}}, 50)
		if err != nil && err != unix.EINTR {
			return err
		}
	}
}

package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// LimitCPUs bounds the time of the machine by a control group of its own where this process may make one, else by
// letting its virtual CPUs run on that many of the host's CPUs only. On a host that has no more than that nothing is
// left to bound.
func (m *machine) LimitCPUs(ctx context.Context, cpus int) (how string, err error) {
	if cpus < 1 {
		return "", fmt.Errorf("a limit of %d CPUs", cpus)
	}
	m.limiting.Lock()
	defer m.limiting.Unlock()
	select {
	case <-m.done:
		return "", errors.New("the machine has ended")
	default:
	}
	threads, err := m.cpuThreads(ctx)
	if err != nil {
		return "", err
	}
	if m.cgroup == nil {
		m.cgroup = newCgroup(m.PID())
	}
	if m.cgroup != nil {
		if err := m.cgroup.limit(cpus, len(threads)); err == nil {
			return "cgroup", nil
		}
	}
	return "affinity", pin(threads, cpus, m.PID())
}

// cpuThreads are the threads of the virtual CPUs.
func (m *machine) cpuThreads(ctx context.Context) ([]int, error) {
	var all []struct {
		Thread int `json:"thread-id"`
	}
	if err := m.qmp.Do(ctx, "query-cpus-fast", nil, &all); err != nil {
		return nil, err
	}
	threads := make([]int, 0, len(all))
	for _, c := range all {
		// Only threads of QEMU's own: a QEMU that lies must not have others pinned.
		if _, err := os.Stat(fmt.Sprintf("/proc/%d/task/%d", m.PID(), c.Thread)); err != nil || c.Thread <= 0 {
			return nil, fmt.Errorf("QEMU names thread %d as a CPU of its own, which it is not", c.Thread)
		}
		threads = append(threads, c.Thread)
	}
	if len(threads) == 0 {
		return nil, errors.New("QEMU names no CPU")
	}
	return threads, nil
}

// pin lets threads run on n of the CPUs that this process may use. Which ones depends on pick, so that machines do not
// all crowd on the first ones.
func pin(threads []int, n, pick int) error {
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return fmt.Errorf("the host's CPUs: %w", err)
	}
	var usable []int
	for c := range 8 * 128 {
		if all.IsSet(c) {
			usable = append(usable, c)
		}
	}
	set := all
	if n < len(threads) && n < len(usable) {
		set.Zero()
		for i := range n {
			set.Set(usable[(pick+i)%len(usable)])
		}
	}
	for _, t := range threads {
		if err := unix.SchedSetaffinity(t, &set); err != nil {
			return fmt.Errorf("CPU thread %d: %w", t, err)
		}
	}
	return nil
}

package qemu

import (
	"context"
	"errors"
	"fmt"

	"msb/vmm/engine"
)

type hotplugCPU struct {
	Type  string         `json:"type"`
	Props map[string]any `json:"props"`
	Path  string         `json:"qom-path"` // "" = a free place
}

func (m *machine) cpus(ctx context.Context) (present int, free []hotplugCPU, err error) {
	var all []hotplugCPU
	if err := m.qmp.Do(ctx, "query-hotpluggable-cpus", nil, &all); err != nil {
		return 0, nil, err
	}
	for i := len(all) - 1; i >= 0; i-- { // QEMU lists the last place first
		if all[i].Path == "" {
			free = append(free, all[i])
		} else {
			present++
		}
	}
	return present, free, nil
}

// Size asks QEMU what the machine has.
func (m *machine) Size(ctx context.Context) (engine.Size, error) {
	present, free, err := m.cpus(ctx)
	if err != nil {
		return engine.Size{}, err
	}
	s := engine.Size{
		CPUs: present, MaxCPUs: present + len(free),
		BootMiB: m.memory.boot, MemoryMiB: m.memory.boot, RequestedMiB: m.memory.boot, MaxMemoryMiB: m.memory.boot + m.memory.device,
	}
	if m.memory.device == 0 {
		return s, nil
	}
	for property, out := range map[string]*int{"size": &s.MemoryMiB, "requested-size": &s.RequestedMiB} {
		var bytes int64
		if err := m.qmp.Do(ctx, "qom-get", map[string]any{"path": memPath, "property": property}, &bytes); err != nil {
			return engine.Size{}, err
		}
		*out += int(bytes >> 20)
	}
	s.MaxMemoryMiB = min(s.MaxMemoryMiB, max(m.spec.MaxMemoryMiB, s.MemoryMiB))
	return s, nil
}

// Resize plugs CPUs and moves the target of the virtio-mem device. It does not go below the memory the machine booted
// with, and takes no CPU away.
func (m *machine) Resize(ctx context.Context, cpus, memoryMiB int) error {
	return errors.Join(m.resizeCPUs(ctx, cpus), m.resizeMemory(ctx, memoryMiB))
}

func (m *machine) resizeCPUs(ctx context.Context, want int) error {
	if want == 0 {
		return nil
	}
	present, free, err := m.cpus(ctx)
	if err != nil {
		return err
	}
	switch {
	case want > present+len(free):
		return fmt.Errorf("%d CPUs are more than the sandbox's maximum of %d", want, present+len(free))
	case want < present:
		return fmt.Errorf("the machine has %d CPUs and cannot give one back while it runs (asked for %d)", present, want)
	}
	for i, place := range free[:want-present] {
		args := map[string]any{"driver": place.Type, "id": fmt.Sprintf("cpu%d", present+i)}
		for k, v := range place.Props {
			args[k] = v
		}
		if err := m.qmp.Do(ctx, "device_add", args, nil); err != nil {
			return err
		}
	}
	return nil
}

func (m *machine) resizeMemory(ctx context.Context, want int) error {
	if want == 0 {
		return nil
	}
	want = roundUp(want, 2)
	switch {
	case want > roundUp(m.spec.MaxMemoryMiB, 2):
		return fmt.Errorf("%d MiB are more than the sandbox's maximum of %d MiB", want, m.spec.MaxMemoryMiB)
	case want < m.memory.boot:
		return fmt.Errorf("%d MiB are less than the %d MiB this machine booted with", want, m.memory.boot)
	case m.memory.device == 0:
		return nil
	}
	return m.qmp.Do(ctx, "qom-set", map[string]any{
		"path": memPath, "property": "requested-size", "value": int64(want-m.memory.boot) << 20,
	}, nil)
}

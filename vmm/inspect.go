package vmm

import (
	"context"
	"errors"

	"msb/vmm/store"
)

// List returns all sandboxes by name. One that cannot be read is listed with State "broken" and the reason.
func (h *Host) List(ctx context.Context) ([]Sandbox, error) {
	names, err := h.Home.List()
	if err != nil {
		return nil, err
	}
	all := make([]Sandbox, 0, len(names))
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		s, err := h.Inspect(ctx, name)
		if errors.Is(err, ErrNotFound) && !h.Home.Exists(name) {
			continue // removed meanwhile
		}
		if err != nil {
			s = Sandbox{Name: name, State: store.Broken, Reason: err.Error(), Directory: h.Home.SandboxDir(name), Mounts: []store.Mount{}}
		}
		all = append(all, s)
	}
	return all, nil
}

// Inspect returns one sandbox, or ErrNotFound.
func (h *Host) Inspect(_ context.Context, name string) (Sandbox, error) {
	c, err := h.Home.Load(name)
	if err != nil {
		return Sandbox{}, err
	}
	st, err := h.Home.State(name)
	if err != nil {
		return Sandbox{}, err
	}
	mounts, err := h.Home.Mounts(name)
	if err != nil {
		return Sandbox{}, err
	}
	s := Sandbox{
		Name: name, State: st.Status, Reason: st.Reason, Engine: c.Engine, Accel: c.Accel,
		Image: c.Image, ImageSHA256: c.ImageSHA256, Generation: int(st.Generation), AgentVersion: st.AgentVersion,
		CPUs: c.CPUs, MaxCPUs: c.MaxCPUs, MemoryMiB: c.MemoryMiB, MaxMemoryMiB: c.MaxMemoryMiB, RootDisk: c.RootDisk,
		Net: c.Net, Env: c.Env, User: c.User, Workdir: c.Workdir, Hostname: c.Hostname, Labels: c.Labels,
		IdleTimeout: c.IdleTimeout, MaxDuration: c.MaxDuration, Created: c.Created, Started: st.Started, Ended: st.Ended,
		Forced: st.Forced, Directory: h.Home.SandboxDir(name), AgentSocket: h.Home.AgentSocket(name),
		ControlSocket: h.Home.ControlSocket(name), TurnSocket: h.Home.TurnSocket(name), ShellsSocket: h.Home.ShellsSocket(name), TrafficSocket: h.Home.TrafficSocket(name),
		RuntimePID: st.RuntimePID, RuntimeStart: st.RuntimeStart, Paused: st.Paused, DiskError: st.DiskError, Secrets: c.Secrets, EnginePID: st.EnginePID, Boot: st.Boot, Mounts: mounts,
	}
	if st.Status.Live() && st.Accel != "" {
		s.Accel = st.Accel
	}
	return s, nil
}

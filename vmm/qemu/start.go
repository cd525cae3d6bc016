package qemu

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"time"

	"msb/vmm/engine"
	"msb/vmm/engine/child"
	"msb/vmm/engine/console"
	"msb/vmm/qemu/qmp"
)

// startTimeout bounds what QEMU needs until it takes commands; it is some 50 ms on an idle host.
const startTimeout = 30 * time.Second

// Start boots a machine. With Spec.Accel "auto" the first start on a host (see Probe) takes up to 3 s longer.
func (e *Engine) Start(ctx context.Context, s engine.Spec) (engine.VM, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	for _, f := range [][2]string{{"kernel", s.Kernel}, {"initramfs", s.Initrd}} {
		if err := needFile(f[0], f[1]); err != nil {
			return nil, err
		}
	}
	if s.Disk != "" {
		if err := needFile("disk", s.Disk); err != nil {
			return nil, err
		}
	}
	accel, notice, err := e.choose(ctx, s)
	if err != nil {
		return nil, err
	}
	m, err := e.launch(ctx, s, accel)
	if err != nil {
		return nil, fmt.Errorf("start the virtual machine: %w", err)
	}
	m.notice = notice
	return m, nil
}

// launch starts QEMU, negotiates and lets the guest's CPUs run.
func (e *Engine) launch(ctx context.Context, s engine.Spec, accel string) (_ *machine, err error) {
	path, err := exec.LookPath(e.binary)
	if err != nil {
		return nil, fmt.Errorf("QEMU: %w; %s", err, install)
	}
	mem, err := layout(s.MemoryMiB, s.MaxMemoryMiB)
	if err != nil {
		return nil, err
	}
	args, err := arguments(s, accel, mem)
	if err != nil {
		return nil, err
	}
	log, err := console.Open(s.KernelLog)
	if err != nil {
		return nil, err
	}
	m := &machine{
		spec: s, accel: accel, memory: mem, log: log,
		events: engine.NewEventQueue(64), done: make(chan struct{}), logged: make(chan struct{}),
	}

	pairs := make([]*child.Pair, 0, 4)
	defer func() {
		for _, p := range pairs {
			p.Theirs.Close()
			if err != nil {
				p.Ours.Close()
			}
		}
	}()
	names := []string{"qmp", "console", "agent"}
	if s.DualPort {
		names = append(names, "agent-bulk")
	}
	cmd := exec.Command(path, args...)
	for _, name := range names {
		p, err := child.SocketPair(name)
		if err != nil {
			return nil, err
		}
		pairs = append(pairs, p)
		cmd.ExtraFiles = append(cmd.ExtraFiles, p.Theirs)
	}
	m.control = pairs[2].Ours
	if s.DualPort {
		m.bulk = pairs[3].Ours
	}
	cmd.Dir = "/"
	// QEMU needs no variable of the user's, and a core dump of it would hold the guest's memory.
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "TMPDIR=" + os.TempDir()}

	if m.child, err = child.Start(cmd); err != nil {
		return nil, err
	}
	for _, p := range pairs {
		p.Theirs.Close() // so that the end of QEMU is the end of the streams
	}
	go func() {
		defer close(m.logged)
		log.Copy(pairs[1].Ours)
		pairs[1].Ours.Close()
	}()

	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	m.qmp, err = qmp.New(ctx, pairs[0].Ours, m.event)
	if err == nil {
		err = m.qmp.Do(ctx, "cont", nil, nil)
	}
	if err != nil {
		_ = m.child.Kill()
		<-m.child.Done()
		<-m.logged
		if m.qmp != nil {
			m.qmp.Close()
		}
		if text := m.child.Stderr(); text != "" {
			return nil, fmt.Errorf("QEMU: %s", text)
		}
		return nil, err
	}
	go m.watch()
	return m, nil
}

// noKVM is what the user reads; why KVM does not work is in the probe's reason, for doctor.
const noKVM = "no working KVM here, using emulation (slower); see `msb doctor`"

// choose turns Spec.Accel into what is used, with a line for the user when it is not what one would hope for.
func (e *Engine) choose(ctx context.Context, s engine.Spec) (accel, notice string, err error) {
	if s.Accel == engine.AccelTCG {
		return engine.AccelTCG, "", nil
	}
	p, err := e.Probe(ctx, s.Kernel, s.Initrd, s.CacheDir)
	switch {
	case err != nil:
		return "", "", err
	case p.Works:
		return engine.AccelKVM, "", nil
	case s.Accel == engine.AccelKVM:
		return "", "", fmt.Errorf("KVM does not work here: %s; use --accel tcg, or auto", p.Reason)
	}
	return engine.AccelTCG, noKVM, nil
}

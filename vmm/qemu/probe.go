package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"msb/vmm/engine"
)

// ProbeTime bounds one probe. A guest that works prints its first byte within a fraction of this.
const ProbeTime = 3 * time.Second

// Probed is whether guests run under KVM on this host, and how that was found out.
type Probed struct {
	Works  bool      `json:"works"`
	Reason string    `json:"reason"` // one line: why not, or what was seen
	Time   time.Time `json:"time"`   // of the probe
	Cached bool      `json:"-"`      // remembered from an earlier one
}

var probing sync.Mutex // one probe at a time in a process: a second one would only slow the first down

const kvmDevice = "/dev/kvm"

// Probe boots kernel under KVM until it prints its first byte, for at most ProbeTime. That a /dev/kvm opens and makes
// virtual machines is no proof: on some nested hosts a guest then spins for ever.
//
// The answer is remembered in cacheDir ("" = nowhere) for that kernel, CPU, host kernel and QEMU; a negative one for a
// day, since a host that was busy may be wrong about itself. The error is about the probe itself (no QEMU, no kernel,
// ctx); a host without KVM is an answer.
func (e *Engine) Probe(ctx context.Context, kernel, initrd, cacheDir string) (Probed, error) {
	if reason := kvmUnusable(); reason != "" {
		return Probed{Reason: reason, Time: time.Now()}, nil // cheap to find out again, and easy to change
	}
	path, err := exec.LookPath(e.binary)
	if err != nil {
		return Probed{}, fmt.Errorf("QEMU: %w; %s", err, install)
	}
	if err := needFile("kernel", kernel); err != nil {
		return Probed{}, err
	}
	probing.Lock()
	defer probing.Unlock()
	cache, err := openProbeCache(cacheDir, path, kernel)
	if err != nil {
		return Probed{}, err
	}
	if p, ok := cache.load(); ok {
		return p, nil
	}
	p, err := e.probe(ctx, kernel, initrd)
	if err != nil {
		return Probed{}, fmt.Errorf("find out whether KVM works: %w", err)
	}
	// An answer that cannot be kept is asked for again the next time.
	_ = cache.save(p)
	return p, nil
}

func kvmUnusable() string {
	f, err := os.OpenFile(kvmDevice, os.O_RDWR, 0)
	switch {
	case err == nil:
		f.Close()
		return ""
	case errors.Is(err, os.ErrNotExist):
		return "this host has no " + kvmDevice + " (virtualization is off in the firmware, or this is a VM without nesting)"
	case errors.Is(err, os.ErrPermission):
		return "no permission for " + kvmDevice + " (add yourself to the group kvm and log in again)"
	case errors.Is(err, unix.EBUSY):
		return kvmDevice + " is in use by another hypervisor"
	}
	return err.Error()
}

func (e *Engine) probe(ctx context.Context, kernel, initrd string) (Probed, error) {
	start := time.Now()
	limit, cancel := context.WithTimeout(ctx, ProbeTime)
	defer cancel()
	s := engine.Spec{
		Name: "kvm-probe", Kernel: kernel, Initrd: initrd, CPUs: 1, MemoryMiB: MinMemoryMiB,
		Cmdline: []string{"earlyprintk=ttyS0", "ignore_loglevel"},
	}
	if err := s.Validate(); err != nil {
		return Probed{}, err
	}
	m, err := e.launch(limit, s, engine.AccelKVM)
	switch {
	case ctx.Err() != nil:
		return Probed{}, ctx.Err()
	case err != nil && limit.Err() != nil:
		return Probed{Reason: fmt.Sprintf("QEMU with KVM did not come up within %v", ProbeTime), Time: start}, nil
	case err != nil:
		return Probed{Reason: err.Error(), Time: start}, nil
	}
	defer func() {
		m.Kill()
		<-m.Done()
		m.control.Close()
	}()
	select {
	case <-m.log.First():
		took := time.Since(start).Round(time.Millisecond)
		return Probed{Works: true, Reason: fmt.Sprintf("a guest printed its first byte after %v", took), Time: start}, nil
	case <-m.Done():
		if err := m.Exit().Err; err != nil {
			return Probed{Reason: err.Error(), Time: start}, nil
		}
		return Probed{Reason: "the guest ended without a word", Time: start}, nil
	case <-limit.Done():
		if ctx.Err() != nil {
			return Probed{}, ctx.Err()
		}
		return Probed{
			Reason: fmt.Sprintf("%s opens, but a guest printed nothing for %v (nested virtualization that does not run)", kvmDevice, ProbeTime),
			Time:   start,
		}, nil
	}
}

package qemu

import (
	"fmt"
)

// MinMemoryMiB is the least memory that Debian's kernel, our initramfs and the agent come up with.
const MinMemoryMiB = 128

const (
	// Memory the machine boots with when it can grow: small, since it never shrinks.
	bootMiB = 256
	// What hotplugged memory costs the guest is taken from boot memory (1/64 for page structures, and all kernel
	// memory, since it is onlined as movable), so boot memory is at least this part of the maximum.
	bootShare = 8
	// Linux adds memory in pieces of this size.
	sectionMiB = 128
	// What fits below the 40 bits of a physical address that emulated CPUs have, with room for devices.
	maxMemoryMiB = 512 << 10
)

// memory is how a machine's memory is laid out: what it boots with and the virtio-mem device for the rest.
type memory struct {
	boot      int // MiB
	device    int // size of the virtio-mem device in MiB; 0 = none
	requested int // of the device
}

// layout splits memory MiB of at most maximum. A multiple of 2 MiB is given: rounded up.
func layout(want, maximum int) (memory, error) {
	if want < MinMemoryMiB {
		return memory{}, fmt.Errorf("%d MiB of memory are too little for a virtual machine: give it at least %d MiB", want, MinMemoryMiB)
	}
	if maximum > maxMemoryMiB {
		return memory{}, fmt.Errorf("%d MiB of memory are more than a virtual machine can have (%d MiB)", maximum, maxMemoryMiB)
	}
	want, maximum = roundUp(want, 2), roundUp(maximum, 2)
	if want == maximum {
		return memory{boot: want}, nil
	}
	boot := min(want, max(bootMiB, roundUp(maximum/bootShare, sectionMiB)))
	return memory{boot: boot, device: roundUp(maximum-boot, sectionMiB), requested: want - boot}, nil
}

func (m memory) arguments(a *argList) {
	if m.device == 0 {
		a.add("-m", mib(m.boot))
		return
	}
	a.add("-m", fmt.Sprintf("size=%dM,maxmem=%dM", m.boot, m.boot+m.device))
	a.add("-object", fmt.Sprintf("memory-backend-ram,id=vmem,size=%dM,reserve=off,dump=off", m.device))
	a.add("-device", fmt.Sprintf("virtio-mem-pci,id=%s,memdev=vmem,requested-size=%dM", memDevice, m.requested))
}

// memDevice is the id, and memPath the place in QEMU's object tree, of the virtio-mem device.
const (
	memDevice = "vmem0"
	memPath   = "/machine/peripheral/" + memDevice
)

func roundUp(n, to int) int { return (n + to - 1) / to * to }

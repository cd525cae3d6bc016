package engine

import (
	"fmt"
	"path/filepath"
)

// Disk formats of Spec.DiskFormat.
const (
	Qcow2 = "qcow2"
	Raw   = "raw"
)

// Accelerators of Spec.Accel and VM.Accel.
const (
	AccelAuto = "auto" // KVM when a guest really runs under it, else TCG
	AccelKVM  = "kvm"
	AccelTCG  = "tcg"
	AccelNone = "none" // no machine is emulated at all (process engine)
)

// WordUnpack is the word on the kernel command line that makes the guest unpack a tar stream from port "agent" into
// the disk and power off, and WordDualPort the one that tells it to open port "agent-bulk" too. Engines add the second
// themselves when Spec.DualPort is set.
const (
	WordUnpack   = "msb.mode=unpack"
	WordDualPort = "microsandbox.agent_transport=dual-port-v1"
)

// Spec is what an engine needs to run one sandbox. Fields an engine has no use for are ignored.
type Spec struct {
	Name string // for messages and the process title
	Dir  string // the sandbox's directory (disk, logs)

	Kernel  string   // bzImage or PVH-capable vmlinux (qemu)
	Initrd  string   // initramfs that holds the guest agent as /init (qemu)
	Cmdline []string // extra kernel command line words (qemu); a word holds no blanks
	Guest   string   // path of the msb-guest binary (process)

	Disk       string // root disk of the guest, /dev/vda there; "" = none
	DiskFormat string // Qcow2 or Raw; "" = what the engine's CreateDisk makes. Never guessed from the content.

	CPUs, MaxCPUs           int // MaxCPUs 0 = CPUs
	MemoryMiB, MaxMemoryMiB int // MaxMemoryMiB 0 = MemoryMiB

	Accel string // AccelAuto (also ""), AccelKVM, AccelTCG (qemu)
	Net   bool   // user-mode network with a way out; default off

	KernelLog string // file the guest's console is appended to (created 0600); "" = thrown away
	DualPort  bool   // also the port "agent-bulk"
	// FilesSocket is a path where mounts reach the guest's file system without the runtime in between, for the owner
	// only; "" = nowhere. An engine without such a way ignores it.
	FilesSocket string

	CacheDir string // where what was learnt about this host is remembered (accelerator probe); "" = nowhere
}

// MaxMachineCPUs bounds Spec.MaxCPUs.
const MaxMachineCPUs = 255

// Validate checks what every engine requires and fills in defaults. Engines call it on their copy.
func (s *Spec) Validate() error {
	if s.MaxCPUs == 0 {
		s.MaxCPUs = s.CPUs
	}
	if s.MaxMemoryMiB == 0 {
		s.MaxMemoryMiB = s.MemoryMiB
	}
	if s.Accel == "" {
		s.Accel = AccelAuto
	}
	switch {
	case s.CPUs < 1:
		return fmt.Errorf("a sandbox needs at least 1 CPU, not %d", s.CPUs)
	case s.MaxCPUs < s.CPUs:
		return fmt.Errorf("%d CPUs are more than the sandbox's maximum of %d", s.CPUs, s.MaxCPUs)
	case s.MaxCPUs > MaxMachineCPUs:
		return fmt.Errorf("at most %d CPUs, not %d", MaxMachineCPUs, s.MaxCPUs)
	case s.MaxMemoryMiB < s.MemoryMiB:
		return fmt.Errorf("%d MiB are more than the sandbox's maximum of %d MiB", s.MemoryMiB, s.MaxMemoryMiB)
	}
	switch s.Accel {
	case AccelAuto, AccelKVM, AccelTCG:
	default:
		return fmt.Errorf("accelerator %q is unknown: use auto, kvm or tcg", s.Accel)
	}
	switch s.DiskFormat {
	case "", Qcow2, Raw:
	default:
		return fmt.Errorf("disk format %q is unknown: use qcow2 or raw", s.DiskFormat)
	}
	for _, p := range []string{s.Dir, s.Kernel, s.Initrd, s.Guest, s.Disk, s.KernelLog, s.CacheDir, s.FilesSocket} {
		if p != "" && !filepath.IsAbs(p) {
			return fmt.Errorf("path %q is not absolute", p)
		}
	}
	for _, w := range s.Cmdline {
		if !plainWord(w) {
			return fmt.Errorf("kernel command line word %q holds a blank, a quote or a control character", w)
		}
	}
	return nil
}

func plainWord(w string) bool {
	for _, c := range []byte(w) {
		if c <= ' ' || c == '"' || c == 0x7f {
			return false
		}
	}
	return w != ""
}

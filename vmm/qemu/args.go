package qemu

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"msb/vmm/engine"
)

// Descriptors the child finds open: the places in exec.Cmd.ExtraFiles plus 3.
const (
	fdQMP = 3 + iota
	fdConsole
	fdControl
	fdBulk
)

// Words of every kernel command line, by what they save of the boot under emulation (Debian 6.1, 1.7 s at first):
// the self tests of the crypto code 0.25 s; the watchdog on the TSC, which cmdline turns off where its frequency is
// known, 0.05 s. panic=-1 and reboot=t make a panic a reset at once, and a reset ends the machine (-no-reboot).
var cmdlineWords = []string{
	"console=ttyS0", "quiet", "panic=-1", "reboot=t",
	"cryptomgr.notests", "no_timer_check", "8250.nr_uarts=1",
}

// The firmware that does nothing but start the kernel; 0.07 s less than SeaBIOS.
const qboot = "/usr/share/qemu/qboot.rom"

// arguments is the command line of the machine.
func arguments(s engine.Spec, accel string, mem memory) ([]string, error) {
	var a argList
	a.add("-name", "guest=msb-"+escape(s.Name)+",debug-threads=on")
	a.add("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-S", "-msg", "timestamp=off")
	a.add("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny")
	a.add("-machine", "q35,hpet=off,smm=off,sata=off,smbus=off,usb=off,vmport=off,i8042=off,dump-guest-core=off")
	if fileExists(qboot) {
		a.add("-bios", qboot)
	}
	a.add("-accel", accelerator(accel), "-cpu", cpuModel(accel))
	a.add("-smp", fmt.Sprintf("cpus=%d,maxcpus=%d,sockets=1,dies=1,cores=%d,threads=1", s.CPUs, s.MaxCPUs, s.MaxCPUs))
	a.add("-kernel", s.Kernel, "-initrd", s.Initrd, "-append", cmdline(s, accel))

	a.add("-chardev", fmt.Sprintf("socket,id=qmp,fd=%d", fdQMP), "-mon", "chardev=qmp,mode=control")
	a.add("-chardev", fmt.Sprintf("socket,id=console,fd=%d", fdConsole), "-device", "isa-serial,chardev=console")

	a.add("-device", "virtio-serial-pci,id=ports,max_ports=4")
	a.add("-chardev", fmt.Sprintf("socket,id=agent,fd=%d", fdControl), "-device", "virtserialport,bus=ports.0,nr=1,chardev=agent,name=agent")
	if s.DualPort {
		a.add("-chardev", fmt.Sprintf("socket,id=bulk,fd=%d", fdBulk), "-device", "virtserialport,bus=ports.0,nr=2,chardev=bulk,name=agent-bulk")
	}
	a.add("-object", "rng-random,id=rng,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=rng")

	mem.arguments(&a)
	if err := diskArguments(&a, s); err != nil {
		return nil, err
	}
	if s.Net {
		a.add("-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile=")
	}
	return a, nil
}

func diskArguments(a *argList, s engine.Spec) error {
	if s.Disk == "" {
		return nil
	}
	format := s.DiskFormat
	if format == "" {
		format = engine.Qcow2
	}
	// JSON, since a path may hold a comma.
	file := map[string]any{"driver": "file", "node-name": "file", "filename": s.Disk, "discard": "unmap", "locking": "on"}
	disk := map[string]any{"driver": format, "node-name": "disk", "file": "file", "discard": "unmap", "detect-zeroes": "unmap"}
	for _, node := range []map[string]any{file, disk} {
		b, err := json.Marshal(node)
		if err != nil {
			return err
		}
		a.add("-blockdev", string(b))
	}
	// report: a full host disk is an I/O error in the guest and an event here, where the default would stop the guest.
	a.add("-device", "virtio-blk-pci,drive=disk,werror=report,rerror=report")
	return nil
}

func accelerator(accel string) string {
	if accel == engine.AccelKVM {
		return "kvm"
	}
	return "tcg,thread=multi,tb-size=256"
}

// cpuModel is the host's own under KVM. Emulation costs most where a feature makes the guest do something that an
// emulator is slow at: erms makes it copy memory byte by byte, la57 makes each page walk longer, smap and smep end a
// translated block at every user access.
func cpuModel(accel string) string {
	if accel == engine.AccelKVM {
		if strings.Contains(hostCPU().name, "AMD") {
			// Newer host kernels claim this Intel register there, and QEMU before 10.1 aborts when it cannot set it.
			return "host,arch-capabilities=off"
		}
		return "host"
	}
	return "max,-erms,-la57,-smap,-smep"
}

func cmdline(s engine.Spec, accel string) string {
	words := append([]string{}, cmdlineWords...)
	if khz := timeStampKHz(); khz > 0 && accel == engine.AccelTCG {
		words = append(words, "tsc=reliable", "tsc_early_khz="+strconv.Itoa(khz))
	}
	if n := loopsPerJiffy(); n > 0 {
		words = append(words, "lpj="+strconv.Itoa(n))
	}
	if s.DualPort {
		words = append(words, engine.WordDualPort)
	}
	return strings.Join(append(words, s.Cmdline...), " ")
}

type argList []string

func (a *argList) add(words ...string) { *a = append(*a, words...) }

// escape doubles commas, which end a value in QEMU's option syntax.
func escape(s string) string { return strings.ReplaceAll(s, ",", ",,") }

func fileExists(path string) bool {
	_, err := os.Stat(filepath.Clean(path))
	return err == nil
}

func mib(n int) string { return strconv.Itoa(n) + "M" }

package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"msb/protocol/control"
	"msb/vmm/engine"
)

// Metrics takes one look. A guest that does not answer is left out.
func (r *Resources) Metrics(ctx context.Context) (control.Metrics, error) {
	m := control.Metrics{TimeNanos: uint64(time.Since(epoch)), Paused: r.Paused()}
	m.Machine = MachineUse(r.p.VM.PID(), r.p.Disk)
	if size, err := r.size(ctx); err == nil {
		memory, cpu := r.memoryState(size), r.cpuState(size)
		m.Memory, m.CPU = &memory, &cpu
	} else if !errors.Is(err, errNoSize) {
		return m, err
	}
	if r.p.Guest == nil || m.Paused {
		return m, nil
	}
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	if g, err := GuestMetrics(ctx, r.p.Guest); err == nil {
		m.Guest = &g
	}
	if meter, ok := r.p.VM.(engine.Meter); ok {
		meterGuest(&m, meter)
	}
	return m, nil
}

// meterGuest puts what a machine without a kernel of its own uses in place of
// what its guest reads, which is the host's. The host's disks are left out.
func meterGuest(m *control.Metrics, meter engine.Meter) {
	use, err := meter.Use()
	if err != nil {
		m.Guest = nil
		return
	}
	m.Machine.CPUNanos, m.Machine.ResidentBytes = uint64(use.CPU), use.Resident
	if g := m.Guest; g != nil {
		g.CPUBusyNanos = uint64(use.CPU)
		g.MemoryAvailableBytes = g.MemoryTotalBytes - min(use.Resident, g.MemoryTotalBytes)
		g.DiskReadBytes, g.DiskWrittenBytes = m.Machine.ReadBytes, m.Machine.WrittenBytes
	}
}

// epoch is where TimeNanos counts from.
var epoch = time.Now()

// MachineUse reads what the host's kernel says about the machine's process and
// its disk ("" = none). What cannot be read is 0.
func MachineUse(pid int, disk string) control.MachineUse {
	var u control.MachineUse
	dir := fmt.Sprintf("/proc/%d/", pid)
	if b, err := os.ReadFile(dir + "stat"); err == nil {
		if i := bytes.LastIndexByte(b, ')'); i >= 0 {
			f := strings.Fields(string(b[i+1:]))
			u.CPUNanos = (field(f, 11) + field(f, 12)) * tick
			u.ResidentBytes = field(f, 21) * uint64(os.Getpagesize())
		}
	}
	if b, err := os.ReadFile(dir + "io"); err == nil {
		values := pairs(string(b))
		u.ReadBytes, u.WrittenBytes = values["read_bytes:"], values["write_bytes:"]
	}
	var st syscall.Stat_t
	if disk != "" && syscall.Stat(disk, &st) == nil {
		u.DiskBytes = uint64(st.Blocks) * 512
	}
	return u
}

// tick is the unit of CPU time in /proc, on every Linux that Go runs on.
const tick = uint64(time.Second / 100)

// GuestMetrics reads the guest's /proc.
func GuestMetrics(ctx context.Context, guest Guest) (g control.GuestMetrics, err error) {
	files, err := guest.Open(ctx)
	if err != nil {
		return g, err
	}
	defer files.Close()
	read := func(path string) string {
		b, rerr := files.ReadFile(ctx, path, 64<<10)
		if rerr != nil && err == nil {
			err = rerr
		}
		return string(b)
	}
	stat, mem := read("/proc/stat"), pairs(read("/proc/meminfo"))
	uptime, disks, net := read("/proc/uptime"), read("/proc/diskstats"), read("/proc/net/dev")
	if err != nil {
		return g, err
	}
	for line := range strings.Lines(stat) {
		f := strings.Fields(line)
		switch {
		case len(f) > 0 && f[0] == "cpu":
			// user nice system idle iowait irq softirq steal
			for _, i := range []int{1, 2, 3, 6, 7} {
				g.CPUBusyNanos += field(f, i) * tick
			}
		case len(f) > 0 && strings.HasPrefix(f[0], "cpu"):
			g.CPUs++
		}
	}
	g.MemoryTotalBytes, g.MemoryAvailableBytes = mem["MemTotal:"]<<10, mem["MemAvailable:"]<<10
	if f := strings.Fields(uptime); len(f) > 0 {
		if s, err := strconv.ParseFloat(f[0], 64); err == nil && s >= 0 && s < 1e9 {
			g.UptimeNanos = uint64(s * 1e9)
		}
	}
	for line := range strings.Lines(disks) {
		if f := strings.Fields(line); len(f) > 9 && wholeDisk(f[2]) {
			g.DiskReadBytes += field(f, 5) * 512
			g.DiskWrittenBytes += field(f, 9) * 512
		}
	}
	for line := range strings.Lines(net) {
		name, counters, ok := strings.Cut(line, ":")
		if f := strings.Fields(counters); ok && len(f) > 8 && strings.TrimSpace(name) != "lo" {
			g.NetReceivedBytes += field(f, 0)
			g.NetSentBytes += field(f, 8)
		}
	}
	return g, nil
}

// wholeDisk tells a virtio disk from its partitions and from other devices.
func wholeDisk(name string) bool {
	return strings.HasPrefix(name, "vd") && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz") == ""
}

// pairs reads lines of a name and a number.
func pairs(s string) map[string]uint64 {
	all := map[string]uint64{}
	for line := range strings.Lines(s) {
		if f := strings.Fields(line); len(f) >= 2 && len(all) < 200 {
			all[f[0]] = field(f, 1)
		}
	}
	return all
}

func field(f []string, i int) uint64 {
	if i >= len(f) {
		return 0
	}
	n, _ := strconv.ParseUint(f[i], 10, 63)
	return n
}

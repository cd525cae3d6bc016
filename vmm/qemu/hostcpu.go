package qemu

import (
	"bufio"
	"os"
	"strconv"
	"strings"
	"sync"
)

// cpu is what /proc/cpuinfo says of the first one.
type cpu struct {
	name     string // vendor, model, family, stepping and microcode
	bogomips float64
}

var hostCPU = sync.OnceValue(func() cpu {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return cpu{}
	}
	defer f.Close()
	var c cpu
	for lines := bufio.NewScanner(f); lines.Scan() && lines.Text() != ""; {
		key, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(key) {
		case "vendor_id", "model name", "cpu family", "model", "stepping", "microcode":
			c.name += value + "/"
		case "bogomips":
			c.bogomips, _ = strconv.ParseFloat(value, 64)
		}
	}
	return c
})

// timeStampKHz is the frequency of the host's time stamp counter (0 = not known). An emulated CPU reads that very
// counter, but would measure its frequency against an emulated timer: on a busy host it came out up to ten times off,
// and the guest's clock with it, for as long as the guest ran. Only where the host itself keeps its time by the counter
// is its frequency known to be constant and told by bogomips.
func timeStampKHz() int {
	source, err := os.ReadFile("/sys/devices/system/clocksource/clocksource0/current_clocksource")
	if err != nil || strings.TrimSpace(string(source)) != "tsc" {
		return 0
	}
	return int(hostCPU().bogomips * 500)
}

// loopsPerJiffy is the guest's delay loop calibration, for the kernel command line (0 = let it measure). An emulated
// CPU has the host's time stamp counter, but is not known to have a constant one, and the guest would measure each of
// its CPUs for 0.1 s. The value is right for a kernel with 250 ticks a second, as Debian's; with 1000 delays are
// longer than asked for, which does no harm.
func loopsPerJiffy() int {
	const ticks = 250
	return int(hostCPU().bogomips * 500000 / ticks)
}

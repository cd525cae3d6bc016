package tui

import (
	"context"
	"fmt"
	"maps"
	"strings"

	"msb/protocol/control"
	"msb/tui/link"
	"msb/turn"
	"msb/vmm"
	"msb/vmm/store"
)

const (
	samples    = 8  // of a sparkline
	maxWatched = 64 // sandboxes whose use is looked at
)

// usage is what a sandbox has used lately.
type usage struct {
	cpu, memory []float64 // parts of what it has, oldest first
	last        *control.Metrics
	guest       *control.GuestMetrics // what it told last
	stop        context.CancelFunc
}

// add takes a look.
func (u *usage) add(m control.Metrics, sb vmm.Sandbox) {
	if u.last != nil && m.TimeNanos > u.last.TimeNanos {
		used := float64(m.Machine.CPUNanos-min(u.last.Machine.CPUNanos, m.Machine.CPUNanos)) / float64(m.TimeNanos-u.last.TimeNanos)
		u.cpu = sample(u.cpu, used/float64(max(sb.CPUs, 1)))
	}
	if m.Guest != nil {
		u.guest = m.Guest
	}
	if used, total := u.bytes(sb, m.Machine.ResidentBytes); total > 0 {
		u.memory = sample(u.memory, float64(used)/float64(total))
	}
	u.last = &m
}

// bytes is the memory in use and in all: what the guest told last, else what the
// machine has of the host's.
func (u *usage) bytes(sb vmm.Sandbox, resident uint64) (used, total uint64) {
	if g := u.guest; g != nil && g.MemoryTotalBytes >= g.MemoryAvailableBytes {
		return g.MemoryTotalBytes - g.MemoryAvailableBytes, g.MemoryTotalBytes
	}
	return resident, uint64(max(sb.MemoryMiB, 0)) << 20
}

func sample(list []float64, v float64) []float64 {
	list = append(list, v)
	if len(list) > samples {
		list = append([]float64(nil), list[len(list)-samples:]...)
	}
	return list
}

var bars = []rune("▁▂▃▄▅▆▇█")

// spark draws parts of one.
func spark(list []float64) string {
	var b strings.Builder
	for _, v := range list {
		b.WriteRune(bars[max(0, min(int(v*float64(len(bars))), len(bars)-1))])
	}
	return b.String()
}

// memoryText is the memory of a sandbox: what is used of it, where that is known.
func (u *usage) memoryText(sb vmm.Sandbox) string {
	if u != nil && u.guest != nil {
		if used, total := u.bytes(sb, 0); total > 0 {
			return fmt.Sprintf("%d/%d MiB", used>>20, total>>20)
		}
	}
	return fmt.Sprintf("%d MiB", sb.MemoryMiB)
}

// watchUsage looks at the sandbox on the screen, and at all that run while their
// list is shown. The wire has no push for it.
func (a *App) watchUsage() {
	if a.send == nil {
		return
	}
	wanted := make(map[string]vmm.Sandbox)
	for _, sb := range a.boxes {
		if sb.State == store.Running && len(wanted) < maxWatched && (sb.Name == a.box.Name || a.tab == tabBoxes) {
			wanted[sb.Name] = sb
		}
	}
	for name, u := range maps.Clone(a.use) {
		if _, ok := wanted[name]; !ok {
			u.stop()
			delete(a.use, name)
		}
	}
	for name, sb := range wanted {
		if a.use[name] != nil {
			continue
		}
		ctx, cancel := context.WithCancel(a.ctx)
		a.use[name] = &usage{stop: cancel}
		a.work.Go(func() { link.Watch(ctx, name, sb.ControlSocket, a.send) })
	}
}

// used takes a look at a sandbox.
func (a *App) used(m link.MetricsMsg) {
	u := a.use[m.Box]
	if u == nil {
		return
	}
	for _, sb := range a.boxes {
		if sb.Name == m.Box {
			u.add(m.Metrics, sb)
		}
	}
}

// boxSessionsMsg is the sessions of a sandbox in the list.
type boxSessionsMsg struct {
	box  string
	list []turn.Info
	err  error
}

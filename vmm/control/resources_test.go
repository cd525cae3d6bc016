package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"msb/protocol/control"
	"msb/vmm/engine"
	"msb/vmm/secrets"
)

// machine is a scripted engine.VM with a size.
type machine struct {
	engine.VM
	mu     sync.Mutex
	size   engine.Size
	limits []int
	noCap  bool // LimitCPUs fails
}

func (m *machine) PID() int { return 0 }
func (m *machine) Size(context.Context) (engine.Size, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.size, nil
}

func (m *machine) Resize(_ context.Context, cpus, memory int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if cpus > 0 {
		m.size.CPUs = cpus
	}
	if memory > 0 {
		m.size.RequestedMiB = memory
	}
	return nil
}

func (m *machine) LimitCPUs(_ context.Context, n int) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.noCap {
		return "", errors.New("not here")
	}
	m.limits = append(m.limits, n)
	return "test", nil
}

// kernel is a scripted guest.
type kernel struct {
	mu     sync.Mutex
	m      *machine
	online map[int]bool
	stuck  int  // this CPU cannot be turned off
	mute   bool // does not answer
	opened int
	texts  map[string]string
}

func (k *kernel) Open(ctx context.Context) (GuestFiles, error) {
	k.mu.Lock()
	k.opened++
	mute := k.mute
	k.mu.Unlock()
	if mute {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return k, nil
}
func (k *kernel) Close() error { return nil }
func (k *kernel) ReadFile(_ context.Context, path string, _ int) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var cpus []string
	switch path {
	case cpuOnline:
		for c := range 8 {
			if k.online[c] {
				cpus = append(cpus, fmt.Sprint(c))
			}
		}
	case cpuPresent:
		size, _ := k.m.Size(context.Background())
		for c := range size.CPUs {
			cpus = append(cpus, fmt.Sprint(c))
		}
	default:
		text, ok := k.texts[path]
		if !ok {
			return nil, errors.New("no such file")
		}
		return []byte(text), nil
	}
	return []byte(strings.Join(cpus, ",") + "\n"), nil
}

func (k *kernel) WriteFile(_ context.Context, path string, data []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var c int
	if _, err := fmt.Sscanf(path, cpuSwitch, &c); err != nil {
		return err
	}
	if string(data) == "0" && (c == 0 || c == k.stuck) {
		return errors.New("busy")
	}
	k.online[c] = string(data) == "1"
	return nil
}

type pauser struct{ paused atomic.Bool }

func (p *pauser) Pause(context.Context) error  { p.paused.Store(true); return nil }
func (p *pauser) Resume(context.Context) error { p.paused.Store(false); return nil }
func (p *pauser) Paused() bool                 { return p.paused.Load() }

func resources(t *testing.T, m engine.VM, k *kernel, p *pauser) *Resources {
	t.Helper()
	parts := Parts{VM: m, CPUs: 1, Pauser: p, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Vault: secrets.New(func() ([]secrets.Declaration, error) { return nil, nil })}
	if k != nil {
		parts.Guest = k
	}
	r := NewResources(parts)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { r.Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	return r
}

func smallMachine() *machine {
	return &machine{size: engine.Size{CPUs: 1, MaxCPUs: 4, BootMiB: 256, MemoryMiB: 300, RequestedMiB: 512, MaxMemoryMiB: 1024}}
}

func code(err error) string {
	var e *control.Error
	if errors.As(err, &e) {
		return e.Code + " " + e.Effect
	}
	return fmt.Sprint(err)
}

func TestMemoryTargets(t *testing.T) {
	m := smallMachine()
	r := resources(t, m, nil, &pauser{})
	for _, tt := range []struct {
		total uint64
		err   string
	}{
		{1024, "<nil>"}, {256, "<nil>"}, {700, "<nil>"},
		{0, "invalid_request none"}, {255, "invalid_request none"}, {1025, "invalid_request none"},
		{1 << 63, "invalid_request none"}, {1<<64 - 1, "invalid_request none"},
	} {
		s, err := r.SetMemoryTarget(t.Context(), tt.total)
		if code(err) != tt.err {
			t.Errorf("%d: %v", tt.total, err)
		}
		if err == nil && (s.TargetMiB != tt.total || s.CurrentMiB != 300 || s.BootMiB != 256 || s.MaxMiB != 1024) {
			t.Errorf("%d: %+v", tt.total, s)
		}
	}
	m.size = engine.Size{CPUs: 1, MaxCPUs: 1, BootMiB: 512, MemoryMiB: 512, RequestedMiB: 512, MaxMemoryMiB: 512}
	if _, err := r.SetMemoryTarget(t.Context(), 512); code(err) != "unsupported_operation none" || !strings.Contains(err.Error(), "no hotplug memory") {
		t.Errorf("fixed memory: %v", err)
	}
	if c := r.Capabilities(t.Context()); c.MemoryResize || c.CPUResize || !c.SecretsUpdate {
		t.Errorf("capabilities %+v", c)
	}
}

// TestShrinking: the device never takes what the guest needs to go on.
func TestShrinking(t *testing.T) {
	m := smallMachine()
	m.size.MemoryMiB, m.size.RequestedMiB = 1024, 1024
	k := &kernel{m: m, online: map[int]bool{0: true}, texts: map[string]string{}}
	available := func(mib int) {
		k.mu.Lock()
		k.texts["/proc/meminfo"] = fmt.Sprintf("MemTotal: 1 kB\nMemAvailable: %d kB\n", mib<<10)
		k.mu.Unlock()
	}
	p := &pauser{}
	r := resources(t, m, k, p)
	available(keepFree + 200)
	s, err := r.SetMemoryTarget(t.Context(), 512)
	if size, _ := m.Size(t.Context()); err != nil || s.TargetMiB != 512 || s.CurrentMiB != 1024 || size.RequestedMiB != 824 {
		t.Errorf("got %+v, %v; the device was asked for %d", s, err, size.RequestedMiB)
	}
	available(10) // it needs more: the device stops where it is
	m.mu.Lock()
	m.size.MemoryMiB = 900
	m.mu.Unlock()
	asked := func(want int) func() bool {
		return func() bool { size, _ := m.Size(t.Context()); return size.RequestedMiB == want }
	}
	waitFor(t, asked(900))
	available(keepFree + 5000)
	waitFor(t, asked(512))
	if s, err := r.SetMemoryTarget(t.Context(), 1024); err != nil || s.TargetMiB != 1024 || !asked(1024)() {
		t.Errorf("got %+v, %v", s, err)
	}
	k.mute = true // who does not say what he needs gets what was asked for
	if s, err := r.SetMemoryTarget(t.Context(), 256); err != nil || s.TargetMiB != 256 || !asked(256)() {
		t.Errorf("got %+v, %v", s, err)
	}
	p.paused.Store(true)
	if s, err := r.SetMemoryTarget(t.Context(), 300); err != nil || s.TargetMiB != 300 {
		t.Errorf("got %+v, %v", s, err)
	}
	p.paused.Store(false)
	waitFor(t, asked(300))
}

func TestMachineWithoutASize(t *testing.T) {
	r := resources(t, struct{ engine.VM }{}, nil, &pauser{})
	if c := r.Capabilities(t.Context()); c.MemoryResize || c.CPUResize || !c.SecretsUpdate {
		t.Errorf("capabilities %+v", c)
	}
	_, err1 := r.MemoryState(t.Context())
	_, err2 := r.SetMemoryTarget(t.Context(), 1)
	_, err3 := r.CPUState(t.Context())
	_, err4 := r.SetCPUTarget(t.Context(), 1)
	for _, err := range []error{err1, err2, err3, err4} {
		if code(err) != "unsupported_operation none" {
			t.Errorf("got %v", err)
		}
	}
}

func TestCPUTargets(t *testing.T) {
	m := smallMachine()
	k := &kernel{m: m, online: map[int]bool{0: true}, stuck: -1}
	r := resources(t, m, k, &pauser{})
	want := func(online, actual, enforced uint32) {
		t.Helper()
		s, err := r.SetCPUTarget(t.Context(), online)
		if err != nil || s != (control.CPUState{Possible: 4, RequestedOnline: online, ActualOnline: actual, Enforced: enforced}) {
			t.Errorf("%d: %+v, %v", online, s, err)
		}
		if again, err := r.CPUState(t.Context()); again != s || err != nil {
			t.Errorf("%d: state %+v, %v", online, again, err)
		}
	}
	want(3, 3, 3)
	want(1, 1, 1)
	want(4, 4, 4)
	k.stuck = 3
	want(2, 2, 2) // another one goes
	if k.online[1] || k.online[2] && !k.online[3] {
		t.Errorf("online %v", k.online)
	}
	m.noCap = true
	want(1, 2, 4) // the guest keeps what it cannot turn off, and nothing enforces the target
	for _, n := range []uint32{0, 5, 1<<32 - 1} {
		if _, err := r.SetCPUTarget(t.Context(), n); code(err) != "invalid_request none" {
			t.Errorf("%d: %v", n, err)
		}
	}
	if !slices.Equal(m.limits, []int{3, 1, 4, 2}) {
		t.Errorf("limits %v", m.limits)
	}
}

// TestGuestThatDoesNotAnswer: the host enforces what it can, at once, and says
// what it last saw.
func TestGuestThatDoesNotAnswer(t *testing.T) {
	m := smallMachine()
	k := &kernel{m: m, online: map[int]bool{0: true}, mute: true}
	r := resources(t, m, k, &pauser{})
	s, err := r.SetCPUTarget(t.Context(), 2)
	if err != nil || s != (control.CPUState{Possible: 4, RequestedOnline: 2, ActualOnline: 1, Enforced: 2}) {
		t.Errorf("got %+v, %v", s, err)
	}
}

func TestPausedGuestIsNotAsked(t *testing.T) {
	m := smallMachine()
	k := &kernel{m: m, online: map[int]bool{0: true}, stuck: -1}
	p := &pauser{}
	r := resources(t, m, k, p)
	if err := r.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	s, err := r.SetCPUTarget(t.Context(), 2)
	if err != nil || s.ActualOnline != 1 || k.opened != 0 {
		t.Errorf("got %+v, %v, asked %d times", s, err, k.opened)
	}
	if m, err := r.Metrics(t.Context()); err != nil || m.Guest != nil || !m.Paused || k.opened != 0 {
		t.Errorf("got %+v, %v", m, err)
	}
	if err := r.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { s, _ := r.CPUState(t.Context()); return s.ActualOnline == 2 })
}

func TestCPULists(t *testing.T) {
	for _, tt := range []struct {
		list string
		want []int
	}{
		{"0\n", []int{0}}, {"0-2,5\n", []int{0, 1, 2, 5}},
		{"", nil}, {"\n", nil}, {"2-1", nil}, {"1,0", nil}, {"0-99999999", nil}, {"0-65000", nil}, {"-1", nil}, {"a", nil}, {"0,,1", nil},
	} {
		got, err := parseCPUs(tt.list)
		if (err == nil) != (tt.want != nil) || err == nil && !slices.Equal(got, tt.want) {
			t.Errorf("%q: %v, %v", tt.list, got, err)
		}
	}
}

func TestGuestMetrics(t *testing.T) {
	k := &kernel{texts: map[string]string{
		"/proc/stat":      "cpu  100 0 50 1000 0 0 10 0 0 0\ncpu0 50 0 25 500 0 0 5 0 0 0\ncpu1 50 0 25 500 0 0 5 0 0 0\nintr 1\n",
		"/proc/meminfo":   "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable: 600 kB\n",
		"/proc/uptime":    "12.50 11.00\n",
		"/proc/diskstats": " 254 0 vda 1 0 10 0 2 0 20 0 0 0 0\n 254 1 vda1 1 0 10 0 2 0 20 0 0 0 0\n 7 0 loop0 1 0 10 0 2 0 20 0 0\n",
		"/proc/net/dev":   "Inter-| Receive\n face |bytes\n    lo: 5 0 0 0 0 0 0 0 5 0\n  eth0: 100 0 0 0 0 0 0 0 200 0\n",
	}}
	g, err := GuestMetrics(t.Context(), k)
	want := control.GuestMetrics{UptimeNanos: 12.5e9, CPUs: 2, CPUBusyNanos: 1.6e9, MemoryTotalBytes: 1000 << 10, MemoryAvailableBytes: 600 << 10,
		DiskReadBytes: 5120, DiskWrittenBytes: 10240, NetReceivedBytes: 100, NetSentBytes: 200}
	if err != nil || g != want {
		t.Errorf("got %+v, %v", g, err)
	}
	for path := range k.texts { // nonsense does no harm
		k.texts[path] = strings.Repeat("-1 cpu ::: \xff 99999999999999999999999 ", 100)
	}
	if _, err := GuestMetrics(t.Context(), k); err != nil {
		t.Error(err)
	}
}

// metered is a machine without a kernel of its own.
type metered struct {
	engine.VM
	use engine.Use
	err error
}

func (m *metered) PID() int                 { return 0 }
func (m *metered) Use() (engine.Use, error) { return m.use, m.err }

// TestSharedKernelMetrics: what the guest reads there is the host's, so it is not shown as the sandbox's.
func TestSharedKernelMetrics(t *testing.T) {
	k := &kernel{texts: map[string]string{
		"/proc/stat":    "cpu  100 0 50 1000 0 0 10 0 0 0\ncpu0 50 0 25 500 0 0 5 0 0 0\n",
		"/proc/meminfo": "MemTotal:  1000 kB\nMemAvailable: 1 kB\n",
		"/proc/uptime":  "1.0 1.0\n", "/proc/diskstats": " 254 0 vda 1 0 10 0 2 0 20 0 0 0 0\n", "/proc/net/dev": "",
	}}
	vm := &metered{use: engine.Use{CPU: 3 * time.Second, Resident: 400 << 10}}
	r := resources(t, vm, k, &pauser{})
	m, err := r.Metrics(t.Context())
	if err != nil || m.Guest == nil || m.Guest.CPUBusyNanos != 3e9 || m.Guest.MemoryAvailableBytes != 600<<10 || m.Guest.DiskReadBytes != 0 ||
		m.Machine.CPUNanos != 3e9 || m.Machine.ResidentBytes != 400<<10 || m.Memory != nil {
		t.Errorf("got %+v, guest %+v, %v", m, m.Guest, err)
	}
	vm.err = errors.New("not here")
	if m, err := r.Metrics(t.Context()); err != nil || m.Guest != nil {
		t.Errorf("got %+v, %v", m, err)
	}
}

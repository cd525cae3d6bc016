package boot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"msb/guest/agent"
	"msb/guest/exec"
	wire "msb/protocol/agent"
)

// selfPath is where commands find this binary.
const selfPath = "/run/msb/msb-guest"

// PID1 is the whole life of a virtual machine's first process. It never returns: the machine powers off.
func PID1() {
	started := bootTime()
	err := runMachine(started)
	if err != nil {
		logf("%v", err)
	}
	stopProcesses()
	detachFiles()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		logf("power off: %v", err)
	}
	select {} // the kernel panics when PID 1 ends
}

func runMachine(started uint64) error {
	if err := mountAll("/", kernelMounts); err != nil {
		return fmt.Errorf("boot: %w", err)
	}
	openConsole()
	exec.HideDescriptors()
	tune()
	// Memory that is plugged in later may be taken away again.
	_ = os.WriteFile("/sys/devices/system/memory/auto_online_blocks", []byte("online_movable"), 0)
	if err := loadModules(moduleDir, "order"); err != nil {
		return fmt.Errorf("boot: %w", err)
	}
	control, err := openPort(wire.ControlPortName)
	if err != nil {
		return fmt.Errorf("boot: %w", err)
	}
	words := readCmdline()
	if words.unpack() {
		return unpackFromPort(control)
	}
	m := &machine{reaper: exec.NewReaper()}
	ports := agent.Ports{Control: control}
	if words.dualPort() {
		ports.Bulk = func() (io.ReadWriteCloser, error) { return openPort(wire.BulkPortName) }
	}
	return agent.Serve(context.Background(), ports, agent.Machine{
		Root:      m.root,
		Setup:     m.setup,
		Workload:  func() (*exec.Workload, error) { return exec.OpenWorkload(cgroupDir) },
		SetClock:  setClock,
		RootDisk:  m.growRoot,
		Ready:     m.ready,
		Heartbeat: heartbeatDir,
		Logf:      logf,
		Started:   started,
	}, m.reaper)
}

// machine is what the boot has learnt.
type machine struct {
	reaper *exec.Reaper
	mu     sync.Mutex
	device string // of the root file system, "" = the initramfs

	initramfs int // descriptor of the root of the initramfs after the switch; 0 = none
	memory    []*memoryMount
}

// root mounts the root file system and makes it the machine's.
func (m *machine) root(_ context.Context, b *wire.BootstrapPayload) error {
	if b.BlockRoot == nil {
		return linkSelf("/init")
	}
	const dir = "/newroot"
	if err := mountRoot(b.BlockRoot, dir); err != nil {
		return err
	}
	var err error
	if m.initramfs, err = unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return err
	}
	if err := linkSelf("/init"); err != nil {
		return err
	}
	if err := enterRoot(dir); err != nil {
		return err
	}
	m.device = b.BlockRoot.Device
	return nil
}

// ready goes on with what nobody has to wait for. The goroutines end with the machine at the latest.
func (m *machine) ready() {
	go followMemory(m.memory)
	if m.initramfs != 0 {
		go lateModules(m.initramfs)
	}
}

// setup is the part of the boot that needs the root file system.
func (m *machine) setup(_ context.Context, b *wire.BootstrapPayload) error {
	if err := finishMounts(); err != nil {
		return err
	}
	if err := mountRequested(b, virtual); err != nil {
		return err
	}
	m.memory = memoryMounts(b)
	if err := setHostname(b); err != nil {
		return err
	}
	return setNetwork(b)
}

func (m *machine) growRoot(size uint64) (filesystem, device uint64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.device == "" {
		return 0, 0, errors.New("the root file system is not on a disk")
	}
	return growMounted("/", m.device, size)
}

// linkSelf puts this binary at selfPath. The file is bound, not copied: it costs no memory.
func linkSelf(from string) error {
	if err := os.MkdirAll(filepath.Dir(selfPath), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(selfPath, os.O_CREATE|os.O_RDONLY, 0o755)
	if err != nil {
		return err
	}
	f.Close()
	if err := unix.Mount(from, selfPath, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("put %s in place: %w", selfPath, err)
	}
	return nil
}

// tune fits the runtime to a small machine.
func tune() {
	debug.SetGCPercent(200)
	// With one processor of the runtime, a frame that has come waits until whoever copies data for a port or a file takes
	// a rest, which may be 10 ms. With more than the machine has, less data gets through.
	runtime.GOMAXPROCS(max(2, runtime.NumCPU()))
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		total := int64(info.Totalram) * int64(info.Unit)
		debug.SetMemoryLimit(max(total/4, 48<<20))
	}
	// A client may hold a thousand files open, and there may be many clients.
	raiseFileLimit()
}

// raiseFileLimit sets what commands inherit, too.
func raiseFileLimit() {
	_ = syscall.Setrlimit(unix.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 1 << 16, Max: 1 << 20})
}

func setClock(t time.Time) error {
	ts := unix.NsecToTimespec(t.UnixNano())
	return unix.ClockSettime(unix.CLOCK_REALTIME, &ts)
}

func bootTime() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return uint64(ts.Nano())
}

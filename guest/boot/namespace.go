package boot

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"msb/guest/agent"
	"msb/guest/exec"
	wire "msb/protocol/agent"
)

// namespaces are what separates a sandbox of the process engine from its host.
const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWNET | unix.CLONE_NEWCGROUP

// Namespace is the process engine's entry: `ns --control-fd N [--bulk-fd N] [--files-fd N] [--device D]`. As PID 1 of fresh
// namespaces it is the sandbox; else it starts itself there and waits. It returns the exit code: 0 after a shutdown in
// order.
func Namespace(args []string) int {
	flags := flag.NewFlagSet("ns", flag.ContinueOnError)
	controlFD := flags.Int("control-fd", -1, "descriptor of port agent")
	bulkFD := flags.Int("bulk-fd", -1, "descriptor of port agent-bulk")
	filesFD := flags.Int("files-fd", -1, "descriptor of a listening socket for mounts")
	device := flags.String("device", "", "root disk in place of the bootstrap's")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if *controlFD < 0 {
		logf("ns needs --control-fd")
		return 2
	}
	if os.Getpid() != 1 {
		return enterNamespaces(*controlFD, *bulkFD, *filesFD, *device)
	}
	started := bootTime()
	exec.HideDescriptors()
	s := &sandbox{device: *device, reaper: exec.NewReaper()}
	if err := s.run(*controlFD, *bulkFD, *filesFD, started); err != nil {
		logf("%v", err)
		s.stop()
		return 1
	}
	s.stop()
	return 0
}

// enterNamespaces runs this program again as PID 1 of new namespaces and waits for its end. The child dies with us.
func enterNamespaces(control, bulk, listener int, device string) int {
	runtime.LockOSThread()
	files := []uintptr{0, 1, 2}
	argv := []string{"msb-guest", "ns"}
	for _, f := range []struct {
		flag string
		fd   int
	}{{"--control-fd", control}, {"--bulk-fd", bulk}, {"--files-fd", listener}} {
		if f.fd >= 0 {
			argv = append(argv, f.flag, strconv.Itoa(len(files)))
			files = append(files, uintptr(f.fd))
		}
	}
	if device != "" {
		argv = append(argv, "--device", device)
	}
	pid, err := syscall.ForkExec("/proc/self/exe", argv, &syscall.ProcAttr{
		Env: os.Environ(), Files: files,
		Sys: &syscall.SysProcAttr{Cloneflags: namespaces, Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		logf("start in new namespaces: %v: the process engine needs root", err)
		return 1
	}
	for _, fd := range files[3:] {
		unix.Close(int(fd))
	}
	var status syscall.WaitStatus
	for {
		if _, err = syscall.Wait4(pid, &status, 0, nil); err != syscall.EINTR {
			break
		}
	}
	if err == nil && status.Exited() {
		return status.ExitStatus()
	}
	return 1
}

// sandbox is a guest in namespaces.
type sandbox struct {
	device string
	disk   *os.File // the device, which the sandbox has no name for
	reaper *exec.Reaper
	cgroup string
	rooted bool
}

func (s *sandbox) run(controlFD, bulkFD, filesFD int, started uint64) error {
	tune()
	// Nothing that is mounted from here on may reach the host.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("boot: make the mounts private: %w", err)
	}
	ports := agent.Ports{Control: inherited(controlFD, wire.ControlPortName)}
	if bulkFD >= 0 {
		ports.Bulk = func() (io.ReadWriteCloser, error) { return inherited(bulkFD, wire.BulkPortName), nil }
	}
	if filesFD >= 0 {
		f := os.NewFile(uintptr(filesFD), "files")
		l, err := net.FileListener(f)
		f.Close()
		if err != nil {
			return fmt.Errorf("boot: the socket for mounts: %w", err)
		}
		ports.Files = l
		// The threads that serve mounts wait in the kernel, each with a processor of Go's that is taken away and looked
		// for again when there are few.
		runtime.GOMAXPROCS(max(8, runtime.GOMAXPROCS(0)))
	}
	return agent.Serve(context.Background(), ports, agent.Machine{
		Root:      s.root,
		Setup:     s.setup,
		Workload:  s.workload,
		RootDisk:  s.growRoot,
		Heartbeat: heartbeatDir,
		Logf:      logf,
		Started:   started,
	}, s.reaper)
}

func inherited(fd int, name string) *os.File {
	_ = unix.SetNonblock(fd, true)
	return os.NewFile(uintptr(fd), name)
}

// sandboxMounts are the kernel's file systems in a sandbox that shares the kernel: no devices of the host, and its
// settings cannot be changed.
var sandboxMounts = []mount{
	{source: "proc", target: "/proc", fstype: "proc", flags: plain},
	{source: "sysfs", target: "/sys", fstype: "sysfs", flags: plain | unix.MS_RDONLY},
	{source: "tmpfs", target: "/dev", fstype: "tmpfs", flags: unix.MS_NOSUID | unix.MS_NOEXEC, data: "mode=755,size=1m"},
	{source: "tmpfs", target: "/run", fstype: "tmpfs", flags: unix.MS_NOSUID | unix.MS_NODEV, data: "mode=755"},
}

// sandboxDevices are the devices that every program expects.
var sandboxDevices = []struct {
	name         string
	major, minor uint32
}{
	{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0},
}

// root mounts the root file system on private mounts and pivots into it.
func (s *sandbox) root(_ context.Context, b *wire.BootstrapPayload) error {
	if b.BlockRoot == nil {
		return errors.New("the process engine needs a root disk, and the host named none")
	}
	root := *b.BlockRoot
	if s.device != "" {
		root.Device = s.device
	}
	s.device = root.Device
	const dir = "/tmp/root"
	if err := unix.Mount("tmpfs", "/tmp", "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("a place for the root file system: %w", err)
	}
	if err := mountRoot(&root, dir); err != nil {
		return err
	}
	var err error
	if s.disk, err = os.Open(root.Device); err != nil {
		return err
	}
	if err := mountAll(dir, sandboxMounts); err != nil {
		return err
	}
	if err := makeDevices(filepath.Join(dir, "dev")); err != nil {
		return err
	}
	if err := copySelf(filepath.Join(dir, selfPath)); err != nil {
		return err
	}
	if err := unix.Chdir(dir); err != nil {
		return err
	}
	// The old root ends up on top of the new one and is taken away from there.
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot into the root file system: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the host's root file system: %w", err)
	}
	s.rooted = true
	return unix.Chdir("/")
}

func makeDevices(dir string) error {
	old := unix.Umask(0)
	defer unix.Umask(old)
	for _, d := range sandboxDevices {
		if err := unix.Mknod(filepath.Join(dir, d.name), unix.S_IFCHR|0o666, int(unix.Mkdev(d.major, d.minor))); err != nil {
			return fmt.Errorf("make device %s: %w", d.name, err)
		}
	}
	return os.Symlink("pts/ptmx", filepath.Join(dir, "ptmx"))
}

// copySelf puts a copy of this binary at path: the host's file stays the host's.
func copySelf(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	in, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("put %s in place: %w", selfPath, err)
	}
	return nil
}

func (s *sandbox) setup(_ context.Context, b *wire.BootstrapPayload) error {
	if err := finishMounts(); err != nil {
		return err
	}
	if err := mountRequested(b, namespaced); err != nil {
		return err
	}
	if err := setHostname(b); err != nil {
		return err
	}
	if b.Network != nil {
		return errors.New("the process engine has no network")
	}
	return setNetwork(b)
}

// workload makes the cgroup of all commands below the one that the engine started us in. Without one of our own, it
// gets a name that no other sandbox of this host has: our process namespace's.
func (s *sandbox) workload() (*exec.Workload, error) {
	parent := filepath.Join(cgroupDir, ownCgroup())
	if parent == cgroupDir {
		var st unix.Stat_t
		if err := unix.Stat("/proc/self/ns/pid", &st); err != nil {
			return nil, err
		}
		parent = filepath.Join(cgroupDir, "msb-"+strconv.FormatUint(st.Ino, 10))
		if err := os.Mkdir(parent, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, err
		}
	}
	s.cgroup = parent
	return exec.OpenWorkload(parent)
}

// ownCgroup is the path of this process's cgroup v2 as its namespace shows it.
func ownCgroup() string {
	b, _ := os.ReadFile("/proc/self/cgroup")
	for line := range strings.Lines(string(b)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok && !strings.HasPrefix(path, "/..") {
			return path
		}
	}
	return "/"
}

func (s *sandbox) growRoot(size uint64) (filesystem, device uint64, err error) {
	return growMounted("/", fmt.Sprintf("/proc/self/fd/%d", s.disk.Fd()), size)
}

// stop ends what is left and writes the disk out. The mounts go with the namespaces.
func (s *sandbox) stop() {
	stopProcesses()
	if s.cgroup != "" {
		_ = os.Remove(filepath.Join(s.cgroup, exec.WorkloadName))
		_ = os.Remove(s.cgroup)
	}
	if !s.rooted {
		return // this is still the host's root
	}
	if fd, err := unix.Open("/", unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
		_ = unix.Syncfs(fd)
		unix.Close(fd)
	}
	_ = unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_RDONLY, "")
}

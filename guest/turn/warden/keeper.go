package warden

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// keeperName is argv[0] of a keeper.
const keeperName = "msb-turn-keeper"

// Descriptors of a keeper beside the command's own three.
const (
	keeperControl = 3
	keeperDir     = 4
)

// killPatience is how long the kernel gets to end killed processes.
const killPatience = 5 * time.Second

// keep is a keeper's whole life; it returns its exit code.
func keep() int {
	runtime.LockOSThread() // the command dies with the thread that made it, and its parent must not be another
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	_ = unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC)
	control := newSocket(keeperControl, "control")
	var s spec
	if _, err := control.receive(&s, 0); err != nil {
		return 1
	}
	k := &keeper{control: control, pidfd: -1}
	st := k.run(&s)
	_ = control.send(st)
	return 0
}

// keeper is the process that owns one command and everything that comes from it.
type keeper struct {
	control *socket
	cgroup  string
	pid     int
	pidfd   int // -1 on kernels without
}

func (k *keeper) run(s *spec) status {
	if err := k.start(s); err != nil {
		k.removeGroup()
		return status{Error: err.Error(), Code: 127}
	}
	// Ours of the command's pipes must be gone, or they would never end.
	if null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0); err == nil {
		for fd := range 3 {
			_ = unix.Dup3(null, fd, 0)
		}
		unix.Close(null)
	} else {
		for fd := range 3 {
			unix.Close(fd)
		}
	}
	// Whatever comes on the control socket, its end above all, means the same.
	go func() {
		var any json.RawMessage
		_, _ = k.control.receive(&any, 0)
		k.kill()
	}()
	st := k.wait()
	st.Left = k.clear()
	k.removeGroup()
	return st
}

func (k *keeper) start(s *spec) error {
	if len(s.Argv) == 0 || s.UID == 0 {
		return fmt.Errorf("no command, or no user to run it as")
	}
	path, err := lookPath(s.Argv[0])
	if err != nil {
		return err
	}
	if err := unix.Fchdir(keeperDir); err != nil {
		return fmt.Errorf("enter the working directory: %w", err)
	}
	unix.Close(keeperDir)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the reaper of the command: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("forbid new privileges: %w", err)
	}
	groups := make([]uint32, len(s.Groups))
	for i, g := range s.Groups {
		groups[i] = uint32(g)
	}
	attr := &syscall.ProcAttr{
		Env:   s.Env,
		Files: []uintptr{0, 1, 2},
		Sys: &syscall.SysProcAttr{
			Setsid:     true,
			Pdeathsig:  syscall.SIGKILL,
			PidFD:      &k.pidfd,
			Credential: &syscall.Credential{Uid: uint32(s.UID), Gid: uint32(s.GID), Groups: groups},
		},
	}
	if dir := k.makeGroup(); dir != nil {
		defer dir.Close()
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(dir.Fd())
	}
	old := unix.Umask(0o022)
	pid, err := syscall.ForkExec(path, s.Argv, attr)
	if err != nil && attr.Sys.UseCgroupFD { // a kernel or group that does not take processes this way
		attr.Sys.UseCgroupFD = false
		pid, err = syscall.ForkExec(path, s.Argv, attr)
	}
	unix.Umask(old)
	if err != nil {
		return fmt.Errorf("start %s: %w", path, err)
	}
	k.pid = pid
	return nil
}

// commandPath is where programs of commands are looked for.
const commandPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// lookPath finds a program in the system's folders only.
func lookPath(name string) (string, error) {
	if strings.HasPrefix(name, "/") {
		return name, nil
	}
	for dir := range strings.SplitSeq(commandPath, ":") {
		p := filepath.Join(dir, name)
		if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return p, nil
		}
	}
	return "", fmt.Errorf("%s is not installed in the sandbox", name)
}

// wait reaps until the command itself has ended, and describes its end.
func (k *keeper) wait() status {
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, 0, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return status{Error: "wait for the command: " + err.Error(), Code: 127}
		}
		if pid != k.pid {
			continue
		}
		if ws.Signaled() {
			return status{Code: 128 + int(ws.Signal()), Signal: int(ws.Signal())}
		}
		return status{Code: ws.ExitStatus()}
	}
}

// kill kills the command; clear does the rest when it is dead.
func (k *keeper) kill() {
	k.killGroup()
	if k.pidfd >= 0 {
		_ = unix.PidfdSendSignal(k.pidfd, unix.SIGKILL, nil, 0) // never another process that got the number
	} else {
		_ = unix.Kill(k.pid, unix.SIGKILL)
	}
}

func (k *keeper) killGroup() {
	if k.cgroup != "" {
		_ = os.WriteFile(filepath.Join(k.cgroup, "cgroup.kill"), []byte("1"), 0)
	}
}

// clear kills everything that the command has left behind and returns how many processes did not end in time. Every
// descendant becomes a child of this process when its parent dies, so killing children until there are none gets all.
func (k *keeper) clear() (left int) {
	until := time.Now().Add(killPatience)
	for {
		k.killGroup()
		children := ownChildren()
		for _, pid := range children {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		for {
			pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if err == syscall.EINTR {
				continue
			}
			if err != nil { // ECHILD: all gone
				return 0
			}
			if pid == 0 {
				break
			}
		}
		if time.Now().After(until) {
			return max(len(children), 1)
		}
		time.Sleep(2 * time.Millisecond) // there is no event for "a child of a child is mine now"
	}
}

// ownChildren lists the children of this process. Nobody but this goroutine reaps them, so the numbers stay theirs.
func ownChildren() []int {
	var list []int
	self := os.Getpid()
	proc, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer proc.Close()
	names, _ := proc.Readdirnames(-1)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue
		}
		// The name in parentheses may hold anything; what follows the last one is "S PPID".
		f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if len(f) > 1 && f[1] == strconv.Itoa(self) {
			list = append(list, pid)
		}
	}
	return list
}

// makeGroup makes a control group for the command below this process's own; nil where that is not possible.
func (k *keeper) makeGroup() *os.File {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(b)) {
		own, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok || strings.Contains(own, "..") {
			continue
		}
		path := filepath.Join("/sys/fs/cgroup", own, "msb-turn-"+strconv.Itoa(os.Getpid()))
		if os.Mkdir(path, 0o755) != nil {
			return nil
		}
		dir, err := os.Open(path)
		if err != nil || unix.Access(filepath.Join(path, "cgroup.kill"), unix.W_OK) != nil {
			_ = os.Remove(path)
			return nil
		}
		k.cgroup = path
		return dir
	}
	return nil
}

func (k *keeper) removeGroup() {
	if k.cgroup != "" {
		_ = os.Remove(k.cgroup)
	}
}

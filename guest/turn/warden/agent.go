package warden

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"msb/guest/exec"
	"msb/guest/turn"
	"msb/guest/turn/tree"
	"msb/protocol/turnrpc"
)

// agentName is argv[0] of the agent.
const agentName = "msb-turn-agent"

// Descriptors of the agent.
const (
	agentRead = 3 + iota
	agentWrite
	agentWarden
	agentConfig
)

// fileThreads is how many file operations run at once.
const fileThreads = 4

// agentSpec is what the agent is told on its configuration pipe.
type agentSpec struct {
	Guest turnrpc.GuestConfig
	Image string
	State string
	Owner exec.Account
}

// agentMain is the agent's whole life; it returns its exit code.
func agentMain() int {
	err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	if err == nil {
		_ = unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC)
		_ = syscall.Setrlimit(unix.RLIMIT_CORE, &syscall.Rlimit{})
		err = serveAgent()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "msb-guest turn:", err)
		return 1
	}
	return 0
}

func serveAgent() error {
	var spec agentSpec
	f := os.NewFile(agentConfig, "configuration")
	err := json.NewDecoder(io.LimitReader(f, 8*turn.MaxConfig)).Decode(&spec)
	f.Close()
	if err != nil {
		return fmt.Errorf("read the agent's configuration: %w", err)
	}
	files, err := tree.New(spec.Guest.RepoDir, fileThreads, func() error { return takeFileRights(spec.Owner) })
	if err != nil {
		return err
	}
	defer files.Close()
	if err := dropPrivileges(); err != nil {
		return err
	}
	if err := checkPrivileges(); err != nil {
		return err
	}
	if err := files.Ensure(context.Background()); err != nil {
		return err
	}
	warden := newClient(agentWarden)
	defer warden.Close()
	rwc := &stream{in: pollableFD(agentRead, "rpc"), out: pollableFD(agentWrite, "rpc")}
	return turn.Serve(context.Background(), rwc, turn.Config{
		Guest:   spec.Guest,
		ImageID: spec.Image,
		Tree:    files,
		Runner:  warden,
		Machine: warden,
		State:   spec.State,
		Log:     slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
}

// stream is the connection to the host.
type stream struct{ in, out *os.File }

func (s *stream) Read(p []byte) (int, error)  { return s.in.Read(p) }
func (s *stream) Write(p []byte) (int, error) { return s.out.Write(p) }
func (s *stream) Close() error                { return errors.Join(s.in.Close(), s.out.Close()) }

func pollableFD(fd int, name string) *os.File {
	_ = unix.SetNonblock(fd, true)
	return os.NewFile(uintptr(fd), name)
}

// takeFileRights gives the calling thread, and no other, the file rights of a user. These calls are made directly: the
// standard library's would change all threads.
func takeFileRights(a exec.Account) error {
	groups := a.Groups
	if len(groups) == 0 {
		groups = []uint32{a.GID}
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(&groups[0])), 0); errno != 0 {
		return fmt.Errorf("take the groups of the workspace's owner: %w", errno)
	}
	for _, c := range []struct {
		call uintptr
		id   uint32
	}{{unix.SYS_SETFSGID, a.GID}, {unix.SYS_SETFSUID, a.UID}} {
		unix.RawSyscall(c.call, uintptr(c.id), 0, 0)
		// These calls return the identity before them and no error; an id that cannot be only asks.
		now, _, _ := unix.RawSyscall(c.call, ^uintptr(0), 0, 0)
		if uint32(now) != c.id {
			return fmt.Errorf("take the file rights of user %d: %w", a.UID, unix.EPERM)
		}
	}
	return nil
}

// dropPrivileges gives up the capabilities that set the threads up, on all threads, for good.
func dropPrivileges() error {
	all := func(what string, trap, a1, a2, a3 uintptr) error {
		if _, _, errno := syscall.AllThreadsSyscall(trap, a1, a2, a3); errno != 0 {
			if errno == unix.ENOTSUP {
				return fmt.Errorf("%s: msb-guest must be built without cgo (CGO_ENABLED=0)", what)
			}
			return fmt.Errorf("%s: %w", what, errno)
		}
		return nil
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	return errors.Join(
		all("give up ambient capabilities", unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0),
		all("give up capabilities", unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&none[0])), 0),
		all("forbid new privileges", unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0),
		// The change of a thread's identity may have set it back to what the system has for such programs.
		all("become undumpable", unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 0, 0),
	)
}

// checkPrivileges looks at every thread as the kernel shows it.
func checkPrivileges() error {
	tasks, err := filepath.Glob("/proc/self/task/*")
	if err != nil || len(tasks) == 0 {
		return fmt.Errorf("the agent's rights cannot be checked: /proc is not there: %v", err)
	}
	uid := os.Getuid()
	for _, task := range tasks {
		uids, effective, permitted, err := credentials(task)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // a thread that has ended
		}
		if err != nil {
			return fmt.Errorf("check the agent's rights: %w", err)
		}
		f := strings.Fields(uids)
		if len(f) != 4 || uid == 0 || strings.Trim(effective+permitted, "0") != "" {
			return fmt.Errorf("the agent has rights that it must not have: uid %s, capabilities %s/%s", uids, effective, permitted)
		}
		for _, id := range f[:3] {
			if id != fmt.Sprint(uid) {
				return fmt.Errorf("the agent runs as somebody else: uids %s", uids)
			}
		}
	}
	return nil
}

package exec

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Resource limits have to be set between fork and exec, by root and before the user is set, which the runtime's fork
// cannot do. Commands with limits therefore start as this same program under the name of limitedName; it takes the
// limits and the identity on itself and becomes the command. What goes wrong is reported on descriptor 3.

// limitedName is argv[0] of that program.
const limitedName = "msb-limited"

// limitedSpec is what it has to do, its only argument beside the command's.
type limitedSpec struct {
	Path   string
	Cwd    string
	UID    int
	GID    int
	Groups []int
	Limits []limit
}

// LimitedMain runs a command under limits if that is what this process was started for; it does not return then.
// Call it first in main.
func LimitedMain() {
	if len(os.Args) < 3 || os.Args[0] != limitedName {
		return
	}
	const report = 3
	unix.CloseOnExec(report)
	err := becomeLimited(os.Args[1], os.Args[2:])
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], uint32(err))
	_, _ = unix.Write(report, b[:])
	os.Exit(126)
}

func becomeLimited(encoded string, argv []string) syscall.Errno {
	var spec limitedSpec
	if err := json.Unmarshal([]byte(encoded), &spec); err != nil {
		return unix.EINVAL
	}
	env := os.Environ()
	for _, l := range spec.Limits {
		if err := syscall.Setrlimit(l.Resource, &syscall.Rlimit{Cur: l.Soft, Max: l.Hard}); err != nil {
			return errnoOf(err)
		}
	}
	if err := syscall.Setgroups(spec.Groups); err != nil {
		return errnoOf(err)
	}
	if err := syscall.Setgid(spec.GID); err != nil {
		return errnoOf(err)
	}
	if err := syscall.Setuid(spec.UID); err != nil {
		return errnoOf(err)
	}
	if err := syscall.Chdir(spec.Cwd); err != nil {
		return errnoOf(err)
	}
	return errnoOf(syscall.Exec(spec.Path, argv, env))
}

func errnoOf(err error) syscall.Errno {
	if errno, ok := err.(syscall.Errno); ok && errno != 0 {
		return errno
	}
	return unix.EIO
}

// forkLimited starts the command by way of LimitedMain and returns when it has become the command.
func (s *Service) forkLimited(cmd *command, attr *syscall.ProcAttr, exited func(syscall.WaitStatus)) (int, error) {
	spec := limitedSpec{Path: cmd.path, Cwd: cmd.cwd, UID: int(cmd.user.UID), GID: int(cmd.user.GID), Limits: cmd.limits}
	for _, g := range cmd.user.Groups {
		spec.Groups = append(spec.Groups, int(g))
	}
	encoded, err := json.Marshal(spec)
	if err != nil {
		return 0, fmt.Errorf("encode limits: %w", err)
	}
	var report [2]int
	if err := unix.Pipe2(report[:], unix.O_CLOEXEC); err != nil {
		return 0, err
	}
	defer unix.Close(report[0])

	self := *cmd
	self.path, self.argv = "/proc/self/exe", append([]string{limitedName, string(encoded)}, cmd.argv...)
	attr.Dir, attr.Sys.Credential = "/", nil
	attr.Files = append(attr.Files, uintptr(report[1]))
	// The status of a program that never became the command is nobody's.
	exit := make(chan syscall.WaitStatus, 1)
	pid, err := s.fork(&self, attr, func(st syscall.WaitStatus) { exit <- st })
	unix.Close(report[1])
	if err != nil {
		return 0, err
	}
	var b [4]byte
	if n := readReport(report[0], b[:]); n == len(b) {
		<-exit
		return 0, syscall.Errno(binary.BigEndian.Uint32(b[:]))
	}
	go func() { exited(<-exit) }()
	return pid, nil
}

// readReport reads until the other end is closed.
func readReport(fd int, b []byte) int {
	total := 0
	for total < len(b) {
		n, err := unix.Read(fd, b[total:])
		if err == unix.EINTR {
			continue
		}
		if n <= 0 {
			break
		}
		total += n
	}
	return total
}

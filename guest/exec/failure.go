package exec

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"msb/guest/port"
	"msb/protocol/agent"
)

// Stages of core.exec.failed.
const (
	stageSpawn  = "Command::spawn" // pipe mode
	stageExec   = "execvp"         // pty mode
	stageFork   = "fork"           // pty mode
	stageLatch  = "workload_latch"
	stageCgroup = "workload_cgroup"
)

// failure is why a command could not be started.
type failure struct {
	kind  string
	stage string // "" = none
	what  string // what was tried
	err   error
}

func (f *failure) Error() string { return f.what + ": " + port.OSError(f.err) }
func (f *failure) Unwrap() error { return f.err }

// message is the wire form.
func (f *failure) message() agent.ExecFailedPayload {
	p := agent.ExecFailedPayload{Kind: f.kind, Message: port.Clip(f.Error())}
	if f.stage != "" {
		p.Stage = &f.stage
	}
	var errno syscall.Errno
	if errors.As(f.err, &errno) {
		n := int32(errno)
		p.Errno = &n
		p.ErrnoName = errnoName(errno)
	}
	return p
}

func errnoName(errno syscall.Errno) *string {
	name := unix.ErrnoName(errno)
	if name == "" {
		return nil
	}
	return &name
}

// spawnFailure classifies what fork or exec of cmd returned.
func spawnFailure(cmd string, tty bool, err error) *failure {
	stage := stageSpawn
	if tty {
		stage = stageExec
	}
	var errno syscall.Errno
	errors.As(err, &errno)
	return &failure{kind: kindOf(errno), stage: stage, what: fmt.Sprintf("spawn %q", cmd), err: err}
}

func kindOf(errno syscall.Errno) string {
	switch errno {
	case unix.ENOENT:
		return agent.ExecNotFound
	case unix.ENOTDIR:
		return agent.ExecBadCwd
	case unix.EACCES, unix.EPERM:
		return agent.ExecPermissionDenied
	case unix.ENOEXEC, unix.EISDIR, unix.ETXTBSY:
		return agent.ExecNotExecutable
	case unix.E2BIG, unix.ELOOP, unix.ENAMETOOLONG, unix.EFAULT:
		return agent.ExecBadArgs
	case unix.EMFILE, unix.ENFILE, unix.EAGAIN:
		return agent.ExecResourceLimit
	case unix.ENOMEM:
		return agent.ExecOutOfMemory
	}
	return agent.ExecOther
}

package exec

import (
	"errors"
	"os"
	"strconv"
	"syscall"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"msb/protocol/agent"
)

var errLatched = errors.New("the workload is frozen")

// child is a running command and our ends of its files.
type child struct {
	pid     int
	stdin   *os.File // the terminal itself in tty mode
	outputs []output
}

// output is one stream of a command and the message that carries it.
type output struct {
	file *os.File
	kind agent.Type
}

// stdio is the files of a child that is being made. Theirs are plain descriptors in blocking mode.
type stdio struct {
	ours   child
	theirs [3]int
}

func (s *stdio) closeTheirs() {
	_ = unix.Close(s.theirs[0])
	if s.theirs[1] != s.theirs[0] {
		_ = unix.Close(s.theirs[1])
		_ = unix.Close(s.theirs[2])
	}
}

func (s *stdio) closeOurs() {
	closeAll(s.ours.stdin)
	for _, o := range s.ours.outputs {
		closeAll(o.file)
	}
}

// spawn starts cmd. exited is called once, with its status, after a success.
func (s *Service) spawn(cmd *command, exited func(syscall.WaitStatus)) (*child, error) {
	files, err := openStdio(cmd)
	if err != nil {
		return nil, err
	}
	defer files.closeTheirs()

	attr := &syscall.ProcAttr{
		Dir:   cmd.cwd,
		Env:   cmd.env,
		Files: []uintptr{uintptr(files.theirs[0]), uintptr(files.theirs[1]), uintptr(files.theirs[2])},
		Sys: &syscall.SysProcAttr{
			Setsid:     true,
			Setctty:    cmd.tty,
			Ctty:       0,
			Credential: &syscall.Credential{Uid: cmd.user.UID, Gid: cmd.user.GID, Groups: cmd.user.Groups},
		},
	}
	if s.cfg.Workload != nil {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, s.cfg.Workload.fd()
	}
	start := s.fork
	if len(cmd.limits) > 0 {
		start = s.forkLimited
	}
	pid, err := start(cmd, attr, exited)
	if err != nil {
		files.closeOurs()
		return nil, spawnFailure(cmd.argv[0], cmd.tty, err)
	}
	files.ours.pid = pid
	return &files.ours, nil
}

// fork starts the command directly: the child shares our memory until it executes, so that a spawn costs the same
// whatever our size.
func (s *Service) fork(cmd *command, attr *syscall.ProcAttr, exited func(syscall.WaitStatus)) (int, error) {
	return s.cfg.Reaper.Spawn(func() (pid int, err error) {
		if refused := s.spawner.run(func() { pid, err = syscall.ForkExec(cmd.path, cmd.argv, attr) }); refused != nil {
			return 0, refused
		}
		return pid, err
	}, exited)
}

// openStdio makes three pipes, or a terminal.
func openStdio(cmd *command) (*stdio, error) {
	if cmd.tty {
		return openTerminal(cmd)
	}
	var p [3][2]int
	for i := range p {
		err := unix.Pipe2(p[i][:], unix.O_CLOEXEC)
		if err == nil {
			continue
		}
		for _, made := range p[:i] {
			_ = unix.Close(made[0])
			_ = unix.Close(made[1])
		}
		return nil, spawnFailure(cmd.argv[0], false, err)
	}
	return &stdio{
		ours: child{
			stdin: pipeEnd(p[0][1], "stdin"),
			outputs: []output{
				{pipeEnd(p[1][0], "stdout"), agent.ExecStdout},
				{pipeEnd(p[2][0], "stderr"), agent.ExecStderr},
			},
		},
		theirs: [3]int{p[0][0], p[1][1], p[2][1]},
	}, nil
}

// pipeEnd makes our end of a pipe pollable, so that a Close wakes whoever reads or writes it.
func pipeEnd(fd int, name string) *os.File {
	_ = unix.SetNonblock(fd, true)
	return os.NewFile(uintptr(fd), name)
}

func openTerminal(cmd *command) (*stdio, error) {
	master, slave, err := pty.Open()
	if err != nil {
		return nil, ptyFailure(err)
	}
	defer slave.Close()
	setSize(master, &unix.Winsize{Row: cmd.rows, Col: cmd.cols})
	// The terminal belongs to the user, as after a login: tools open it by name.
	if err := slave.Chown(int(cmd.user.UID), -1); err != nil {
		closeAll(master)
		return nil, ptyFailure(err)
	}
	fd, err := unix.FcntlInt(slave.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		closeAll(master)
		return nil, ptyFailure(err)
	}
	_ = unix.SetNonblock(fd, false)
	// The pty package leaves the master blocking, where neither a deadline nor a Close wakes whoever reads it.
	mfd, err := unix.FcntlInt(master.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	closeAll(master)
	if err != nil {
		_ = unix.Close(fd)
		return nil, ptyFailure(err)
	}
	ours := pipeEnd(mfd, "terminal")
	return &stdio{
		ours:   child{stdin: ours, outputs: []output{{ours, agent.ExecStdout}}},
		theirs: [3]int{fd, fd, fd},
	}, nil
}

func ptyFailure(err error) error {
	return &failure{kind: agent.ExecPtySetupFailed, stage: stageFork, what: "open a terminal", err: err}
}

func setSize(f *os.File, size *unix.Winsize) {
	conn, err := f.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Control(func(fd uintptr) { _ = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, size) })
}

func quote(s string) string { return strconv.Quote(s) }

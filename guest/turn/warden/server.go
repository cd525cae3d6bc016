package warden

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"msb/guest/exec"
)

// freezeLimit is how long a file system stays frozen when nobody thaws it: a guest that cannot write for longer is as
// good as dead.
const freezeLimit = 30 * time.Second

// server is the warden at work.
type server struct {
	peer    *socket
	owner   exec.Account // who commands run as
	machine bool         // the machine is the sandbox's own: its clock and file systems may be touched
	keepers sync.WaitGroup

	mu     sync.Mutex
	frozen *os.File
	thaw   *time.Timer
}

// serve answers the agent until it is gone.
func (s *server) serve() error {
	defer s.keepers.Wait()
	defer s.unfreeze()
	for {
		var r request
		files, err := s.peer.receive(&r, 1)
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, os.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read from the agent: %w", err)
		}
		passed, err := s.do(&r, files)
		closeAll(files)
		var a answer
		if err != nil {
			a.Error = err.Error()
		}
		err = s.peer.send(a, passed...)
		for _, fd := range passed {
			unix.Close(fd)
		}
		if err != nil {
			return nil // the agent is gone; the keepers see it by themselves
		}
	}
}

func (s *server) do(r *request, files []*os.File) (passed []int, err error) {
	switch r.Op {
	case opStart:
		if len(files) != 1 {
			return nil, errors.New("no working directory")
		}
		return s.start(r, files[0])
	case opSync, opFreeze:
		if len(files) != 1 {
			return nil, errors.New("no folder of the file system")
		}
		return nil, s.freeze(files[0], r.Op == opFreeze)
	case opThaw:
		return nil, s.unfreeze()
	case opClock:
		if !s.machine {
			return nil, errors.New("the clock is not this sandbox's own")
		}
		ts := unix.NsecToTimespec(r.Micro * 1000)
		return nil, unix.ClockSettime(unix.CLOCK_REALTIME, &ts)
	}
	return nil, fmt.Errorf("unknown operation %q", r.Op)
}

// start starts a keeper with the command's spec waiting for it. The agent gets its ends.
func (s *server) start(r *request, dir *os.File) (passed []int, err error) {
	var open []int
	defer func() {
		for _, fd := range open {
			unix.Close(fd)
		}
		if err != nil {
			for _, fd := range passed {
				unix.Close(fd)
			}
			passed = nil
		}
	}()
	var theirs [3]int
	for i := range theirs {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			return passed, fmt.Errorf("pipe: %w", err)
		}
		if i == 0 {
			p[0], p[1] = p[1], p[0]
		}
		passed, open = append(passed, p[0]), append(open, p[1])
		theirs[i] = p[1]
	}
	ours, control, err := socketPair()
	if err != nil {
		return passed, err
	}
	passed, open = append(passed, ours), append(open, control)
	to := newSocket(dup(ours), "keeper")
	err = to.send(spec{
		Argv: r.Argv, Env: environment(s.owner, r.Env),
		UID: int(s.owner.UID), GID: int(s.owner.GID), Groups: groups(s.owner),
	})
	to.Close()
	_ = unix.SetNonblock(ours, false)
	if err != nil {
		return passed, err
	}
	conn, err := dir.SyscallConn()
	if err != nil {
		return passed, err
	}
	var pid int
	cerr := conn.Control(func(fd uintptr) {
		pid, err = syscall.ForkExec("/proc/self/exe", []string{keeperName}, &syscall.ProcAttr{
			Dir: "/", Env: []string{},
			Files: []uintptr{uintptr(theirs[0]), uintptr(theirs[1]), uintptr(theirs[2]), uintptr(control), fd},
			Sys:   &syscall.SysProcAttr{Setsid: true},
		})
	})
	if err = errors.Join(err, cerr); err != nil {
		return passed, fmt.Errorf("start a keeper for the command: %w", err)
	}
	s.keepers.Go(func() {
		for {
			if _, err := syscall.Wait4(pid, nil, 0, nil); err != syscall.EINTR {
				return
			}
		}
	})
	return passed, nil
}

func dup(fd int) int {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return -1
	}
	return n
}

func groups(a exec.Account) []int {
	var list []int
	for _, g := range a.Groups {
		list = append(list, int(g))
	}
	return list
}

// environment is what every command gets, with what the agent adds for its own programs.
func environment(owner exec.Account, extra []string) []string {
	name := owner.Name
	if name == "" {
		name = strconv.Itoa(int(owner.UID))
	}
	return append([]string{
		"PATH=" + commandPath,
		"HOME=" + owner.Home,
		"USER=" + name,
		"LOGNAME=" + name,
		"SHELL=/bin/sh",
		"LANG=C.UTF-8",
		"TERM=dumb",
		"TMPDIR=/tmp",
		"PAGER=cat",
		"GIT_PAGER=cat",
		"GIT_TERMINAL_PROMPT=0",
		"GIT_AUTHOR_NAME=msb agent",
		"GIT_AUTHOR_EMAIL=agent@msb.invalid",
		"GIT_COMMITTER_NAME=msb agent",
		"GIT_COMMITTER_EMAIL=agent@msb.invalid",
	}, extra...)
}

// freeze writes the file system of a folder out and, if asked to, stops it until thawed or for freezeLimit.
func (s *server) freeze(dir *os.File, stop bool) error {
	// The folder was opened as a mere place; for this it has to be opened for reading.
	conn, err := dir.SyscallConn()
	if err != nil {
		return err
	}
	var folder *os.File
	cerr := conn.Control(func(fd uintptr) {
		var n int
		n, err = unix.Openat(int(fd), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		folder = os.NewFile(uintptr(n), "folder")
	})
	if err := errors.Join(err, cerr); err != nil {
		return err
	}
	if err := unix.Syncfs(int(folder.Fd())); err != nil {
		folder.Close()
		return fmt.Errorf("write the file system out: %w", err)
	}
	if !stop {
		return folder.Close()
	}
	defer func() {
		if folder != nil {
			folder.Close()
		}
	}()
	if !s.machine {
		return errors.New("the file system is not this sandbox's own: it was written out, and not frozen")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.frozen != nil {
		return nil
	}
	if err := unix.IoctlSetInt(int(folder.Fd()), fiFreeze, 0); err != nil {
		return fmt.Errorf("freeze the file system: %w", err)
	}
	s.frozen, folder = folder, nil
	s.thaw = time.AfterFunc(freezeLimit, func() { _ = s.unfreeze() })
	return nil
}

const (
	fiFreeze = 0xc0045877
	fiThaw   = 0xc0045878
)

func (s *server) unfreeze() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.frozen == nil {
		return nil
	}
	s.thaw.Stop()
	err := unix.IoctlSetInt(int(s.frozen.Fd()), fiThaw, 0)
	s.frozen.Close()
	s.frozen = nil
	if err != nil {
		return fmt.Errorf("thaw the file system: %w", err)
	}
	return nil
}

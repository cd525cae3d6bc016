package warden

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"msb/guest/exec"
	"msb/guest/turn"
	"msb/protocol/turnrpc"
)

// UserName is the user that the agent runs as.
const UserName = "msb-turn"

// ownerName is the user that commands run as.
const ownerName = "dev"

const (
	defaultState = "/var/lib/msb/turn"
	defaultImage = "msb-guest"
)

func init() {
	// The first thread must not become one that has another user's file rights: it stands for the whole process.
	if os.Args[0] == agentName {
		runtime.LockOSThread()
	}
}

// Children runs a part of the turn agent if that is what this process was started as; it does not return then. Call it
// first in main.
func Children() {
	if len(os.Args) != 1 {
		return
	}
	switch os.Args[0] {
	case keeperName:
		os.Exit(keep())
	case agentName:
		os.Exit(agentMain())
	}
}

const usage = `usage: msb-guest turn --rpc stdio|unix:PATH|vsock:CID:PORT [--config FILE|-] [--image-id ID] [--state DIR]

The agent of a session. With stdio the configuration is the first line of standard input and --config is not allowed;
else it is read from FILE, or from standard input.`

// Main is `msb-guest turn`. It is started as root and returns the exit code: 0 when the host said shutdown or closed
// the connection, 1 with a sentence on standard error for everything else, 2 for wrong arguments.
func Main(args []string) int {
	// The agent dies with the thread that started it.
	runtime.LockOSThread()
	flags := flag.NewFlagSet("turn", flag.ContinueOnError)
	flags.Usage = func() { fmt.Fprintln(os.Stderr, usage) }
	rpc := flags.String("rpc", "", "")
	config := flags.String("config", "", "")
	image := flags.String("image-id", defaultImage, "")
	state := flags.String("state", defaultState, "")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() > 0 || *rpc == "" || *image == "" || (*rpc == "stdio") != (*config == "") {
		flags.Usage()
		return 2
	}
	if err := run(*rpc, *config, *image, *state); err != nil {
		var exit exitCode
		if errors.As(err, &exit) {
			return int(exit)
		}
		fmt.Fprintln(os.Stderr, "msb-guest turn:", err)
		return 1
	}
	return 0
}

// exitCode is the end of an agent that has said why itself.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("the agent ended with code %d", int(c)) }

func run(rpc, config, image, state string) error {
	if os.Geteuid() != 0 {
		return errors.New("start it as root: it drops its rights itself, and commands run as the user dev")
	}
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	guest, err := readConfig(config)
	if err != nil {
		return err
	}
	users, err := lookupUsers(guest.RepoDir)
	if err != nil {
		return err
	}
	dir, err := prepareState(state, guest.SessionID, users.turn)
	if err != nil {
		return err
	}
	if err := prepareRepo(guest.RepoDir, users.owner); err != nil {
		return err
	}
	read, write, err := connect(context.Background(), rpc, guest.VsockPort)
	if err != nil {
		return err
	}
	ours, theirs, err := socketPair()
	if err != nil {
		return err
	}
	pid, err := startAgent(agentSpec{Guest: guest, Image: image, State: dir, Owner: users.owner}, users.turn, read, write, theirs)
	if err != nil {
		return err
	}
	s := &server{peer: newSocket(ours, "agent"), owner: users.owner, machine: ownMachine()}
	err = s.serve()
	s.peer.Close()
	code, werr := waitAgent(pid)
	if err = errors.Join(err, werr); err == nil && code != 0 {
		err = exitCode(code)
	}
	return err
}

// readConfig reads the configuration: a file, standard input, or its first line when what follows is the RPC.
func readConfig(from string) (turnrpc.GuestConfig, error) {
	var b []byte
	var err error
	switch from {
	case "":
		b, err = firstLine(0)
	case "-":
		b, err = io.ReadAll(io.LimitReader(os.Stdin, turn.MaxConfig+1))
	default:
		b, err = readSmall(from)
	}
	if err == nil && len(b) > turn.MaxConfig {
		err = fmt.Errorf("it is larger than %d bytes", turn.MaxConfig)
	}
	if err != nil {
		return turnrpc.GuestConfig{}, fmt.Errorf("read the configuration: %w", err)
	}
	// A configuration disk is filled up with NULs.
	b, _, _ = bytes.Cut(b, []byte{0})
	return turn.ParseConfig(b)
}

func readSmall(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := make([]byte, turn.MaxConfig)
	n, err := io.ReadFull(f, b)
	if err != nil && err != io.ErrUnexpectedEOF && err != io.EOF {
		return nil, err
	}
	return b[:n], nil
}

// firstLine reads up to a line end and not a byte more.
func firstLine(fd int) ([]byte, error) {
	var line []byte
	for b := make([]byte, 1); ; {
		n, err := unix.Read(fd, b)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
			continue
		case err != nil:
			return nil, err
		case n == 0:
			return nil, errors.New("standard input ended before the configuration did")
		case b[0] == '\n':
			return line, nil
		case len(line) >= turn.MaxConfig:
			return nil, fmt.Errorf("the first line of standard input is longer than %d bytes", turn.MaxConfig)
		}
		line = append(line, b[0])
	}
}

// ownMachine tells whether the machine is the sandbox's own: its first process is of this program and runs in the
// first process namespace of its kernel.
func ownMachine() bool {
	const firstNamespace = 0xeffffffc // PROC_PID_INIT_INO
	var st unix.Stat_t
	if unix.Stat("/proc/1/ns/pid", &st) != nil || st.Ino != firstNamespace {
		return false
	}
	exe, err := os.Readlink("/proc/1/exe")
	if err != nil {
		return false
	}
	name, err := os.ReadFile("/proc/1/comm")
	return err == nil && (filepath.Base(exe) == "init" || filepath.Base(exe) == "msb-guest") &&
		(string(name) == "init\n" || string(name) == "msb-guest\n") && unix.Access("/run/msb/msb-guest", unix.X_OK) == nil
}

// startAgent starts the agent with the connection and one end of the socket pair, and closes both here: this process
// must not be able to speak for the agent either.
func startAgent(spec agentSpec, user exec.Account, read, write, peer int) (pid int, err error) {
	encoded, err := json.Marshal(spec)
	if err != nil {
		return 0, err
	}
	var config [2]int
	if err := unix.Pipe2(config[:], unix.O_CLOEXEC); err != nil {
		return 0, err
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	files := []uintptr{uintptr(null), uintptr(null), 2, uintptr(read), uintptr(write), uintptr(peer), uintptr(config[0])}
	pid, err = syscall.ForkExec("/proc/self/exe", []string{agentName}, &syscall.ProcAttr{
		Dir: "/", Env: []string{}, Files: files,
		Sys: &syscall.SysProcAttr{
			Pdeathsig:   syscall.SIGKILL,
			Credential:  &syscall.Credential{Uid: user.UID, Gid: user.GID, Groups: []uint32{}},
			AmbientCaps: []uintptr{unix.CAP_SETUID, unix.CAP_SETGID},
		},
	})
	unix.Close(config[0])
	unix.Close(peer)
	unix.Close(read)
	if write != read {
		unix.Close(write)
	}
	for fd := range 2 {
		_ = unix.Dup3(null, fd, 0)
	}
	unix.Close(null)
	if err != nil {
		return 0, fmt.Errorf("start the agent as %s (uid %d): %w", UserName, user.UID, err)
	}
	f := os.NewFile(uintptr(config[1]), "configuration")
	_, _ = f.Write(encoded) // a dead agent says why itself
	f.Close()
	return pid, nil
}

func waitAgent(pid int) (code int, err error) {
	for {
		var ws syscall.WaitStatus
		_, err := syscall.Wait4(pid, &ws, 0, nil)
		switch {
		case err == syscall.EINTR:
			continue
		case err != nil:
			return 0, fmt.Errorf("wait for the agent: %w", err)
		case ws.Signaled():
			return 0, fmt.Errorf("the agent was killed by signal %d (%v)", ws.Signal(), ws.Signal())
		}
		return ws.ExitStatus(), nil
	}
}

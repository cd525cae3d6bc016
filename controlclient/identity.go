package controlclient

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Identity names one process for ever.
type Identity struct {
	PID   int
	Start uint64 // in clock ticks since boot, from /proc/PID/stat
}

// peer is the process that listens at the other end of a connection.
func peer(c net.Conn) (Identity, error) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return Identity{}, errors.New("not a Unix socket")
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return Identity{}, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return Identity{}, err
	}
	if credErr != nil {
		return Identity{}, credErr
	}
	start, err := startOf(int(cred.Pid))
	return Identity{PID: int(cred.Pid), Start: start}, err
}

// Listener is the process that serves the Unix socket at path.
func Listener(ctx context.Context, path string) (Identity, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return Identity{}, err
	}
	defer c.Close()
	return peer(c)
}

func startOf(pid int) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The second field is the command in parentheses and may hold anything.
	if i := bytes.LastIndexByte(b, ')'); i >= 0 {
		if f := bytes.Fields(b[i+1:]); len(f) > 19 {
			return strconv.ParseUint(string(f[19]), 10, 64)
		}
	}
	return 0, fmt.Errorf("process %d: no start time", pid)
}

package warden

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A host may start listening a little after its guest is there.
const (
	dialTries = 50
	dialPause = 100 * time.Millisecond
)

// connect opens the connection to the host and returns its two directions, which may be one descriptor.
func connect(ctx context.Context, rpc string, defaultPort uint32) (read, write int, err error) {
	var family int
	var address unix.Sockaddr
	kind, rest, _ := strings.Cut(rpc, ":")
	switch kind {
	case "stdio":
		if rest != "" {
			return -1, -1, fmt.Errorf("--rpc stdio takes no address")
		}
		if read, err = keepDescriptor(0); err != nil {
			return -1, -1, err
		}
		write, err = keepDescriptor(1)
		return read, write, err
	case "unix":
		if rest == "" {
			return -1, -1, fmt.Errorf("--rpc unix:PATH needs the path of a socket")
		}
		family, address = unix.AF_UNIX, &unix.SockaddrUnix{Name: rest}
	case "vsock":
		cid, port, err := vsockAddress(rest, defaultPort)
		if err != nil {
			return -1, -1, err
		}
		family, address = unix.AF_VSOCK, &unix.SockaddrVM{CID: cid, Port: port}
	default:
		return -1, -1, fmt.Errorf("--rpc %q: it is stdio, unix:PATH or vsock:CID:PORT", rpc)
	}
	for try := 1; ; try++ {
		fd, err := dial(family, address)
		if err == nil {
			return fd, fd, nil
		}
		if try == dialTries {
			return -1, -1, fmt.Errorf("connect to the host at %s: %w (tried for %v); is the host listening?", rpc, err, dialTries*dialPause)
		}
		select {
		case <-time.After(dialPause):
		case <-ctx.Done():
			return -1, -1, ctx.Err()
		}
	}
}

func keepDescriptor(fd int) (int, error) {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return -1, fmt.Errorf("descriptor %d: %w", fd, err)
	}
	return n, nil
}

func dial(family int, address unix.Sockaddr) (int, error) {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.Connect(fd, address); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// vsockAddress reads CID:PORT; without them it is the host and the configured port.
func vsockAddress(s string, defaultPort uint32) (cid, port uint32, err error) {
	cid, port = unix.VMADDR_CID_HOST, defaultPort
	if s == "" {
		return cid, port, nil
	}
	a, b, hasPort := strings.Cut(s, ":")
	n, err := strconv.ParseUint(a, 10, 32)
	if err == nil {
		cid = uint32(n)
		if hasPort {
			n, err = strconv.ParseUint(b, 10, 32)
			port = uint32(n)
		}
	}
	if err != nil {
		return 0, 0, fmt.Errorf("--rpc vsock:%s: it is vsock:CID:PORT, for example vsock:2:1024", s)
	}
	return cid, port, nil
}

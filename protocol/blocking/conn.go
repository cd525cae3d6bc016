// Package blocking is a socket whose reads and writes block their thread, for a protocol of one request at a time: the
// kernel then wakes the thread that has to go on, where Go's poller would wake a thread that looks for a goroutine and
// wakes others to look with it. Half the switches between threads and half the time, measured.
package blocking

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrTimeout is returned by a Read or Write that has waited for the time of SetTimeout. It can be repeated, after what
// it has done.
var ErrTimeout = errors.New("timeout")

// Conn is a stream socket. One goroutine reads and writes at a time; Shutdown may be called by any.
type Conn struct {
	mu     sync.Mutex
	fd     int
	closed bool
}

// New takes over a connection that nobody reads or writes. It fails for one that has no descriptor.
func New(c net.Conn) (*Conn, error) {
	defer c.Close()
	sc, ok := c.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("%T has no descriptor", c)
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd, dupErr := -1, error(nil)
	if err := raw.Control(func(old uintptr) {
		syscall.ForkLock.RLock()
		defer syscall.ForkLock.RUnlock()
		if fd, dupErr = unix.Dup(int(old)); dupErr == nil {
			unix.CloseOnExec(fd)
		}
	}); err != nil {
		return nil, err
	}
	if dupErr != nil {
		return nil, dupErr
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &Conn{fd: fd}, nil
}

// SetTimeout bounds each wait for data and for room from now on; 0 does not.
func (c *Conn) SetTimeout(read, write time.Duration) error {
	t := unix.NsecToTimeval(read.Nanoseconds())
	if err := unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &t); err != nil {
		return err
	}
	t = unix.NsecToTimeval(write.Nanoseconds())
	return unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &t)
}

// SetBuffer asks for a size of the socket's buffer for what is written. Only root gets more than the system's limit.
func (c *Conn) SetBuffer(size int) {
	if forceBuffer(c.fd, size) != nil {
		_ = unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, size)
	}
}

// Read is io.Reader.
func (c *Conn) Read(p []byte) (int, error) {
	for {
		n, err := unix.Read(c.fd, p)
		switch {
		case err == nil && n == 0 && len(p) > 0:
			return 0, io.EOF
		case err == nil:
			return n, nil
		case err != unix.EINTR:
			return 0, waited(err)
		}
	}
}

// Write writes all of p unless it fails.
func (c *Conn) Write(p []byte) (int, error) {
	n, err := c.WriteParts([][]byte{p})
	return int(n), err
}

// WriteParts writes parts one after the other, with few calls. It takes off them what it has written, so that a call
// that ended with ErrTimeout can be repeated.
func (c *Conn) WriteParts(parts [][]byte) (int64, error) {
	total := int64(0)
	for {
		for len(parts) > 0 && len(parts[0]) == 0 {
			parts = parts[1:]
		}
		if len(parts) == 0 {
			return total, nil
		}
		var n int
		var err error
		if len(parts) == 1 {
			n, err = unix.Write(c.fd, parts[0])
		} else {
			n, err = unix.Writev(c.fd, parts)
		}
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return total, waited(err)
		}
		total += int64(n)
		for i := range parts {
			m := min(n, len(parts[i]))
			parts[i] = parts[i][m:]
			n -= m
		}
	}
}

func waited(err error) error {
	if err == unix.EAGAIN {
		return ErrTimeout
	}
	return err
}

// Shutdown ends the connection: a Read or Write that waits returns.
func (c *Conn) Shutdown() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		_ = unix.Shutdown(c.fd, unix.SHUT_RDWR)
	}
}

// Close gives the descriptor back. Nobody may read or write any more.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.closed = true
	return unix.Close(c.fd)
}

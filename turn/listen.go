package turn

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// AcceptTimeout is how long a foreign guest may take to connect.
const AcceptTimeout = 30 * time.Second

// Listener waits for a guest that dials the host.
type Listener struct {
	l *net.UnixListener
}

// Listen makes a Unix socket (0600) for a guest, such as one that a virtual
// machine monitor maps a vsock port to. A socket that nobody serves any more is
// replaced.
func Listen(path string) (*Listener, error) {
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		c.Close()
		return nil, fmt.Errorf("listen on %s: another process serves it", path)
	}
	if st, err := os.Lstat(path); err == nil {
		if st.Mode().Type() != os.ModeSocket {
			return nil, fmt.Errorf("listen on %s: there is a file that is no socket", path)
		}
		os.Remove(path)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for a guest: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("listen for a guest: %w", err)
	}
	return &Listener{l: l}, nil
}

// Accept waits for a guest, for at most AcceptTimeout. Connections of other
// users are closed.
func (l *Listener) Accept(ctx context.Context) (io.ReadWriteCloser, error) {
	l.l.SetDeadline(time.Now().Add(AcceptTimeout))
	defer context.AfterFunc(ctx, func() { l.l.SetDeadline(time.Unix(1, 0)) })()
	for {
		c, err := l.l.AcceptUnix()
		if ctx.Err() != nil {
			if err == nil {
				c.Close()
			}
			return nil, context.Cause(ctx)
		}
		if err != nil {
			return nil, fmt.Errorf("no guest connected to %s: %w", l.l.Addr(), err)
		}
		if _, err := Peer(c); err == nil {
			return c, nil
		}
		c.Close()
	}
}

// Close ends the listener and removes the socket.
func (l *Listener) Close() error { return l.l.Close() }

// Credentials is who is at the other end of a Unix socket.
type Credentials struct{ PID, UID int }

// Peer checks that the other end is of the same user or root.
func Peer(c *net.UnixConn) (Credentials, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return Credentials{}, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return Credentials{}, err
	}
	if credErr != nil {
		return Credentials{}, fmt.Errorf("peer credentials: %w", credErr)
	}
	if cred.Uid != 0 && int(cred.Uid) != os.Geteuid() {
		return Credentials{}, fmt.Errorf("user %d may not connect here", cred.Uid)
	}
	return Credentials{PID: int(cred.Pid), UID: int(cred.Uid)}, nil
}

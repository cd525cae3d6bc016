package forward

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Stream is a TCP stream whose two directions end on their own.
type Stream interface {
	io.ReadWriteCloser
	// CloseWrite ends what is sent; the other side reads to its end and may go on sending.
	CloseWrite() error
	// Abort ends both directions at once, so that the other side sees a reset and not an end.
	Abort() error
	SetWriteDeadline(t time.Time) error
}

// pieceSize is how much is copied at a time, in bytes, each way.
const pieceSize = 64 << 10

// lookAfter is how long a write into the sandbox may wait before it is looked whether its writer is still there.
const lookAfter = time.Second

// join carries bytes between a connection of this host and a stream inside a sandbox until both have ended. The end of
// one direction is the end of that direction on the other side; what breaks one side resets the other. It returns why
// the stream broke, nil when it ended in order or the host's side broke it, and when ctx ended.
func join(ctx context.Context, host *net.TCPConn, guest Stream) error {
	abort := sync.OnceFunc(func() {
		_ = guest.Abort()
		_ = host.SetLinger(0)
		_ = host.Close()
	})
	defer context.AfterFunc(ctx, abort)()
	var both sync.WaitGroup
	var fromGuest error
	half := func(copy func() (broken error, byGuest bool)) {
		both.Go(func() {
			broken, byGuest := copy()
			if broken == nil {
				return
			}
			if byGuest && ctx.Err() == nil && !errors.Is(broken, net.ErrClosed) {
				fromGuest = broken // of both halves only the one that reads the guest says this
			}
			abort()
		})
	}
	half(func() (error, bool) { return toGuest(guest, host), false })
	half(func() (error, bool) { return toHost(host, guest) })
	both.Wait()
	_ = guest.Close()
	_ = host.Close()
	return fromGuest
}

// toGuest copies what the host's program sends, and its end.
func toGuest(guest Stream, host *net.TCPConn) error {
	buf := make([]byte, pieceSize)
	for {
		n, err := host.Read(buf)
		if werr := send(guest, host, buf[:n]); werr != nil {
			return werr
		}
		switch {
		case err == io.EOF:
			return guest.CloseWrite()
		case err != nil:
			return err
		}
	}
}

// send writes p into the sandbox. While nothing there reads it, nobody here would notice that the program which sent
// it has gone: so that is looked at from time to time.
func send(guest Stream, host *net.TCPConn, p []byte) error {
	for len(p) > 0 {
		if err := guest.SetWriteDeadline(time.Now().Add(lookAfter)); err != nil {
			return err
		}
		n, err := guest.Write(p)
		p = p[n:]
		if err != nil && (!errors.Is(err, os.ErrDeadlineExceeded) || isReset(host)) {
			return err
		}
	}
	return guest.SetWriteDeadline(time.Time{})
}

// isReset tells whether the program on the other end of c has torn the connection down.
func isReset(c *net.TCPConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	const closed = 7 // TCP_CLOSE
	gone := false
	err = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		gone = err == nil && info.State == closed
	})
	return err != nil || gone
}

// toHost copies what comes out of the sandbox, and its end.
func toHost(host *net.TCPConn, guest Stream) (broken error, byGuest bool) {
	buf := make([]byte, pieceSize)
	for {
		n, err := guest.Read(buf)
		if n > 0 {
			if _, werr := host.Write(buf[:n]); werr != nil {
				return werr, false
			}
		}
		switch {
		case err == io.EOF:
			// A program that has gone already needs to hear of no end.
			_ = host.CloseWrite()
			return nil, false
		case err != nil:
			return err, true
		}
	}
}

package blocking

import (
	"io"

	"golang.org/x/sys/unix"
)

func forceBuffer(fd, size int) error {
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, size)
}

// Left tells whether the other end has gone. What it wrote before may still be there to read.
func (c *Conn) Left() bool {
	fds := []unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}

// SendFile writes n bytes of a file from an offset on, without copying them where the kernel can. It returns how many
// were written: fewer with io.EOF where the file ends before.
func (c *Conn) SendFile(file int, off int64, n int) (sent int, err error) {
	for sent < n {
		m, err := unix.Sendfile(c.fd, file, &off, n-sent)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return sent, waited(err)
		case m == 0:
			return sent, io.EOF
		}
		sent += max(m, 0)
	}
	return sent, nil
}

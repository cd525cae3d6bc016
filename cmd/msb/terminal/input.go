package terminal

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Input reads standard input until it is stopped. A plain read of a terminal or a pipe cannot be ended from outside;
// this one waits in poll first.
type Input struct {
	fd         int
	wake, stop *os.File
	once       sync.Once
	plain      io.Reader // input that is no file
}

// Input returns a reader of standard input that Stop can end.
func (s *Streams) Input() (*Input, error) {
	if s.inFile == nil {
		return &Input{plain: s.In}, nil
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("read standard input: %w", err)
	}
	return &Input{fd: int(s.inFile.Fd()), wake: r, stop: w}, nil
}

// Read reads what is there, waiting for it; io.EOF after Stop.
func (in *Input) Read(p []byte) (int, error) {
	if in.plain != nil {
		return in.plain.Read(p)
	}
	for {
		fds := []unix.PollFd{{Fd: int32(in.fd), Events: unix.POLLIN}, {Fd: int32(in.wake.Fd()), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err != nil {
			if errors.Is(err, unix.EINTR) {
				continue
			}
			return 0, fmt.Errorf("read standard input: %w", err)
		}
		if fds[1].Revents != 0 {
			return 0, io.EOF
		}
		n, err := unix.Read(in.fd, p)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			continue
		case errors.Is(err, unix.EIO), errors.Is(err, unix.EBADF): // the terminal hung up; no standard input at all
			return 0, io.EOF
		case err != nil:
			return 0, fmt.Errorf("read standard input: %w", err)
		case n <= 0:
			return 0, io.EOF
		}
		return n, nil
	}
}

// Stop ends a Read that waits, and all later ones.
func (in *Input) Stop() {
	if in.stop != nil {
		in.once.Do(func() { in.stop.Close() })
	}
}

// Close gives the descriptors back, after the last Read has returned.
func (in *Input) Close() {
	in.Stop()
	if in.wake != nil {
		in.wake.Close()
	}
}

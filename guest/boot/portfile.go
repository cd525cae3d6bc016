package boot

import (
	"io"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// portPiece is how much one read of a virtio-serial port returns at most: a page, the size of its driver's buffers.
const portPiece = 4096

// portFile is a virtio-serial port. Its Read takes many of the driver's buffers with one system call; it is for one
// reader at a time.
type portFile struct {
	*os.File
	conn syscall.RawConn
	vec  [16]unix.Iovec
}

func newPortFile(f *os.File) (*portFile, error) {
	conn, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &portFile{File: f, conn: conn}, nil
}

// Read reads into p in pieces, so that the driver, which ends a piece where a buffer of its own ends, goes on with the
// next one.
func (p *portFile) Read(b []byte) (int, error) {
	if len(b) <= portPiece {
		return p.File.Read(b)
	}
	var n uintptr
	var errno syscall.Errno
	err := p.conn.Read(func(fd uintptr) bool {
		count := 0
		for rest := b; len(rest) > 0 && count < len(p.vec); count++ {
			piece := min(len(rest), portPiece)
			p.vec[count].Base = &rest[0]
			p.vec[count].SetLen(piece)
			rest = rest[piece:]
		}
		for {
			n, _, errno = syscall.Syscall(unix.SYS_READV, fd, uintptr(unsafe.Pointer(&p.vec[0])), uintptr(count))
			if errno != unix.EINTR {
				return errno != unix.EAGAIN
			}
		}
	})
	clear(p.vec[:])
	switch {
	case err != nil:
		return 0, err
	case errno != 0:
		return 0, &os.PathError{Op: "read", Path: p.Name(), Err: errno}
	case n == 0:
		return 0, io.EOF
	}
	return int(n), nil
}

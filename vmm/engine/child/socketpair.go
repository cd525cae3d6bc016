package child

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Pair is a connected pair of stream sockets without a name in any file system: Ours for this process, Theirs to be
// given to a child by exec.Cmd.ExtraFiles and then closed here, so that the child's end is the stream's end.
type Pair struct {
	Ours   *net.UnixConn
	Theirs *os.File
}

// SocketPair makes one; name is for error messages.
func SocketPair(name string) (*Pair, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket pair for %s: %w", name, err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), name), os.NewFile(uintptr(fds[1]), name)
	defer ours.Close() // FileConn duplicates it
	c, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, fmt.Errorf("socket pair for %s: %w", name, err)
	}
	return &Pair{Ours: c.(*net.UnixConn), Theirs: theirs}, nil
}

// Close closes both ends.
func (p *Pair) Close() {
	p.Ours.Close()
	p.Theirs.Close()
}

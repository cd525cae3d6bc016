package process

import (
	"fmt"
	"net"
	"os"
)

// listen makes the socket that mounts connect to, for its owner only, and returns a descriptor of it for the guest.
func listen(path string) (*os.File, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("socket for mounts: %w", err)
	}
	l.SetUnlinkOnClose(false)
	defer l.Close()
	// The directory is its owner's alone, so nobody gets in between.
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, fmt.Errorf("socket for mounts: %w", err)
	}
	return l.File()
}

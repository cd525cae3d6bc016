package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// MaxSocketPath is the longest path of a Unix socket in bytes (sun_path without its NUL).
const MaxSocketPath = 107

// CheckSocketPath refuses a path that no Unix socket can have and says what cures it.
func CheckSocketPath(path string) error {
	if len(path) <= MaxSocketPath {
		return nil
	}
	cure := "set MSB_HOME to a directory with a shorter path"
	if os.Getenv("MSB_HOME") == "" {
		cure = "set XDG_RUNTIME_DIR (or MSB_HOME) to a directory with a shorter path"
	}
	return fmt.Errorf("socket path %s is %d bytes long, the system allows %d: %s", path, len(path), MaxSocketPath, cure)
}

// CheckSockets checks the paths of all sockets of a sandbox, before anything is started.
func (h *Home) CheckSockets(name string) error {
	// The longest one stands for all.
	return CheckSocketPath(h.ControlSocket(name))
}

// PrepareSockets makes the sandbox's socket directory (0700, ours) and removes the sockets that an
// earlier run left. The caller holds the lock, so no runtime is behind them.
func (h *Home) PrepareSockets(name string) error {
	if err := h.CheckSockets(name); err != nil {
		return err
	}
	dir := h.SocketDir(name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("socket directory: %w", err)
	}
	st, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("socket directory: %w", err)
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); !st.IsDir() || ok && int(sys.Uid) != os.Geteuid() {
		return fmt.Errorf("socket directory %s belongs to another user: remove it, or set MSB_HOME to a directory of your own", dir)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return fmt.Errorf("socket directory: %w", err)
	}
	return h.RemoveSockets(name)
}

// RemoveSockets removes the sandbox's sockets. The caller holds the lock.
func (h *Home) RemoveSockets(name string) error {
	var errs []error
	for _, path := range []string{h.AgentSocket(name), h.FilesSocket(name), h.ControlSocket(name), h.TurnSocket(name), h.ShellsSocket(name), h.TrafficSocket(name)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("stale socket: %w", err))
		}
	}
	return errors.Join(errs...)
}

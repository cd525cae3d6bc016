// Package store is where sandboxes live on the host's disk: the home directory, one directory a
// sandbox with its config, disk and logs, the run directory with sockets and locks, and the record
// of what runs. It reads a stock microsandbox home too, and never writes there.
package store

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Home is the place of everything msb keeps. Its fields are absolute paths.
type Home struct {
	Root   string // sandboxes, images, kernels and caches are below it
	Run    string // sockets and locks
	Config string // the user's settings file, which may not exist
}

// Open resolves the home from the environment: MSB_HOME if set, with everything below it, else the
// XDG directories. A MSB_HOME of a stock microsandbox installation is left alone, as if it were not set. It creates
// nothing.
func Open() (*Home, error) {
	if dir := os.Getenv("MSB_HOME"); dir != "" && !isStockHome(dir) {
		return At(dir)
	}
	state, err := xdg("XDG_STATE_HOME", ".local/state")
	if err != nil {
		return nil, err
	}
	config, err := xdg("XDG_CONFIG_HOME", ".config")
	if err != nil {
		return nil, err
	}
	h := &Home{Root: filepath.Join(state, "msb"), Config: filepath.Join(config, "msb", "config.yaml")}
	// The specification says to ignore a relative path.
	if run := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(run) {
		h.Run = filepath.Join(run, "msb")
	} else {
		h.Run = filepath.Join(h.Root, "run")
	}
	return h, nil
}

// At is the home with everything below dir, as MSB_HOME=dir gives it.
func At(dir string) (*Home, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("MSB_HOME %q: %w", dir, err)
	}
	return &Home{Root: abs, Run: filepath.Join(abs, "run"), Config: filepath.Join(abs, "config.yaml")}, nil
}

// Environ is what another process needs in its environment to open the same home, when it is not one that
// it would find by itself.
func (h *Home) Environ() []string {
	if h.Run == filepath.Join(h.Root, "run") && h.Config == filepath.Join(h.Root, "config.yaml") {
		return []string{"MSB_HOME=" + h.Root}
	}
	return nil
}

func xdg(variable, fallback string) (string, error) {
	if dir := os.Getenv(variable); filepath.IsAbs(dir) {
		return dir, nil
	}
	home, err := os.UserHomeDir()
	if err != nil || !filepath.IsAbs(home) {
		return "", errors.New("cannot tell where to keep sandboxes: HOME is not set; set MSB_HOME to a directory")
	}
	return filepath.Join(home, filepath.FromSlash(fallback)), nil
}

// ImagesDir holds the root images.
func (h *Home) ImagesDir() string { return filepath.Join(h.Root, "images") }

// KernelsDir holds the guest kernels.
func (h *Home) KernelsDir() string { return filepath.Join(h.Root, "kernels") }

// CacheDir holds what can be made again: initramfs files, probe results, downloads.
func (h *Home) CacheDir() string { return filepath.Join(h.Root, "cache") }

// SandboxesDir holds one directory a sandbox.
func (h *Home) SandboxesDir() string { return filepath.Join(h.Root, "sandboxes") }

// SandboxDir is the directory of one sandbox.
func (h *Home) SandboxDir(name string) string { return filepath.Join(h.SandboxesDir(), name) }

// LogsDir holds a sandbox's kernel.log, runtime.log and exec.log.
func (h *Home) LogsDir(name string) string { return filepath.Join(h.SandboxDir(name), "logs") }

// KernelLog is what the guest wrote to its console.
func (h *Home) KernelLog(name string) string { return filepath.Join(h.LogsDir(name), "kernel.log") }

// RuntimeLog is the log of the runtime process, one slog line an entry.
func (h *Home) RuntimeLog(name string) string { return filepath.Join(h.LogsDir(name), "runtime.log") }

// ExecLog is the output of commands, one JSON object a line: {"t","s","d","id"}.
func (h *Home) ExecLog(name string) string { return filepath.Join(h.LogsDir(name), "exec.log") }

// DiskPath is the sandbox's own disk for an engine: "disk.qcow2" for qemu, "disk.ext4" for process.
func (h *Home) DiskPath(name, engine string) string {
	if engine == "process" {
		return filepath.Join(h.SandboxDir(name), "disk.ext4")
	}
	return filepath.Join(h.SandboxDir(name), "disk.qcow2")
}

// SocketDir is the directory of a sandbox's sockets (mode 0700), named by the first 12 bytes of the
// SHA-256 of its name.
func (h *Home) SocketDir(name string) string {
	return filepath.Join(h.Run, "sandboxes", nameHash(name, 12))
}

// AgentSocket is where the relay serves the agent protocol.
func (h *Home) AgentSocket(name string) string { return filepath.Join(h.SocketDir(name), "agent.sock") }

// FilesSocket is where mounts reach the guest's file system without the runtime in between, if the engine has such a
// way.
func (h *Home) FilesSocket(name string) string { return filepath.Join(h.SocketDir(name), "files.sock") }

// ControlSocket is where the runtime serves the control protocol.
func (h *Home) ControlSocket(name string) string {
	return filepath.Join(h.SocketDir(name), "control.sock")
}

// TurnSocket is where the runtime serves turns and approvals.
func (h *Home) TurnSocket(name string) string { return filepath.Join(h.SocketDir(name), "turn.sock") }

// ShellsSocket is where the runtime keeps shells for front ends.
func (h *Home) ShellsSocket(name string) string {
	return filepath.Join(h.SocketDir(name), "shells.sock")
}

// TrafficSocket is where the runtime tells what crosses its protocols.
func (h *Home) TrafficSocket(name string) string {
	return filepath.Join(h.SocketDir(name), "traffic.sock")
}

// LockPath is the file whose exclusive flock the runtime holds for as long as it lives.
func (h *Home) LockPath(name string) string {
	return filepath.Join(h.Run, "locks", nameHash(name, 16)+".lock")
}

func nameHash(name string, bytes int) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:bytes])
}

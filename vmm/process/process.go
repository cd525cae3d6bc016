// Package process runs sandboxes as processes in namespaces of their own on the host's kernel: the same guest agent,
// over socket pairs, with its root on an ext4 image behind a loop device.
//
// There is no hardware boundary: a hole in the host's kernel is a way out. It is for development and tests, and for
// root only.
package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"msb/vmm/engine"
)

// Engine is the process engine.
type Engine struct{}

// New makes the engine.
func New() *Engine { return &Engine{} }

var _ engine.Engine = (*Engine)(nil)

// Name is "process".
func (e *Engine) Name() string { return "process" }

// Capabilities of the sandboxes: none of a machine's.
func (e *Engine) Capabilities() engine.Capabilities {
	return engine.Capabilities{DiskFormat: engine.Raw}
}

// ErrNotRoot says that the engine needs root.
var ErrNotRoot = errors.New("the process engine needs root: run msb with sudo, or use --engine qemu")

// Check wants root with CAP_SYS_ADMIN, loop devices and ext4.
func (e *Engine) Check(ctx context.Context) error {
	if runtime.GOOS != "linux" {
		return fmt.Errorf("the process engine runs on Linux only, not on %s", runtime.GOOS)
	}
	if os.Geteuid() != 0 {
		return ErrNotRoot
	}
	if err := canAdmin(); err != nil {
		return err
	}
	f, err := os.OpenFile(loopControl, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("the process engine needs loop devices: %w; try: modprobe loop", err)
	}
	f.Close()
	if ok, err := hasFileSystem("ext4"); err == nil && !ok {
		return errors.New("the process engine needs ext4, which this kernel does not list; try: modprobe ext4")
	}
	return ctx.Err()
}

// canAdmin tells root in a container without rights from root.
func canAdmin() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("read the capabilities of this process: %w", err)
	}
	if data[0].Effective&(1<<unix.CAP_SYS_ADMIN) == 0 {
		return errors.New("the process engine needs CAP_SYS_ADMIN, which root does not have here (a container?)")
	}
	return nil
}

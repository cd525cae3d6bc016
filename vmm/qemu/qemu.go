// Package qemu runs sandboxes as QEMU virtual machines (machine q35) driven over QMP.
//
// What the guest sees is the same under KVM and under emulation (TCG): only -accel and -cpu differ.
package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"msb/vmm/engine"
)

// Engine is the QEMU engine. The zero value is not usable: see New.
type Engine struct {
	binary, img string
}

// Option changes an Engine.
type Option func(*Engine)

// WithBinaries names the programs to use in place of qemu-system-x86_64 and qemu-img of PATH; "" leaves one as it is.
func WithBinaries(system, img string) Option {
	return func(e *Engine) {
		if system != "" {
			e.binary = system
		}
		if img != "" {
			e.img = img
		}
	}
}

// New makes the engine; nothing is looked for before Check, CreateDisk or Start.
func New(opts ...Option) *Engine {
	e := &Engine{binary: "qemu-system-x86_64", img: "qemu-img"}
	for _, o := range opts {
		o(e)
	}
	return e
}

var _ engine.Engine = (*Engine)(nil)

// Name is "qemu".
func (e *Engine) Name() string { return "qemu" }

// Capabilities of the machines.
func (e *Engine) Capabilities() engine.Capabilities {
	return engine.Capabilities{
		DiskFormat: engine.Qcow2, NeedsKernel: true, Boundary: true,
		ResizeCPUs: true, ResizeMemory: true, Net: true,
	}
}

// MinVersion is the oldest QEMU that has all we ask for.
const MinVersion = "7.2"

const install = "install it with: apt-get install qemu-system-x86 qemu-utils"

// Check finds the programs and their version.
func (e *Engine) Check(ctx context.Context) error {
	if runtime.GOARCH != "amd64" {
		return fmt.Errorf("the qemu engine runs on amd64 hosts only, not on %s", runtime.GOARCH)
	}
	if _, err := exec.LookPath(e.img); err != nil {
		return fmt.Errorf("qemu-img: %w; %s", err, install)
	}
	_, err := e.Version(ctx)
	return err
}

var versionLine = regexp.MustCompile(`version (\d+)\.(\d+)(\.\d+)?`)

// Version is that of qemu-system-x86_64, such as "7.2.22". An older one than MinVersion is an error.
func (e *Engine) Version(ctx context.Context) (string, error) {
	path, err := exec.LookPath(e.binary)
	if err != nil {
		return "", fmt.Errorf("QEMU: %w; %s", err, install)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := tool(ctx, path, "--version").Output()
	if ctx.Err() != nil {
		return "", fmt.Errorf("run %s --version: %w", path, ctx.Err())
	}
	if err != nil {
		return "", fmt.Errorf("run %s --version: %w%s", path, err, stderrOf(err))
	}
	m := versionLine.FindSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("%s --version says nothing that looks like a version", path)
	}
	version := strings.TrimPrefix(string(m[0]), "version ")
	major, _ := strconv.Atoi(string(m[1]))
	minor, _ := strconv.Atoi(string(m[2]))
	if major < 7 || major == 7 && minor < 2 {
		return version, fmt.Errorf("%s is version %s, and at least %s is needed", path, version, MinVersion)
	}
	return version, nil
}

// tool is a program that runs until it is done or ctx ends. A Ctrl-C is not for it but for us: it is in a process group
// of its own, so that its end by a signal is not taken for a failure.
func tool(ctx context.Context, path string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

func stderrOf(err error) string {
	var ee *exec.ExitError
	if errors.As(err, &ee) && len(ee.Stderr) > 0 {
		return ": " + strings.TrimSpace(string(ee.Stderr))
	}
	return ""
}

// needFile explains a missing file of a Spec better than QEMU would.
func needFile(what, path string) error {
	if path == "" {
		return fmt.Errorf("no %s is given", what)
	}
	st, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if st.IsDir() {
		return fmt.Errorf("%s: %s is a directory", what, path)
	}
	return nil
}

package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"msb/vmm"
	"msb/vmm/engine"
	"msb/vmm/image"
	"msb/vmm/qemu"
	"msb/vmm/store"
)

// baseline boots the machine of a sandbox with benchinit in place of the
// guest agent.
type baseline struct {
	engine engine.Engine
	spec   engine.Spec
}

func newBaseline(ctx context.Context, home *store.Home, dir string) (*baseline, error) {
	init := filepath.Join(dir, "benchinit")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", init, "./cmd/bench/benchinit")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build benchinit: %w\n%s", err, out)
	}
	lib, err := image.Open(home.Root)
	if err != nil {
		return nil, err
	}
	k, err := lib.Kernel()
	if err != nil {
		return nil, err
	}
	initrd, err := lib.Initramfs(ctx, k, init)
	if err != nil {
		return nil, err
	}
	return &baseline{qemu.New(), engine.Spec{
		Name: "bench", Dir: dir, Kernel: k.Boot, Initrd: initrd, CacheDir: home.CacheDir(),
		CPUs: vmm.DefaultCPUs, MemoryMiB: vmm.DefaultMemoryMiB, DualPort: true,
	}}, nil
}

// powerOff boots a machine that only powers off and returns how long it took.
func (b *baseline) powerOff(ctx context.Context) (time.Duration, error) {
	spec := b.spec
	spec.Cmdline = []string{"bench=poweroff"}
	start := time.Now()
	vm, err := b.engine.Start(ctx, spec)
	if err != nil {
		return 0, err
	}
	defer vm.Control().Close()
	select {
	case <-vm.Done():
		return time.Since(start), vm.Exit().Err
	case <-ctx.Done():
		_ = vm.Kill()
		<-vm.Done()
		return 0, ctx.Err()
	}
}

// pumped is a machine that pumps bytes.
type pumped struct {
	vm   engine.VM
	port io.ReadWriteCloser
	buf  []byte
}

func (b *baseline) pump(ctx context.Context) (*pumped, error) {
	vm, err := b.engine.Start(ctx, b.spec)
	if err != nil {
		return nil, err
	}
	return &pumped{vm, vm.Control(), make([]byte, 1<<20)}, nil
}

func (p *pumped) close() {
	_ = p.vm.Kill()
	<-p.vm.Done()
	_ = p.port.Close()
}

func (p *pumped) request(op byte, n int64) error {
	var req [9]byte
	req[0] = op
	binary.BigEndian.PutUint64(req[1:], uint64(n))
	_, err := p.port.Write(req[:])
	return err
}

// read takes size bytes from the guest.
func (p *pumped) read(size int64) (time.Duration, error) {
	start := time.Now()
	if err := p.request('R', size); err != nil {
		return 0, err
	}
	for left := size; left > 0; {
		n, err := p.port.Read(p.buf[:min(left, int64(len(p.buf)))])
		if err != nil {
			return 0, err
		}
		left -= int64(n)
	}
	return time.Since(start), nil
}

// write gives size bytes to the guest and waits until it has them.
func (p *pumped) write(size int64) (time.Duration, error) {
	start := time.Now()
	if err := p.request('W', size); err != nil {
		return 0, err
	}
	for left := size; left > 0; {
		n, err := p.port.Write(p.buf[:min(left, int64(len(p.buf)))])
		if err != nil {
			return 0, err
		}
		left -= int64(n)
	}
	_, err := io.ReadFull(p.port, p.buf[:1])
	return time.Since(start), err
}

// roundTrips returns the times of n round trips of one byte.
func (p *pumped) roundTrips(n int) ([]time.Duration, error) {
	if err := p.request('P', int64(n)); err != nil {
		return nil, err
	}
	times := make([]time.Duration, n)
	for i := range times {
		start := time.Now()
		if _, err := p.port.Write(p.buf[:1]); err != nil {
			return nil, err
		}
		if _, err := io.ReadFull(p.port, p.buf[:1]); err != nil {
			return nil, err
		}
		times[i] = time.Since(start)
	}
	return times, nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"msb/agentclient"
	"msb/protocol/agent"
	"msb/vmm/store"
)

type bench struct {
	msb    string
	image  string
	rounds int
	size   int64 // MiB
	rows   []row

	tree    string // source tree for mounts
	entries int    // of the large directory
}

func (b *bench) run(ctx context.Context) error {
	home, err := store.Open()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "msb-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	base, err := newBaseline(ctx, home, dir)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("bench-%d", os.Getpid())
	defer b.command(context.WithoutCancel(ctx), "rm", "-f", name)
	if err := b.boot(ctx, base, name); err != nil {
		return fmt.Errorf("boot: %w", err)
	}
	port, err := base.pump(ctx)
	if err != nil {
		return err
	}
	defer port.close()
	client, err := agentclient.Dial(ctx, home.AgentSocket(name))
	if err != nil {
		return err
	}
	defer client.Close()
	if err := b.data(ctx, port, client, name, dir); err != nil {
		return fmt.Errorf("data: %w", err)
	}
	if err := b.latency(ctx, port, client); err != nil {
		return fmt.Errorf("latency: %w", err)
	}
	if err := b.loaded(ctx, home); err != nil {
		return fmt.Errorf("latency under load: %w", err)
	}
	client.Close()
	if err := b.crowd(ctx, home.AgentSocket(name), name); err != nil {
		return fmt.Errorf("crowd: %w", err)
	}
	if err := b.throughput(ctx, dir); err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	printTable(b.rows)
	return nil
}

func (b *bench) command(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, b.msb, args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("msb %v: %w\n%s", args, err, out)
	}
	return nil
}

// boot times `msb create` as a whole process, its last sandbox is kept.
func (b *bench) boot(ctx context.Context, base *baseline, name string) error {
	var ours, theirs []time.Duration
	for i := range b.rounds + 1 {
		d, err := base.powerOff(ctx)
		if err != nil {
			return err
		}
		start := time.Now()
		if err := b.command(ctx, "create", b.image, "-n", name, "-q"); err != nil {
			return err
		}
		took := time.Since(start)
		if i > 0 { // the first round warms the caches
			ours, theirs = append(ours, took), append(theirs, d)
		}
		if i < b.rounds {
			if err := b.command(ctx, "rm", "-f", name); err != nil {
				return err
			}
		}
	}
	b.rows = append(b.rows, timeRow("boot: msb create to ready", median(ours), median(theirs), "<= 1.25 (init that powers off)"))
	return nil
}

// data moves size MiB through the client and through the mount.
func (b *bench) data(ctx context.Context, port *pumped, client *agentclient.Client, name, dir string) error {
	size := b.size << 20
	mnt := filepath.Join(dir, "mnt")
	if err := os.Mkdir(mnt, 0o755); err != nil {
		return err
	}
	if err := b.command(ctx, "mount", name+":/tmp", mnt); err != nil {
		return err
	}
	defer b.command(context.WithoutCancel(ctx), "umount", mnt)
	const path = "/tmp/bench"
	onMount := filepath.Join(mnt, "bench")
	measures := []struct {
		what string
		once func() (time.Duration, error)
		took []time.Duration
	}{
		{"pump read", func() (time.Duration, error) { return port.read(size) }, nil},
		{"pump write", func() (time.Duration, error) { return port.write(size) }, nil},
		// what the guest's own file system takes, without any port
		{"guest write", func() (time.Duration, error) { return guestWrite(ctx, client, b.size) }, nil},
		{"client write", func() (time.Duration, error) { return upload(ctx, client, path, size) }, nil},
		{"client read", func() (time.Duration, error) { return download(ctx, client, path, size) }, nil},
		// dd, so that no Go program waits for a mount that a Go program serves
		{"mount write", func() (time.Duration, error) {
			return timed(ctx, "dd", "if=/dev/zero", "of="+onMount, "bs=1M", fmt.Sprint("count=", b.size), "conv=fsync", "status=none")
		}, nil},
		{"mount read", func() (time.Duration, error) {
			return timed(ctx, "dd", "if="+onMount, "of=/dev/null", "bs=1M", "iflag=nocache", "status=none")
		}, nil},
	}
	for round := range max(b.rounds/2, 1) + 1 {
		for i := range measures {
			m := &measures[i]
			d, err := m.once()
			if err != nil {
				return fmt.Errorf("%s: %w", m.what, err)
			}
			if round > 0 {
				m.took = append(m.took, d)
			}
		}
		if err := client.FS().Remove(ctx, path); err != nil {
			return err
		}
	}
	took := func(i int) time.Duration { return median(measures[i].took) }
	b.rows = append(b.rows,
		rateRow("data: client read", size, took(4), took(0), ">= 0.9 (byte pump)"),
		rateRow("data: client write", size, took(3), took(1), ">= 0.9 (byte pump)"),
		rateRow("data: client write", size, took(3), took(2), "(dd inside the guest)"),
		rateRow("data: mount read", size, took(6), took(0), ">= 0.8 (byte pump)"),
		rateRow("data: mount write and fsync", size, took(5), took(1), ">= 0.8 (byte pump)"),
		rateRow("data: mount write and fsync", size, took(5), took(2), "(dd inside the guest)"),
	)
	return nil
}

func upload(ctx context.Context, c *agentclient.Client, path string, size int64) (time.Duration, error) {
	start := time.Now()
	f, err := c.FS().OpenFile(ctx, path, agent.OpenOptions{Write: true, Create: true, Truncate: true})
	if err != nil {
		return 0, err
	}
	_, err = f.Upload(ctx, io.LimitReader(zeros{}, size), 0)
	err = errors.Join(err, f.Close(ctx))
	return time.Since(start), err
}

func download(ctx context.Context, c *agentclient.Client, path string, size int64) (time.Duration, error) {
	start := time.Now()
	f, err := c.FS().OpenFile(ctx, path, agent.OpenOptions{Read: true})
	if err != nil {
		return 0, err
	}
	n, err := f.Download(ctx, io.Discard, 0, nil)
	if err == nil && n != size {
		err = fmt.Errorf("read %d bytes of %d", n, size)
	}
	err = errors.Join(err, f.Close(ctx))
	return time.Since(start), err
}

// guestWrite has the guest itself write size MiB.
func guestWrite(ctx context.Context, c *agentclient.Client, size int64) (time.Duration, error) {
	start := time.Now()
	e, err := c.Exec(ctx, agentclient.ExecSpec{Cmd: "dd", Args: []string{"if=/dev/zero", "of=/tmp/bench", "bs=1M", fmt.Sprint("count=", size)}})
	if err != nil {
		return 0, err
	}
	if code, err := e.Wait(); err != nil || code != 0 {
		return 0, fmt.Errorf("dd in the guest: code %d, %w", code, err)
	}
	return time.Since(start), nil
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func timed(ctx context.Context, name string, args ...string) (time.Duration, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	start := time.Now()
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return time.Since(start), err
}

// latency compares a ping and a command with the round trip of the port.
func (b *bench) latency(ctx context.Context, port *pumped, client *agentclient.Client) error {
	const n = 300
	trips, err := port.roundTrips(n)
	if err != nil {
		return err
	}
	var pings, execs []time.Duration
	for range n {
		d, err := client.Ping(ctx)
		if err != nil {
			return err
		}
		pings = append(pings, d)
	}
	for range n / 3 {
		start := time.Now()
		e, err := client.Exec(ctx, agentclient.ExecSpec{Cmd: "true"})
		if err != nil {
			return err
		}
		if code, err := e.Wait(); err != nil || code != 0 {
			return fmt.Errorf("true: code %d, %w", code, err)
		}
		execs = append(execs, time.Since(start))
	}
	b.rows = append(b.rows,
		timeRow("ping: p50", median(pings), median(trips), "(round trip of the port)"),
		timeRow("exec of true: p50", median(execs), median(trips), "(round trip of the port)"),
	)
	return nil
}

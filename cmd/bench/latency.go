package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"msb/agentclient"
	"msb/protocol/agent"
	"msb/vmm/store"
)

// loadedPings is how many pings a percentile is of.
const loadedPings = 1000

// loaded compares ping while a bulk read and a bulk write saturate the link with ping on an idle one: on a connection of
// its own, and on the one that carries the data. It does so in a machine and, as root, in the process engine.
func (b *bench) loaded(ctx context.Context, home *store.Home) error {
	engines := []string{"qemu"}
	if os.Geteuid() == 0 {
		engines = append(engines, "process")
	}
	for _, engine := range engines {
		name := fmt.Sprintf("bench-%s-%d", engine, os.Getpid())
		if err := b.command(ctx, "create", b.image, "-n", name, "-q", "--engine", engine); err != nil {
			return err
		}
		err := b.loadedOn(ctx, home.AgentSocket(name), engine)
		if err := errors.Join(err, b.command(context.WithoutCancel(ctx), "rm", "-f", name)); err != nil {
			return fmt.Errorf("%s: %w", engine, err)
		}
	}
	return nil
}

func (b *bench) loadedOn(ctx context.Context, socket, engine string) error {
	busy, err := agentclient.Dial(ctx, socket)
	if err != nil {
		return err
	}
	defer busy.Close()
	other, err := agentclient.Dial(ctx, socket)
	if err != nil {
		return err
	}
	defer other.Close()
	t, err := newTransfers(ctx, busy)
	if err != nil {
		return err
	}
	var idle, same, apart []time.Duration
	for range max(b.rounds/2, 1) {
		more, err := pings(ctx, other)
		if err != nil {
			return err
		}
		idle = append(idle, more...)
		stop := t.start(ctx)
		more, err = pings(ctx, other)
		apart = append(apart, more...)
		if err == nil {
			more, err = pings(ctx, busy)
			same = append(same, more...)
		}
		if err := errors.Join(err, stop()); err != nil {
			return err
		}
	}
	fmt.Printf("%s: ping p50 %s idle, %s beside data, %s on its connection; read %.0f MB/s, write %.0f MB/s meanwhile\n", engine,
		percentile(idle, 50), percentile(apart, 50), percentile(same, 50), t.rate(&t.read), t.rate(&t.written))
	b.rows = append(b.rows,
		timeRow("ping p95 beside data, "+engine, percentile(apart, 95), percentile(idle, 50), "<= 5 (idle p50)"),
		timeRow("ping p95 on its conn., "+engine, percentile(same, 95), percentile(idle, 50), "<= 5 (idle p50)"),
	)
	return nil
}

func pings(ctx context.Context, c *agentclient.Client) (took []time.Duration, err error) {
	for range loadedPings {
		d, err := c.Ping(ctx)
		if err != nil {
			return nil, err
		}
		took = append(took, d)
		time.Sleep(200 * time.Microsecond)
	}
	return took, nil
}

// transfers read and write a file of 32 MiB all the time, between start and its result.
type transfers struct {
	file          *agentclient.File
	content       []byte
	read, written int64
	took          time.Duration
}

func newTransfers(ctx context.Context, c *agentclient.Client) (*transfers, error) {
	f, err := c.FS().OpenFile(ctx, "/tmp/bench-loaded", agent.OpenOptions{Read: true, Write: true, Create: true})
	if err != nil {
		return nil, err
	}
	t := &transfers{file: f, content: make([]byte, 32<<20)}
	_, err = f.WriteAt(ctx, t.content, 0)
	return t, err
}

func (t *transfers) start(ctx context.Context) (stop func() error) {
	begin := time.Now()
	ending := make(chan struct{})
	var wg sync.WaitGroup
	repeat := func(total *int64, once func() (int64, error)) func() error {
		var err error
		wg.Go(func() {
			for err == nil {
				select {
				case <-ending:
					return
				default:
				}
				var n int64
				n, err = once()
				*total += n
			}
		})
		return func() error { return err }
	}
	readErr := repeat(&t.read, func() (int64, error) { return t.file.Download(ctx, io.Discard, 0, nil) })
	writeErr := repeat(&t.written, func() (int64, error) { return t.file.Upload(ctx, bytes.NewReader(t.content), 0) })
	return func() error {
		close(ending)
		wg.Wait()
		t.took += time.Since(begin)
		return errors.Join(readErr(), writeErr())
	}
}

func (t *transfers) rate(bytes *int64) float64 { return float64(*bytes) / 1e6 / t.took.Seconds() }

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"msb/agentclient"
	"msb/protocol/agent"
)

const (
	crowdClients = 128
	crowdOps     = 64        // of each client, all at once
	crowdSize    = 192 << 10 // bytes that one operation writes or reads, enough for raw bulk
)

// crowd fills every place of the relay with a client that has as much raw bulk under way as one may have. Half of the
// operations write, half read. All must finish; what the runtime needed for it is a row.
func (b *bench) crowd(ctx context.Context, socket, name string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	pid, err := b.runtimePID(ctx, name)
	if err != nil {
		return err
	}
	clients := make([]*agentclient.Client, 0, crowdClients)
	defer func() {
		for _, c := range clients {
			c.Close()
		}
	}()
	for range crowdClients {
		c, err := dialCrowded(ctx, socket)
		if err != nil {
			return err
		}
		clients = append(clients, c)
	}
	idle, err := memoryPeak(pid)
	if err != nil {
		return err
	}
	start := time.Now()
	var work sync.WaitGroup
	failed := make(chan error, 1)
	for i, c := range clients {
		work.Go(func() {
			if err := member(ctx, c, i); err != nil {
				select {
				case failed <- fmt.Errorf("client %d: %w", i, err):
				default:
				}
			}
		})
	}
	work.Wait()
	took := time.Since(start)
	select {
	case err := <-failed:
		return err
	default:
	}
	peak, err := memoryPeak(pid)
	if err != nil {
		return err
	}
	mib := func(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }
	what := fmt.Sprintf("crowd: %d clients × %d operations", crowdClients, crowdOps)
	rate := float64(crowdClients*crowdOps) / took.Seconds()
	b.rows = append(b.rows,
		row{what, fmt.Sprintf("%.0f/s", rate), "", 0, fmt.Sprintf("all finish (%d of %d KiB in %.1f s)", crowdClients*crowdOps, crowdSize>>10, took.Seconds())},
		row{"crowd: peak memory of the runtime", mib(peak), mib(idle), float64(peak) / float64(idle), "bounded (with the clients idle)"},
	)
	return nil
}

// dialCrowded waits for a place: those of connections that ended a moment ago are not free yet.
func dialCrowded(ctx context.Context, socket string) (*agentclient.Client, error) {
	for {
		c, err := agentclient.Dial(ctx, socket)
		if err == nil {
			return c, nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return nil, errors.Join(err, ctx.Err())
		}
	}
}

// member is one client: it opens a file and has all its operations on it under way at once.
func member(ctx context.Context, c *agentclient.Client, i int) error {
	data := bytes.Repeat([]byte{byte(i)}, crowdSize)
	f, err := c.FS().OpenFile(ctx, fmt.Sprintf("/tmp/crowd-%d", i), agent.OpenOptions{Read: true, Write: true, Create: true, Truncate: true})
	if err != nil {
		return err
	}
	if _, err := f.WriteAt(ctx, data, 0); err != nil {
		return err
	}
	errs := make(chan error, crowdOps)
	for op := range crowdOps {
		go func() {
			if op%2 == 0 { // the same bytes to the same place: readers see them, whatever happens first
				_, err := f.Upload(ctx, bytes.NewReader(data), 0)
				errs <- err
				return
			}
			var got bytes.Buffer
			_, err := f.Download(ctx, &got, 0, nil)
			if err == nil && !bytes.Equal(got.Bytes(), data) {
				err = errors.New("read something else than was written")
			}
			errs <- err
		}()
	}
	for range crowdOps {
		err = errors.Join(err, <-errs)
	}
	return errors.Join(err, f.Close(ctx), c.FS().Remove(ctx, fmt.Sprintf("/tmp/crowd-%d", i)))
}

func (b *bench) runtimePID(ctx context.Context, name string) (int, error) {
	out, err := exec.CommandContext(ctx, b.msb, "inspect", name, "--json").Output()
	if err != nil {
		return 0, fmt.Errorf("msb inspect: %w", err)
	}
	var v struct {
		RuntimePID int `json:"runtime_pid"`
	}
	if err := json.Unmarshal(out, &v); err != nil {
		return 0, err
	}
	return v.RuntimePID, nil
}

// memoryPeak returns the most memory that a process has had since the last call, in bytes.
func memoryPeak(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				return 0, err
			}
			const resetPeak = "5"
			return kib << 10, os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte(resetPeak), 0)
		}
	}
	return 0, fmt.Errorf("/proc/%d/status says nothing of memory", pid)
}

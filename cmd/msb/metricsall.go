package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"msb/protocol/control"
	"msb/vmm/store"
)

// metricsColumns are what sandboxes can be sorted by: the name upwards, the rest downwards.
var metricsColumns = []string{"name", "cpu", "memory", "disk", "net"}

const (
	lookWait = 5 * time.Second // for one sandbox; who takes longer is shown without figures
	lookers  = 8               // sandboxes that are asked at a time
)

// metricsOfAll shows the sandboxes that run, one row each. Those that start or stop meanwhile come and go.
func (a *app) metricsOfAll(ctx context.Context, o *metricsOptions, asJSON bool) error {
	stream := o.watch || o.follow
	redraw := o.watch && a.io.OutTTY()
	before, err := a.lookAtAll(ctx)
	if err != nil {
		return err
	}
	drawn := 0
	for wait := firstLook; ; wait = o.interval {
		select {
		case <-ctx.Done():
			if stream {
				return nil // as it was asked for
			}
			return ctx.Err()
		case <-time.After(wait):
		}
		after, err := a.lookAtAll(ctx)
		switch {
		case ctx.Err() != nil && stream:
			return nil
		case err != nil:
			return err
		}
		all := usageOf(before, after, o.sort)
		before = after
		switch {
		case asJSON && stream:
			err = json.NewEncoder(a.io.Out).Encode(all)
		case asJSON:
			err = writeJSON(a.io.Out, all)
		default:
			if redraw && drawn > 0 {
				fmt.Fprintf(a.io.Out, "\x1b[%dA\x1b[J", drawn)
			}
			drawn = len(all) + 1
			err = writeUsage(a, all)
		}
		if err != nil || !stream {
			return err
		}
	}
}

// lookAtAll asks the sandboxes of ours that run. One that does not answer is there without a look.
func (a *app) lookAtAll(ctx context.Context) (map[string]*control.Metrics, error) {
	h, err := a.host()
	if err != nil {
		return nil, err
	}
	boxes, err := h.List(ctx)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	looks := map[string]*control.Metrics{}
	slots := make(chan struct{}, lookers)
	var work sync.WaitGroup
	for _, sb := range boxes {
		if sb.State != store.Running {
			continue
		}
		slots <- struct{}{}
		work.Go(func() {
			defer func() { <-slots }()
			m := controlled{name: sb.Name, socket: sb.ControlSocket, agent: sb.AgentSocket, host: h, own: &sb}.look(ctx)
			mu.Lock()
			looks[sb.Name] = m
			mu.Unlock()
		})
	}
	work.Wait()
	return looks, ctx.Err()
}

// look takes one look; nil when that cannot be done in time.
func (t controlled) look(ctx context.Context) *control.Metrics {
	ctx, cancel := context.WithTimeout(ctx, lookWait)
	defer cancel()
	c, err := t.connect()
	if err != nil {
		return nil
	}
	defer c.Close()
	m, err := t.metrics(ctx, c)
	if err != nil {
		return nil
	}
	return &m
}

// usageOf puts two looks together, in the order that was asked for.
func usageOf(before, after map[string]*control.Metrics, order string) []usage {
	all := make([]usage, 0, len(after))
	for name, m := range after {
		u := usage{Name: name}
		if m != nil {
			u.Metrics = *m
			if b := before[name]; b != nil {
				u.Rates = ratesOf(*b, *m)
			}
		}
		all = append(all, u)
	}
	slices.SortFunc(all, func(a, b usage) int {
		if c := cmp.Compare(b.amount(order), a.amount(order)); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	return all
}

// amount is what a sandbox is sorted by.
func (u usage) amount(order string) float64 {
	r := rateOf(u)
	sum := func(all ...*float64) (n float64) {
		for _, v := range all {
			if v != nil {
				n += *v
			}
		}
		return n
	}
	switch order {
	case "cpu":
		return max(r.MachineCPU, sum(r.GuestCPU))
	case "memory":
		return float64(u.Machine.ResidentBytes)
	case "disk":
		return sum(r.DiskRead, r.DiskWritten)
	case "net":
		return sum(r.NetReceived, r.NetSent)
	}
	return 0
}

func writeUsage(a *app, all []usage) error {
	rows := make([][]string, 0, len(all))
	for _, u := range all {
		if u.TimeNanos == 0 {
			rows = append(rows, []string{u.Name, "no answer", "", "", "", ""})
			continue
		}
		state := "running"
		if u.Paused {
			state = "paused"
		}
		rows = append(rows, []string{u.Name, state, cpuText(u), memoryText(u), diskText(u), netText(u)})
	}
	return writeTable(a.io.Out, []string{"NAME", "STATE", "CPU", "MEMORY", "DISK", "NETWORK"}, rows)
}

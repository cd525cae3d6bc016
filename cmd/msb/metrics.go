package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"msb/cmd/msb/progress"
	"msb/controlclient"
	"msb/protocol/control"
)

// usage is what a sandbox uses, as metrics prints it: one look, and the rates since the look before.
type usage struct {
	Name string `json:"name"`
	control.Metrics
	Rates *rates `json:"rates,omitempty"` // absent with the first look
}

// rates are per second; a CPU is 1.
type rates struct {
	MachineCPU  float64  `json:"machine_cpu"`
	GuestCPU    *float64 `json:"guest_cpu,omitempty"`
	DiskRead    *float64 `json:"disk_read_bytes,omitempty"`
	DiskWritten *float64 `json:"disk_written_bytes,omitempty"`
	NetReceived *float64 `json:"net_received_bytes,omitempty"`
	NetSent     *float64 `json:"net_sent_bytes,omitempty"`
}

func ratesOf(before, after control.Metrics) *rates {
	if after.TimeNanos <= before.TimeNanos {
		return nil
	}
	per := func(a, b uint64) float64 {
		if b < a {
			return 0 // a counter that began anew
		}
		return float64(b-a) / (float64(after.TimeNanos-before.TimeNanos) / 1e9)
	}
	r := &rates{MachineCPU: per(before.Machine.CPUNanos, after.Machine.CPUNanos) / 1e9}
	if g, h := before.Guest, after.Guest; g != nil && h != nil {
		ref := func(v float64) *float64 { return &v }
		r.GuestCPU = ref(per(g.CPUBusyNanos, h.CPUBusyNanos) / 1e9)
		r.DiskRead, r.DiskWritten = ref(per(g.DiskReadBytes, h.DiskReadBytes)), ref(per(g.DiskWrittenBytes, h.DiskWrittenBytes))
		r.NetReceived, r.NetSent = ref(per(g.NetReceivedBytes, h.NetReceivedBytes)), ref(per(g.NetSentBytes, h.NetSentBytes))
	}
	return r
}

// metricsOptions are the flags of metrics.
type metricsOptions struct {
	list          listing
	watch, follow bool
	all           bool
	sort          string
	socket        string
	interval      time.Duration
}

func newMetricsCmd(app *app) *cobra.Command {
	o := metricsOptions{interval: 2 * time.Second}
	cmd := &cobra.Command{
		Use:   "metrics [NAME]",
		Short: "Show the CPU, memory, disk and network that sandboxes use",
		Long: `Show what a sandbox uses, as its machine costs the host and as the guest counts it; without
NAME, what each of those that run does. It takes two looks, half a second apart, for the rates.
--watch goes on and draws over itself, --follow prints a line (with --json an object) each time.
Looking does not count as use of the sandbox.`,
		Example:           "  msb metrics demo\n  msb metrics demo --watch\n  msb metrics --sort memory\n  msb metrics demo --follow --json --interval 10s",
		ValidArgsFunction: app.completeNames(1),
		RunE:              interruptible(func(ctx context.Context, args []string) error { return app.metrics(ctx, args, &o) }),
	}
	o.list.flags(cmd, "")
	controlFlag(cmd, &o.socket)
	cmd.Args = cobra.MaximumNArgs(1)
	f := cmd.Flags()
	f.BoolVarP(&o.watch, "watch", "w", false, "go on until interrupted, and draw over the lines before")
	f.BoolVarP(&o.follow, "follow", "f", false, "go on until interrupted, one line each time")
	f.Var(durationValue{&o.interval}, "interval", "how often, with --watch and --follow")
	f.BoolVarP(&o.all, "all", "a", false, "all sandboxes that run, as without NAME")
	f.StringVar(&o.sort, "sort", "name", "order of the sandboxes: "+strings.Join(metricsColumns, ", "))
	_ = cmd.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions(metricsColumns, cobra.ShellCompDirectiveNoFileComp))
	cmd.MarkFlagsMutuallyExclusive("watch", "follow")
	return cmd
}

func (a *app) metrics(ctx context.Context, args []string, o *metricsOptions) error {
	asJSON, err := o.list.asJSON()
	if err != nil {
		return err
	}
	switch {
	case o.interval < 100*time.Millisecond:
		return &usageError{fmt.Errorf("--interval %s: at least 100ms", o.interval)}
	case !slices.Contains(metricsColumns, o.sort):
		return &usageError{fmt.Errorf("--sort %q: there are %s", o.sort, strings.Join(metricsColumns, ", "))}
	case len(args) > 0 && (o.all || o.socket != ""):
		return &usageError{errors.New("give NAME, --socket or --all")}
	}
	if len(args) == 0 && o.socket == "" {
		return a.metricsOfAll(ctx, o, asJSON)
	}
	t, err := a.controlled(ctx, args, o.socket)
	if err != nil {
		return err
	}
	c, err := t.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	w := &metricsWriter{app: a, name: t.name, json: asJSON, stream: o.watch || o.follow, redraw: o.watch && !asJSON && a.io.OutTTY()}
	return w.run(ctx, c, t, o.interval)
}

// firstLook is the time between the two looks that the first rates are of.
const firstLook = 500 * time.Millisecond

// metricsWriter prints looks at one sandbox.
type metricsWriter struct {
	app    *app
	name   string
	json   bool
	stream bool
	redraw bool
	lines  int // drawn and to be drawn over
}

func (w *metricsWriter) run(ctx context.Context, c *controlclient.Connection, t controlled, interval time.Duration) error {
	before, err := t.metrics(ctx, c)
	if err != nil {
		return t.problem(err)
	}
	wait := firstLook
	for {
		select {
		case <-ctx.Done():
			if w.stream {
				return nil // as it was asked for
			}
			return ctx.Err()
		case <-time.After(wait):
		}
		after, err := t.metrics(ctx, c)
		if ctx.Err() != nil && w.stream {
			return nil
		}
		if err != nil {
			return t.problem(err)
		}
		if err := w.print(usage{w.name, after, ratesOf(before, after)}); err != nil || !w.stream {
			return err
		}
		before, wait = after, interval
	}
}

func (w *metricsWriter) print(u usage) error {
	switch {
	case w.json && w.stream:
		return json.NewEncoder(w.app.io.Out).Encode(u)
	case w.json:
		return writeJSON(w.app.io.Out, u)
	case w.stream && !w.redraw:
		_, err := fmt.Fprintf(w.app.io.Out, "%s  cpu %s  memory %s  disk %s  net %s\n",
			time.Now().Format(time.TimeOnly), cpuText(u), memoryText(u), diskText(u), netText(u))
		return err
	}
	rows := [][]string{
		{"cpu", cpuText(u)},
		{"memory", memoryText(u)},
		{"disk", diskText(u)},
		{"network", netText(u)},
		{"on the host", fmt.Sprintf("%.2f CPUs, %s of memory, %s of disk", rateOf(u).MachineCPU,
			progress.Bytes(int64(u.Machine.ResidentBytes)), progress.Bytes(int64(u.Machine.DiskBytes)))},
	}
	if w.redraw && w.lines > 0 {
		fmt.Fprintf(w.app.io.Out, "\x1b[%dA\x1b[J", w.lines)
	}
	w.lines = len(rows) + 1
	state := "running"
	if u.Paused {
		state = "paused"
	}
	return writeTable(w.app.io.Out, []string{u.Name, state}, rows)
}

func rateOf(u usage) rates {
	if u.Rates == nil {
		return rates{}
	}
	return *u.Rates
}

const silent = "the guest does not say"

func cpuText(u usage) string {
	text := "-"
	if r := rateOf(u); r.GuestCPU != nil {
		text = fmt.Sprintf("%.2f", *r.GuestCPU)
	}
	switch {
	case u.CPU != nil && u.CPU.ActualOnline != u.CPU.RequestedOnline:
		return fmt.Sprintf("%s of %d (target %d)", text, u.CPU.ActualOnline, u.CPU.RequestedOnline)
	case u.CPU != nil:
		return fmt.Sprintf("%s of %d", text, u.CPU.ActualOnline)
	case u.Guest != nil:
		return fmt.Sprintf("%s of %d", text, u.Guest.CPUs)
	}
	return text
}

func memoryText(u usage) string {
	text := silent
	if g := u.Guest; g != nil {
		text = progress.Bytes(int64(g.MemoryTotalBytes-min(g.MemoryAvailableBytes, g.MemoryTotalBytes))) + " used"
	}
	if m := u.Memory; m != nil {
		text += fmt.Sprintf(" of %d MiB", m.CurrentMiB)
		if m.CurrentMiB != m.TargetMiB {
			text += fmt.Sprintf(" (target %d)", m.TargetMiB)
		}
	}
	return text
}

func diskText(u usage) string {
	r := rateOf(u)
	if r.DiskRead == nil {
		return silent
	}
	return fmt.Sprintf("%s/s read, %s/s written", progress.Bytes(int64(*r.DiskRead)), progress.Bytes(int64(*r.DiskWritten)))
}

func netText(u usage) string {
	r := rateOf(u)
	if r.NetReceived == nil {
		return silent
	}
	return fmt.Sprintf("%s/s in, %s/s out", progress.Bytes(int64(*r.NetReceived)), progress.Bytes(int64(*r.NetSent)))
}

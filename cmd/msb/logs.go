package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"msb/vmm/store"
)

// logSources are the logs of a sandbox: its commands' output, its console, and what msb's own processes wrote.
var logSources = []string{"exec", "stdout", "stderr", "kernel", "runtime", "mount"}

// logsOptions are the flags of logs.
type logsOptions struct {
	follow bool
	tail   int // lines; negative: all
	since  momentValue
	until  momentValue
	grep   string
	times  bool
	source string
	json   bool

	match *regexp.Regexp // of grep; nil: every line
}

func newLogsCmd(app *app) *cobra.Command {
	var o logsOptions
	cmd := &cobra.Command{
		Use:   "logs NAME",
		Short: "Show what a sandbox's commands, its kernel or msb's own processes wrote",
		Long: `Show a log of a sandbox: exec (output of its commands, the default), stdout or stderr (parts
of it), kernel (the console), runtime or mount (msb's own processes).`,
		Example: `  msb logs demo
  msb logs demo -f --tail 20
  msb logs demo --since 10m --grep 'error|warning' --timestamps
  msb logs demo --source kernel`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: app.completeNames(1),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			err := showLogs(ctx, app, args[0], o)
			if o.follow && errors.Is(err, context.Canceled) {
				return nil // Ctrl-C is how following ends
			}
			return err
		}),
	}
	f := cmd.Flags()
	f.BoolVarP(&o.follow, "follow", "f", false, "go on as more is written")
	f.IntVar(&o.tail, "tail", -1, "only the last lines")
	f.Var(&o.since, "since", "only what was written since then: 10m (ago), 2026-05-31, 2026-05-31T12:00:00 or RFC 3339")
	f.Var(&o.until, "until", "only what was written until then")
	f.StringVar(&o.grep, "grep", "", "only lines that this regular expression matches")
	f.BoolVar(&o.times, "timestamps", false, "begin each line with the time when it was written")
	f.StringVar(&o.source, "source", "exec", strings.Join(logSources, ", "))
	f.BoolVar(&o.json, "json", false, "JSON lines: t (time), s (source), d (data)")
	_ = cmd.RegisterFlagCompletionFunc("source", cobra.FixedCompletions(logSources, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func showLogs(ctx context.Context, app *app, name string, o logsOptions) error {
	if err := store.ValidateName(name); err != nil {
		return &usageError{err}
	}
	if err := o.check(); err != nil {
		return &usageError{err}
	}
	h, err := app.home()
	if err != nil {
		return err
	}
	if !h.Exists(name) {
		return unknownSandbox(name)
	}
	path := map[string]string{"kernel": h.KernelLog(name), "runtime": h.RuntimeLog(name),
		"mount": filepath.Join(h.LogsDir(name), mountLog)}[o.source]
	if path == "" {
		path = h.ExecLog(name)
	}
	p := newLogPrinter(app.io.Out, app.io.OutTTY(), o)
	f, err := openLog(ctx, path, o.follow)
	if errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(app.io.Err, "msb: %s has written nothing to its %s log yet\n", name, o.source)
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	return p.copy(ctx, f)
}

// check looks at the flags together.
func (o *logsOptions) check() error {
	if !slices.Contains(logSources, o.source) {
		return fmt.Errorf("--source %q: there are %s", o.source, strings.Join(logSources, ", "))
	}
	if o.follow && o.until.set() {
		return errors.New("--follow goes on for ever, --until does not: use one of them")
	}
	if o.source == "kernel" && (o.since.set() || o.until.set() || o.times) {
		return errors.New("the console's lines carry no time: --since, --until and --timestamps are for the other logs")
	}
	var err error
	if o.grep != "" {
		if o.match, err = regexp.Compile(o.grep); err != nil {
			return fmt.Errorf("--grep: %w", err)
		}
	}
	return nil
}

// byLine tells whether output must be taken apart into lines. Else it is shown in the pieces in which it was written.
func (o *logsOptions) byLine() bool { return o.match != nil || o.times || o.tail >= 0 }

const logPoll = 200 * time.Millisecond

// openLog opens a log; when following it waits for one that is not there yet.
func openLog(ctx context.Context, path string, wait bool) (*os.File, error) {
	for {
		f, err := os.Open(path)
		if !wait || !errors.Is(err, fs.ErrNotExist) {
			return f, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(logPoll):
		}
	}
}

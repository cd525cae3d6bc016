package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"msb/cmd/msb/terminal"
	"msb/vmm/store"
)

// logSources are the logs of a sandbox: its commands' output, its console, and what msb's own processes wrote.
var logSources = []string{"exec", "stdout", "stderr", "kernel", "runtime", "mount"}

// logsOptions are the flags of logs.
type logsOptions struct {
	follow bool
	tail   int
	source string
	json   bool
}

func newLogsCmd(app *app) *cobra.Command {
	var o logsOptions
	cmd := &cobra.Command{
		Use:   "logs NAME",
		Short: "Show what a sandbox's commands, its kernel or msb's own processes wrote",
		Long: `Show a log of a sandbox: exec (output of its commands, the default), stdout or stderr (parts
of it), kernel (the console), runtime or mount (msb's own processes).`,
		Example:           "  msb logs demo\n  msb logs demo -f --tail 20\n  msb logs demo --source kernel",
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
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "go on as more is written")
	cmd.Flags().IntVar(&o.tail, "tail", -1, "only the last lines")
	cmd.Flags().StringVar(&o.source, "source", "exec", strings.Join(logSources, ", "))
	cmd.Flags().BoolVar(&o.json, "json", false, "JSON lines: t (time), s (source), d (data)")
	_ = cmd.RegisterFlagCompletionFunc("source", cobra.FixedCompletions(logSources, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func showLogs(ctx context.Context, app *app, name string, o logsOptions) error {
	if err := store.ValidateName(name); err != nil {
		return &usageError{err}
	}
	if !slices.Contains(logSources, o.source) {
		return &usageError{fmt.Errorf("--source %q: there are %s", o.source, strings.Join(logSources, ", "))}
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
	p := &logPrinter{out: bufio.NewWriter(app.io.Out), clean: app.io.OutTTY(), opt: o}
	f, err := openLog(ctx, path, o.follow)
	if errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(app.io.Err, "msb: %s has written nothing to its %s log yet\n", name, o.source)
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if o.tail >= 0 {
		if err := seekTail(f, o.tail); err != nil {
			return fmt.Errorf("%s log of %s: %w", o.source, name, err)
		}
	}
	return p.copy(ctx, f)
}

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

// seekTail goes to the beginning of the last n lines, reading from the end.
func seekTail(f *os.File, n int) error {
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	const block = 64 << 10
	pos, lines, first := end, 0, true
	buf := make([]byte, block)
	for pos > 0 {
		start := max(0, pos-block)
		b := buf[:pos-start]
		if _, err := f.ReadAt(b, start); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		for i := len(b) - 1; i >= 0; i-- {
			if b[i] != '\n' {
				first = false
				continue
			}
			if first { // the end of the last line
				first = false
				if n > 0 {
					continue
				}
			}
			if lines++; lines >= n {
				_, err := f.Seek(start+int64(i)+1, io.SeekStart)
				return err
			}
		}
		pos = start
	}
	_, err = f.Seek(0, io.SeekStart)
	return err
}

// logPrinter turns the lines of a log into what the user asked for.
type logPrinter struct {
	out   *bufio.Writer
	clean bool
	opt   logsOptions
	part  []byte // a line that is not complete yet
}

// maxLogLine bounds a line in memory; a longer one is shown in pieces.
const maxLogLine = 8 << 20

func (p *logPrinter) copy(ctx context.Context, f *os.File) error {
	buf := make([]byte, 64<<10)
	for {
		n, err := f.Read(buf)
		if n > 0 {
			if werr := p.feed(buf[:n]); werr != nil {
				return werr
			}
			continue
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if !p.opt.follow && len(p.part) > 0 {
			if err := p.line(p.part); err != nil {
				return err
			}
			p.part = nil
		}
		if err := p.out.Flush(); err != nil || !p.opt.follow {
			return err
		}
		if st, err := f.Stat(); err == nil {
			if pos, err := f.Seek(0, io.SeekCurrent); err == nil && st.Size() < pos { // begun anew
				_, _ = f.Seek(0, io.SeekStart)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(logPoll):
		}
	}
}

func (p *logPrinter) feed(b []byte) error {
	for {
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			p.part = append(p.part, b...)
			if len(p.part) < maxLogLine {
				return nil
			}
			line := p.part
			p.part = nil
			return p.line(line)
		}
		line := append(p.part, b[:i]...)
		p.part, b = nil, b[i+1:]
		if err := p.line(line); err != nil {
			return err
		}
	}
}

// entry is one line of exec.log.
type entry struct {
	Time   string `json:"t,omitempty"`
	Source string `json:"s"`
	Data   string `json:"d"`
	ID     any    `json:"id,omitempty"`
}

func (p *logPrinter) line(line []byte) error {
	var e entry
	switch p.opt.source {
	case "exec", "stdout", "stderr":
		if json.Unmarshal(line, &e) != nil {
			return nil // half a line of a process that was killed
		}
		if p.opt.source != "exec" && e.Source != p.opt.source {
			return nil
		}
	default:
		e = entry{Source: p.opt.source, Data: string(bytes.TrimRight(line, "\r")) + "\n"}
	}
	var err error
	switch {
	case p.opt.json:
		b, merr := json.Marshal(e)
		if merr != nil {
			return merr
		}
		_, err = fmt.Fprintf(p.out, "%s\n", b)
	case p.clean:
		_, err = p.out.WriteString(terminal.Clean(strings.ReplaceAll(e.Data, "\r\n", "\n")))
	default:
		_, err = p.out.WriteString(e.Data)
	}
	return err
}

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"msb/cmd/msb/terminal"
)

// logPrinter turns the lines of a log into what the user asked for.
type logPrinter struct {
	out   *bufio.Writer
	clean bool
	opt   logsOptions
	part  []byte // a line of the log that is not complete yet
	lines logLines
	last  []entry // with --tail: the last ones, as long as what was there at first is read
	over  bool    // that has been read
}

// newLogPrinter prints to out, without control characters when clean is set.
func newLogPrinter(out io.Writer, clean bool, o logsOptions) *logPrinter {
	return &logPrinter{out: bufio.NewWriter(out), clean: clean, opt: o, lines: logLines{parts: map[logStream]*entry{}}}
}

// entry is one line of exec.log, and of what --json prints.
type entry struct {
	Time   string `json:"t,omitempty"`
	Source string `json:"s"`
	Data   string `json:"d"`
	ID     any    `json:"id,omitempty"`
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
		if err := p.pause(); err != nil || !p.opt.follow {
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

// pause shows what is held back: everything that is there has been read.
func (p *logPrinter) pause() error {
	if !p.opt.follow {
		if len(p.part) > 0 {
			if err := p.line(p.part); err != nil {
				return err
			}
		}
		if err := p.lines.flush(p.pick); err != nil {
			return err
		}
	}
	p.over = true
	for _, e := range p.last {
		if err := p.print(e); err != nil {
			return err
		}
	}
	p.last = nil
	return p.out.Flush()
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

// line takes one line of the log.
func (p *logPrinter) line(line []byte) error {
	e := entry{Source: p.opt.source, Data: string(bytes.TrimRight(line, "\r")) + "\n"}
	switch p.opt.source {
	case "exec", "stdout", "stderr":
		e = entry{}
		if json.Unmarshal(line, &e) != nil {
			return nil // half a line of a process that was killed
		}
		if p.opt.source != "exec" && e.Source != p.opt.source {
			return nil
		}
	case "runtime", "mount":
		e.Time = logTime(e.Data)
	}
	if !p.opt.inTime(e.Time) {
		return nil
	}
	if !p.opt.byLine() {
		return p.print(e)
	}
	return p.lines.add(e, p.pick)
}

// pick takes one line of output.
func (p *logPrinter) pick(e entry) error {
	if m := p.opt.match; m != nil && !m.MatchString(strings.TrimRight(e.Data, "\r\n")) {
		return nil
	}
	if p.opt.tail < 0 || p.over {
		return p.print(e)
	}
	if p.opt.tail > 0 {
		if len(p.last) >= p.opt.tail {
			p.last = p.last[1:]
		}
		p.last = append(p.last, e)
	}
	return nil
}

func (p *logPrinter) print(e entry) error {
	if p.opt.json {
		b, err := json.Marshal(e)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(p.out, "%s\n", b)
		return err
	}
	text := e.Data
	if p.clean {
		text = terminal.Clean(strings.ReplaceAll(text, "\r\n", "\n"))
	}
	if p.opt.times {
		text = strings.TrimSuffix(text, "\n") + "\n" // each line begins with its time, so each has to end
		if e.Time != "" {
			text = terminal.Line(e.Time) + " " + text
		}
	}
	_, err := p.out.WriteString(text)
	return err
}

package main

import (
	"bufio"
	"context"
	"io"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"msb/cmd/msb/terminal"
)

// lineInput reads lines from the terminal; waiting for one can be ended.
type lineInput struct {
	io    *terminal.Streams
	in    *terminal.Input
	lines chan lineRead
	work  sync.WaitGroup
}

type lineRead struct {
	text string
	err  error
	at   time.Time
}

// lines starts reading standard input by lines.
func (a *app) lines() (*lineInput, error) {
	in, err := a.io.Input()
	if err != nil {
		return nil, err
	}
	l := &lineInput{io: a.io, in: in, lines: make(chan lineRead)}
	l.work.Go(func() {
		defer close(l.lines)
		r := bufio.NewReaderSize(in, 4096)
		for {
			text, err := readLineOf(r)
			l.lines <- lineRead{text: text, err: err, at: time.Now()}
			if err != nil {
				return
			}
		}
	})
	return l, nil
}

// maxAnswer bounds a line, in bytes; more of it is dropped.
const maxAnswer = 64 << 10

func readLineOf(r *bufio.Reader) (string, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part[:min(len(part), maxAnswer-len(line))]...)
		if err == bufio.ErrBufferFull {
			continue
		}
		if err == io.EOF && len(line) > 0 {
			err = nil
		}
		return string(line), err
	}
}

// forget drops what was typed before now, and returns now.
func (l *lineInput) forget() time.Time {
	if f := l.io.InFile(); f != nil {
		_ = unix.IoctlSetInt(int(f.Fd()), unix.TCFLSH, unix.TCIFLUSH) // no terminal: nothing to drop
	}
	return time.Now()
}

// next waits for a line that was typed after a time; the end of the input is io.EOF.
func (l *lineInput) next(ctx context.Context, after time.Time) (string, error) {
	for {
		select {
		case r, ok := <-l.lines:
			if !ok {
				return "", io.EOF
			}
			if r.err == nil && r.at.Before(after) {
				continue
			}
			return r.text, r.err
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

// close stops reading.
func (l *lineInput) close() {
	l.in.Stop()
	for range l.lines {
	}
	l.work.Wait()
	l.in.Close()
}

// Package console writes what a guest prints on its console to a log file that cannot grow without bound.
package console

import (
	"bytes"
	"fmt"
	"io"
	"os"

	"msb/vmm/engine/child"
)

// MaxSize is how big a console log gets, in bytes, before it becomes PATH.1 and a new one is begun. The older PATH.1
// is dropped, so a guest that prints for ever takes twice this.
const MaxSize = 4 << 20

// Log is the console of one machine. It has one writer at a time.
type Log struct {
	path  string
	file  *os.File // nil = thrown away
	size  int64
	tail  *child.Tail
	line  []byte // of the line being printed, up to maxLine
	first chan struct{}
	seen  bool
	panic string
}

const maxLine = 1 << 10

// Open opens path for appending, with mode 0600; "" = keep nothing but the last lines.
func Open(path string) (*Log, error) {
	l := &Log{path: path, tail: child.NewTail(4 << 10), first: make(chan struct{})}
	if path == "" {
		return l, nil
	}
	return l, l.open()
}

func (l *Log) open() error {
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("open the console log: %w", err)
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return fmt.Errorf("open the console log: %w", err)
	}
	l.file, l.size = f, st.Size()
	return nil
}

// First is closed when the guest has printed its first byte.
func (l *Log) First() <-chan struct{} { return l.first }

// Tail is the end of the console as one printable line.
func (l *Log) Tail() string { return l.tail.Line() }

// Panic is the line in which the guest's kernel said that it panicked, or "". The guest can print it at will: it is for
// messages, never for decisions. Call it only when nothing is written any more.
func (l *Log) Panic() string { return l.panic }

// Write keeps p. A disk that is full or gone loses the log and nothing else: Write never fails.
func (l *Log) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if !l.seen {
		l.seen = true
		close(l.first)
	}
	l.tail.Write(p)
	l.scan(p)
	if l.file == nil {
		return len(p), nil
	}
	if l.size+int64(len(p)) > MaxSize {
		l.rotate()
	}
	if l.file != nil {
		n, _ := l.file.Write(p)
		l.size += int64(n)
	}
	return len(p), nil
}

func (l *Log) rotate() {
	l.file.Close()
	l.file = nil
	if err := os.Rename(l.path, l.path+".1"); err != nil {
		return
	}
	_ = l.open()
}

var panicWords = []byte("Kernel panic - ")

func (l *Log) scan(p []byte) {
	for len(p) > 0 && l.panic == "" {
		part, rest, ended := bytes.Cut(p, []byte("\n"))
		p = rest
		if room := maxLine - len(l.line); len(part) > room {
			part = part[:room]
		}
		l.line = append(l.line, part...)
		if !ended {
			return
		}
		if i := bytes.Index(l.line, panicWords); i >= 0 {
			l.panic = child.Printable(string(l.line[i:]))
		}
		l.line = l.line[:0]
	}
}

// Copy writes all that r gives until it ends, and closes the log.
func (l *Log) Copy(r io.Reader) {
	buf := make([]byte, 16<<10)
	for {
		n, err := r.Read(buf)
		l.Write(buf[:n])
		if err != nil {
			break
		}
	}
	if l.file != nil {
		l.file.Close()
		l.file = nil
	}
}

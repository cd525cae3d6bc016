package runtime

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// logFile is a log of bounded size: when it is full, its content moves to NAME.1 and it begins anew. It is
// the same file all the time, so that whoever follows it sees it shrink and goes on.
type logFile struct {
	mu   sync.Mutex
	f    *os.File
	size int64
	max  int64
}

// openLog opens a log for appending.
func openLog(path string, max int64) (*logFile, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("log: %w", err)
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("log: %w", err)
	}
	return &logFile{f: f, size: st.Size(), max: max}, nil
}

// Write appends p in one piece.
func (l *logFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size > 0 && l.size+int64(len(p)) > l.max {
		if err := l.rotate(); err != nil {
			return 0, err
		}
	}
	n, err := l.f.Write(p)
	l.size += int64(n)
	return n, err
}

func (l *logFile) rotate() error {
	old, err := os.OpenFile(l.f.Name()+".1", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("log: %w", err)
	}
	_, err = io.Copy(old, io.NewSectionReader(l.f, 0, l.size))
	if err = errors.Join(err, old.Close()); err != nil {
		os.Remove(old.Name()) // the disk is full: the new lines matter more
	}
	if err := l.f.Truncate(0); err != nil {
		return fmt.Errorf("log: %w", err)
	}
	l.size = 0
	return nil
}

// Close closes the file.
func (l *logFile) Close() error { return l.f.Close() }

package approval

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// What an Entry is about.
const (
	AuditDecision    = "decision"
	AuditRuleAdded   = "rule_added"
	AuditRuleRemoved = "rule_removed"
)

// Entry is one line of the audit log: who decided what, why and when.
type Entry struct {
	Time    time.Time     `json:"time"`
	Event   string        `json:"event"`
	Request *Request      `json:"request,omitempty"`
	Outcome *Outcome      `json:"outcome,omitempty"`
	Waited  time.Duration `json:"waited,omitempty"` // from question to decision, in nanoseconds
	Rule    *Rule         `json:"rule,omitempty"`
	By      string        `json:"by,omitempty"`
	// ArgumentsSHA256 stands for arguments that are too long for the log.
	ArgumentsSHA256 string `json:"arguments_sha256,omitempty"`
	ArgumentsBytes  int    `json:"arguments_bytes,omitempty"`
}

// maxAuditArguments is what the log keeps of an MCP call's arguments, in bytes.
const maxAuditArguments = 16 << 10

// Audit is an append-only log. It is safe for concurrent use.
type Audit struct {
	mu sync.Mutex
	f  *os.File
}

// OpenAudit opens the log for appending, readable by its owner only.
func OpenAudit(path string) (*Audit, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	a := &Audit{f: f}
	if err := a.finishLine(); err != nil {
		f.Close()
		return nil, fmt.Errorf("audit log %s: %w", path, err)
	}
	return a, nil
}

// finishLine ends a line that a crash or a full disk has torn.
func (a *Audit) finishLine() error {
	st, err := a.f.Stat()
	if err != nil || st.Size() == 0 {
		return err
	}
	var last [1]byte
	if _, err := a.f.ReadAt(last[:], st.Size()-1); err != nil {
		return err
	}
	if last[0] != '\n' {
		_, err = a.f.Write([]byte("\n"))
	}
	return err
}

// Append writes an entry and returns when it is on the disk.
func (a *Audit) Append(e Entry) error {
	if e.Request != nil && len(e.Request.Arguments) > maxAuditArguments {
		r := *e.Request
		sum := sha256.Sum256(r.Arguments)
		e.ArgumentsSHA256, e.ArgumentsBytes = hex.EncodeToString(sum[:]), len(r.Arguments)
		r.Arguments = nil
		e.Request = &r
	}
	b, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, err := a.f.Write(append(b, '\n')); err != nil {
		a.finishLine() // what follows must not continue half a line
		return fmt.Errorf("audit log: %w", err)
	}
	if err := a.f.Sync(); err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	return nil
}

// Close closes the log.
func (a *Audit) Close() error { return a.f.Close() }

// maxAuditLine is above what any entry needs, in bytes.
const maxAuditLine = 1 << 20

// ReadAudit yields the entries of a log, oldest first. A line that is no entry,
// such as one torn by a crash, is yielded as an error and reading goes on. A
// log that does not exist is empty.
func ReadAudit(path string) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			return
		}
		if err != nil {
			yield(Entry{}, err)
			return
		}
		defer f.Close()
		in := bufio.NewReaderSize(f, maxAuditLine)
		for n := 1; ; n++ {
			line, err := in.ReadSlice('\n')
			damaged := err == bufio.ErrBufferFull
			for err == bufio.ErrBufferFull {
				_, err = in.ReadSlice('\n')
			}
			if err != nil && err != io.EOF {
				yield(Entry{}, err)
				return
			}
			if line = bytes.TrimSpace(line); len(line) > 0 {
				var e Entry
				if damaged || json.Unmarshal(line, &e) != nil {
					if !yield(Entry{}, fmt.Errorf("line %d of %s is damaged", n, path)) {
						return
					}
				} else if !yield(e, nil) {
					return
				}
			}
			if err == io.EOF {
				return
			}
		}
	}
}

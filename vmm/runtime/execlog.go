package runtime

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"msb/protocol/agent"
)

// execLog writes the output of commands as JSON lines. Output that comes faster than the disk takes it is
// left out, and a line says how much: a log never slows a command down.
type execLog struct {
	w    io.WriteCloser
	log  *slog.Logger
	in   chan logged
	done sync.WaitGroup

	mu      sync.Mutex
	queued  int // bytes in the channel
	skipped int // bytes left out since the last line
	closed  bool
}

type logged struct {
	at     time.Time
	id     uint32
	stream string
	data   []byte
}

// logLine is one line of exec.log.
type logLine struct {
	Time   string `json:"t"`
	Stream string `json:"s"` // stdout, stderr or system
	Data   string `json:"d"`
	ID     uint32 `json:"id,omitempty"`
}

const (
	maxExecLog    = 16 << 20
	maxRuntimeLog = 8 << 20
	execLogQueue  = 2 << 20
)

func newExecLog(w io.WriteCloser, log *slog.Logger) *execLog {
	l := &execLog{w: w, log: log, in: make(chan logged, 1024)}
	l.done.Go(l.run)
	return l
}

// output takes an envelope of a running command. It is called on the path of all data.
func (l *execLog) output(id uint32, envelope []byte) {
	e, err := agent.ParseEnvelope(envelope)
	if err != nil {
		return
	}
	stream := ""
	switch t, _ := e.Type(); t {
	case agent.ExecStdout:
		stream = "stdout"
	case agent.ExecStderr:
		stream = "stderr"
	default:
		return
	}
	var d agent.Data
	if agent.DecodePayload(e.P, &d) != nil || len(d.Data) == 0 {
		return
	}
	l.add(logged{at: time.Now(), id: id, stream: stream, data: d.Data})
}

// system adds a line about the sandbox itself.
func (l *execLog) system(text string) {
	l.add(logged{at: time.Now(), stream: "system", data: []byte(text)})
}

func (l *execLog) add(x logged) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	if l.queued+len(x.data) > execLogQueue {
		l.skipped += len(x.data)
		return
	}
	x.data = bytes.Clone(x.data)
	select {
	case l.in <- x:
		l.queued += len(x.data)
	default:
		l.skipped += len(x.data)
	}
}

func (l *execLog) run() {
	failed := false
	for x := range l.in {
		l.mu.Lock()
		l.queued -= len(x.data)
		skipped := l.skipped
		l.skipped = 0
		l.mu.Unlock()
		err := l.line(x)
		if err == nil && skipped > 0 {
			err = l.line(logged{at: x.at, stream: "system", data: fmt.Appendf(nil, "%d bytes of output are not in this log: they came faster than it is written\n", skipped)})
		}
		if err != nil && !failed {
			l.log.Error("exec.log", "error", err)
		}
		failed = err != nil
	}
}

func (l *execLog) line(x logged) error {
	b, err := json.Marshal(logLine{Time: x.at.UTC().Format(time.RFC3339Nano), Stream: x.stream, Data: string(x.data), ID: x.id})
	if err != nil {
		return err
	}
	_, err = l.w.Write(append(b, '\n'))
	return err
}

// close writes what is queued and ends.
func (l *execLog) close() {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.in)
	}
	l.mu.Unlock()
	l.done.Wait()
	l.w.Close()
}

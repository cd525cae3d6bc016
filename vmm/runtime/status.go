package runtime

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"syscall"

	"msb/vmm/store"
)

// StatusEnv names the descriptor on which a runtime reports to the process that started it.
const StatusEnv = "MSB_STATUS_FD"

// Report is one line of the status pipe, as JSON.
type Report struct {
	Stage   string `json:"stage,omitempty"` // progress: one word
	Text    string `json:"text,omitempty"`
	Warning bool   `json:"warning,omitempty"`
	Ready   bool   `json:"ready,omitempty"`  // the last line of a start that worked
	Error   string `json:"error,omitempty"`  // the last line of one that did not
	Locked  bool   `json:"locked,omitempty"` // with Error: another process holds the sandbox
}

// status writes reports. Losing the reader is no error: the runtime outlives the client that started it.
type status struct {
	mu sync.Mutex
	w  io.WriteCloser // nil when nobody listens
}

// inheritedStatus takes the status pipe from the environment, so that no child inherits it.
func inheritedStatus() *status {
	v := os.Getenv(StatusEnv)
	os.Unsetenv(StatusEnv)
	fd, err := strconv.Atoi(v)
	if err != nil || fd < 3 {
		return &status{}
	}
	syscall.CloseOnExec(fd)
	f := os.NewFile(uintptr(fd), "status")
	if f == nil {
		return &status{}
	}
	if st, err := f.Stat(); err != nil || st.Mode()&os.ModeNamedPipe == 0 {
		return &status{} // not what we were told; whoever it belongs to keeps it
	}
	return &status{w: f}
}

func (s *status) send(r Report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.w == nil {
		return
	}
	b, err := json.Marshal(r)
	if err == nil {
		_, err = s.w.Write(append(b, '\n'))
	}
	if err != nil || r.Ready || r.Error != "" {
		s.w.Close()
		s.w = nil
	}
}

func (s *status) stage(format string, args ...any) {
	s.send(Report{Stage: "sandbox", Text: fmt.Sprintf(format, args...)})
}

func (s *status) warn(format string, args ...any) {
	s.send(Report{Stage: "sandbox", Text: fmt.Sprintf(format, args...), Warning: true})
}

// finish reports how the start ended when nothing else has.
func (s *status) finish(err error) {
	if err == nil {
		err = errors.New("the runtime ended before the sandbox was ready")
	}
	s.send(Report{Error: err.Error(), Locked: errors.Is(err, store.ErrLocked)})
}

// maxReport bounds one line of the status pipe.
const maxReport = 64 << 10

// ReadStatus reads a runtime's status pipe until it is ready (nil) or has failed. A pipe that ends before
// gives io.ErrUnexpectedEOF.
func ReadStatus(r io.Reader, progress func(Report)) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxReport)
	for lines.Scan() {
		var rep Report
		if err := json.Unmarshal(lines.Bytes(), &rep); err != nil {
			return fmt.Errorf("status of the runtime: %w", err)
		}
		switch {
		case rep.Ready:
			return nil
		case rep.Locked:
			return fmt.Errorf("%w: %s", store.ErrLocked, rep.Error)
		case rep.Error != "":
			return errors.New(rep.Error)
		case progress != nil:
			progress(rep)
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return io.ErrUnexpectedEOF
}

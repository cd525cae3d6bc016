package agentclient

import (
	"fmt"
	"sync"

	"msb/protocol/agent"
	"msb/protocol/client"
)

// window keeps the unread output of a command within a size.
type window struct {
	size uint64

	mu       sync.Mutex
	received [2]uint64 // stdout, stderr
	read     [2]uint64
	limit    [2]uint64
}

func newWindow(size uint64) *window {
	return &window{size: size, limit: [2]uint64{size, size}}
}

// arrived counts output and refuses what was not allowed.
func (w *window) arrived(t agent.Type, n int) error {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	i := 0
	if t == agent.ExecStderr {
		i = 1
	}
	if w.received[i] += uint64(n); w.received[i] > w.limit[i] {
		return fmt.Errorf("%d bytes of output, %d were allowed", w.received[i], w.limit[i])
	}
	return nil
}

// consumed counts what was read and allows more once half of the window is
// free. It runs in the reader of an output, which may wait.
func (w *window) consumed(e *Exec, stderr bool, n int) {
	w.mu.Lock()
	i := 0
	if stderr {
		i = 1
	}
	w.read[i] += uint64(n)
	due := w.limit[i]-w.read[i] <= w.size/2
	if due {
		w.limit[i] = w.read[i] + w.size
	}
	credit := agent.ExecCreditPayload{Stdout: w.limit[0], Stderr: w.limit[1]}
	w.mu.Unlock()
	if due {
		// It fails only when the command or the connection has ended.
		_ = e.c.send(until{e.done}, e.s, client.Control, agent.ExecCredit, credit)
	}
}

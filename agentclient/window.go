package agentclient

import (
	"context"
	"fmt"
	"math"
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
	lifted   bool
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
	due := !w.lifted && w.limit[i]-w.read[i] <= w.size/2
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

// lift lets all of the output come, for a command that is about to be killed:
// its end is told after what is left of its output, which may be a pipe full.
func (w *window) lift(ctx context.Context, e *Exec) error {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	w.lifted, w.limit = true, [2]uint64{math.MaxUint64, math.MaxUint64}
	w.mu.Unlock()
	return e.c.send(ctx, e.s, client.Control, agent.ExecCredit, agent.ExecCreditPayload{Stdout: math.MaxUint64, Stderr: math.MaxUint64})
}

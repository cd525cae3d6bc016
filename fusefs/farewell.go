package fusefs

import (
	"context"
	"errors"
	"sync"
	"time"

	"msb/agentclient"
	"msb/protocol/agent"
)

// forgetBatch is how many lookups are given back in one operation.
const forgetBatch = 1024

// farewellPause is how long handles and lookups wait for more to go with them.
const farewellPause = 20 * time.Millisecond

// farewell gives back what nobody needs any more: handles and lookups. One
// request is under way at a time, so that what comes meanwhile goes together. A handle that was written to or is locked
// is closed at once elsewhere: others wait for that.
type farewell struct {
	s *nodeFS

	mu      sync.Mutex
	running bool
	epoch   uint64
	closes  []agent.NodeOp
	forgets []agent.NodeCount
}

func (w *farewell) init(s *nodeFS) { w.s = s }

// close closes a handle of the guest.
func (w *farewell) close(handle agent.NodeRef, epoch uint64) {
	w.add(epoch, []agent.NodeOp{&agent.NodeClose{Handle: handle}}, nil)
}

// closeNow closes a handle without waiting for others.
func (w *farewell) closeNow(handle agent.NodeRef, epoch uint64) {
	w.s.spawn(func() { w.send(epoch, []agent.NodeOp{&agent.NodeClose{Handle: handle}}) })
}

// forget gives back lookups.
func (w *farewell) forget(epoch uint64, nodes ...agent.NodeCount) {
	if len(nodes) > 0 && epoch != 0 {
		w.add(epoch, nil, nodes)
	}
}

func (w *farewell) add(epoch uint64, closes []agent.NodeOp, forgets []agent.NodeCount) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if epoch < w.epoch {
		return // that session has ended, and everything in it
	}
	if epoch > w.epoch {
		w.epoch, w.closes, w.forgets = epoch, nil, nil
	}
	w.closes = append(w.closes, closes...)
	w.forgets = append(w.forgets, forgets...)
	if !w.running {
		w.running = w.s.spawn(w.run)
	}
}

func (w *farewell) run() {
	for {
		select {
		case <-time.After(farewellPause):
		case <-w.s.ctx.Done():
			return
		}
		w.mu.Lock()
		n := min(len(w.closes), agent.MaxNodeOps-1)
		ops := append([]agent.NodeOp(nil), w.closes[:n]...)
		w.closes = w.closes[n:]
		if n := min(len(w.forgets), forgetBatch); n > 0 {
			ops = append(ops, &agent.NodeForget{Nodes: w.forgets[:n:n]})
			w.forgets = w.forgets[n:]
		}
		if len(ops) == 0 {
			w.running = false
			w.closes, w.forgets = nil, nil
			w.mu.Unlock()
			return
		}
		epoch := w.epoch
		w.mu.Unlock()
		w.send(epoch, ops)
	}
}

// send does all of ops, also after one that fails: it is gone as well.
func (w *farewell) send(epoch uint64, ops []agent.NodeOp) {
	for len(ops) > 0 {
		c, err := w.s.conn()
		if err != nil || c.epoch != epoch {
			return
		}
		ctx, stop := context.WithTimeout(w.s.ctx, w.s.opts.DataTimeout)
		_, err = w.s.do(ctx, c, ops...)
		stop()
		var failed *agentclient.NodeError
		if err == nil || !errors.As(err, &failed) || failed.Index >= len(ops) {
			return
		}
		w.s.log.Warn("the guest could not store what it had taken", "error", err)
		ops = ops[failed.Index+1:]
	}
}

package agent

import (
	"errors"
	"io"
	"sync"

	"msb/guest/port"
	"msb/protocol/agent"
	"msb/protocol/frame"
)

const (
	// copyBelow is the size of a frame from which it is written from its sender's memory while the sender waits,
	// instead of being copied and queued.
	copyBelow = 8 << 10
	// queueBytes is how much one id may have queued before its sender of data waits.
	queueBytes = 32 << 10
	// blockAbove is the size from which even a control message makes its sender wait: a long listing.
	blockAbove = 64 << 10
	// batchBytes is how much is put together for one write.
	batchBytes = 32 << 10
	// lightRun is how many small frames may pass before data gets its turn.
	lightRun = 64
	// backlogBytes is how many bytes of answers may wait for a host that does not read before its input waits too.
	backlogBytes = 4 << 20
)

// output is the one writer of a port. Frames of one id leave in order; small control frames leave before other ids'
// data; ids with data take turns.
type output struct {
	w    io.Writer
	news func(dst []byte) []byte // appends transport credit, when told; nil = never

	mu      sync.Mutex
	wake    sync.Cond
	idle    sync.Cond // a batch has been written, or the output has ended
	urgent  []entry
	queues  map[uint32]*queue
	light   ring   // queues whose next frame is a control message
	heavy   ring   // queues whose next frame carries data
	run     int    // light frames since the last heavy one
	backlog int    // bytes of control frames that wait
	told    bool   // transport credit is to be sent
	held    bool   // frozen: only lifecycle and urgent frames leave
	taken   uint64 // batches that the writer has taken
	wrote   uint64 // batches that it has written
	closed  bool
	err     error
	gone    [frame.MaxClients + 1]bool // owners whose client is gone
	bytes   uint64                     // written
	done    chan struct{}
}

func newOutput(w io.Writer, news func(dst []byte) []byte) *output {
	o := &output{w: w, news: news, queues: make(map[uint32]*queue), done: make(chan struct{})}
	o.wake.L, o.idle.L = &o.mu, &o.mu
	go o.write()
	return o
}

// isUrgent tells which messages may overtake whatever waits, their own id's data included.
func isUrgent(t agent.Type) bool {
	switch t {
	case agent.Pong, agent.Touched, agent.ExecStarted, agent.BulkCredit, agent.WorkloadFrozen, agent.WorkloadThawed,
		agent.TransportCredit, agent.RootDiskState, agent.InitResolved, agent.Ready:
		return true
	}
	return false
}

// carriesData tells which messages are subject to back-pressure.
func carriesData(t agent.Type) bool {
	switch t {
	case agent.ExecStdout, agent.ExecStderr, agent.FSData, agent.TCPData:
		return true
	}
	return false
}

// send queues one message, see port.Out.
func (o *output) send(id uint32, t agent.Type, payload any) error {
	if d, ok := payload.(agent.Data); ok && carriesData(t) {
		return o.sendData(id, t, d.Data)
	}
	head, err := agent.AppendFrame(nil, id, t, agent.Generation, payload)
	if err != nil {
		return err
	}
	if len(head) > blockAbove {
		return o.lend(id, entry{head: head[:frame.Overhead], body: head[frame.Overhead:], data: true})
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.usable(id); err != nil {
		return err
	}
	o.backlog += len(head)
	if isUrgent(t) || id == frame.IDLifecycle {
		o.urgent = append(o.urgent, entry{head: head})
	} else {
		o.enqueue(id, entry{head: head})
	}
	o.wake.Signal()
	return nil
}

func (o *output) sendData(id uint32, t agent.Type, data []byte) error {
	if len(data) >= copyBelow {
		head, err := agent.AppendDataHead(make([]byte, 0, agent.DataOverhead), id, t, agent.Generation, len(data))
		if err != nil {
			return err
		}
		return o.lend(id, entry{head: head, body: data, data: true})
	}
	head, err := agent.AppendDataFrame(make([]byte, 0, agent.DataOverhead+len(data)), id, t, agent.Generation, data)
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for {
		if err := o.usable(id); err != nil {
			return err
		}
		q := o.queues[id]
		if q == nil || q.bytes+len(head) <= queueBytes {
			break
		}
		q.waiting++
		q.room.Wait()
		q.waiting--
	}
	o.enqueue(id, entry{head: head, data: true})
	o.wake.Signal()
	return nil
}

// lend queues a frame whose body is the caller's and waits until it is written.
func (o *output) lend(id uint32, e entry) error {
	w := waiters.Get().(*waiter)
	e.done = w
	o.mu.Lock()
	if err := o.usable(id); err != nil {
		o.mu.Unlock()
		waiters.Put(w)
		return err
	}
	o.enqueue(id, e)
	o.wake.Signal()
	o.mu.Unlock()
	err := <-w.result
	waiters.Put(w)
	return err
}

// sendRaw queues bytes that are a frame already, before anything that is not urgent.
func (o *output) sendRaw(raw []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return
	}
	o.backlog += len(raw)
	o.urgent = append(o.urgent, entry{head: raw})
	o.wake.Signal()
}

// tell asks for a transport credit frame.
func (o *output) tell() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.told = true
	o.wake.Signal()
}

func (o *output) usable(id uint32) error {
	if o.closed {
		return port.ErrClosed
	}
	if owner := port.Owner(id); owner < uint32(len(o.gone)) && o.gone[owner] && id != frame.IDLifecycle {
		return port.ErrClosed
	}
	return nil
}

func (o *output) enqueue(id uint32, e entry) {
	q := o.queues[id]
	if q == nil {
		q = &queue{id: id}
		q.room.L = &o.mu
		o.queues[id] = q
	}
	q.entries = append(q.entries, e)
	q.bytes += e.size()
	if len(q.entries) == 1 {
		o.schedule(q)
	}
}

// schedule puts a queue into the round that its next frame belongs to.
func (o *output) schedule(q *queue) {
	if q.entries[0].data {
		o.heavy.push(q)
	} else {
		o.light.push(q)
	}
}

// take removes the next frame of the queue that is due.
func (o *output) take() (e entry, ok bool) {
	if o.held {
		return e, false
	}
	var q *queue
	switch {
	case len(o.light.queues) > 0 && (o.run < lightRun || len(o.heavy.queues) == 0):
		q = o.light.pop()
		o.run++
	case len(o.heavy.queues) > 0:
		q = o.heavy.pop()
		o.run = 0
	default:
		return e, false
	}
	e = q.entries[0]
	q.entries[0] = entry{}
	q.entries = q.entries[1:]
	q.bytes -= e.size()
	if !e.data {
		o.backlog -= e.size()
	}
	switch {
	case len(q.entries) > 0:
		o.schedule(q)
	case q.waiting == 0:
		delete(o.queues, q.id)
	}
	q.room.Broadcast()
	return e, true
}

// write is the writer's goroutine.
func (o *output) write() {
	defer close(o.done)
	batch := make([]byte, 0, batchBytes+blockAbove)
	o.mu.Lock()
	defer o.mu.Unlock()
	for {
		var big entry
		batch, big = o.collect(batch[:0])
		if len(batch) == 0 {
			if o.closed {
				return
			}
			o.wake.Wait()
			continue
		}
		o.taken++
		o.mu.Unlock()

		_, err := o.w.Write(batch)
		if err == nil && len(big.body) > 0 {
			_, err = o.w.Write(big.body)
		}
		if big.done != nil {
			big.done.result <- closedError(err)
		}

		o.mu.Lock()
		o.wrote++
		o.bytes += uint64(len(batch) + len(big.body))
		if err != nil {
			o.fail(err)
		}
		o.idle.Broadcast()
	}
}

// collect fills batch with small frames. A frame with a lent body ends it: big's head is in batch, its body is not.
func (o *output) collect(batch []byte) (_ []byte, big entry) {
	if o.told && !o.closed {
		o.told = false
		batch = o.news(batch)
	}
	for len(o.urgent) > 0 && len(batch) < batchBytes {
		e := o.urgent[0]
		o.urgent[0] = entry{}
		o.urgent = o.urgent[1:]
		o.backlog -= len(e.head)
		batch = append(batch, e.head...)
	}
	for len(batch) < batchBytes {
		e, ok := o.take()
		if !ok {
			break
		}
		batch = append(batch, e.head...)
		if e.done != nil {
			return batch, e
		}
	}
	return batch, big
}

// fail ends the output: queued frames are lost and their senders are told.
func (o *output) fail(err error) {
	if o.err == nil {
		o.err = err
	}
	o.closed = true
	for _, q := range o.queues {
		o.drop(q)
	}
	o.urgent = nil
	o.light, o.heavy = ring{}, ring{}
	clear(o.queues)
	o.wake.Broadcast()
	o.idle.Broadcast()
}

// drop forgets a queue's frames.
func (o *output) drop(q *queue) {
	for _, e := range q.entries {
		if e.done != nil {
			e.done.result <- port.ErrClosed
		}
		if !e.data {
			o.backlog -= e.size()
		}
	}
	q.entries, q.bytes = nil, 0
	q.room.Broadcast()
}

// close writes what is queued, if it can, and ends the writer. Call wait after the port is closed, or after a flush.
func (o *output) close() {
	o.mu.Lock()
	o.closed = true
	o.held = false
	o.wake.Broadcast()
	for _, q := range o.queues {
		q.room.Broadcast()
	}
	o.mu.Unlock()
}

// wait blocks until the writer has ended.
func (o *output) wait() { <-o.done }

// closeOwner drops what waits for a client that is gone, and what is sent for it from now on.
func (o *output) closeOwner(owner uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if owner >= uint32(len(o.gone)) {
		return
	}
	o.gone[owner] = true
	for id, q := range o.queues {
		if port.Owner(id) != owner {
			continue
		}
		o.drop(q)
		if q.where != nil {
			q.where.remove(q)
		}
		delete(o.queues, id)
	}
	o.idle.Broadcast()
}

// openOwner lets frames through to a new client.
func (o *output) openOwner(owner uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if owner < uint32(len(o.gone)) {
		o.gone[owner] = false
	}
}

// hold stops workload output and returns when none is being written any more; release lets it go on.
func (o *output) hold() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.held = true
	o.settle()
}

// settle waits until the batches taken so far have been written.
func (o *output) settle() {
	for target := o.taken; o.wrote < target && !o.closed; {
		o.idle.Wait()
	}
}

func (o *output) release() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.held = false
	o.wake.Broadcast()
}

// flushed blocks until what was queued for id before the call has been written.
func (o *output) flushed(id uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for !o.closed {
		if q := o.queues[id]; q == nil || len(q.entries) == 0 {
			o.settle()
			return
		}
		o.idle.Wait()
	}
}

// awaitRoom blocks while the host does not read its answers.
func (o *output) awaitRoom() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.backlog > backlogBytes && !o.closed && !o.held {
		o.idle.Wait()
	}
}

// written returns the bytes that have left.
func (o *output) written() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.bytes
}

func closedError(err error) error {
	if err == nil {
		return nil
	}
	return errors.Join(port.ErrClosed, err)
}

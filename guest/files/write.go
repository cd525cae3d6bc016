package files

import (
	"fmt"
	"io"
	"math"

	"golang.org/x/sys/unix"

	"msb/guest/bulk"
	"msb/guest/port"
	"msb/protocol/agent"
	"msb/protocol/frame"
)

// maxQueuedChunks bounds what a write may have waiting. Transport credit and, for bulk, the window bound it first.
const maxQueuedChunks = 1024

// write takes a stream from the host into a file.
type write struct {
	session
	offset   uint64
	expected uint64 // MaxUint64: as much as comes

	// guarded by mu
	flow     bulk.Receiver
	received uint64 // bytes taken from the host, CBOR data included
	queue    []chunk
	done     bool         // the host has ended the stream
	tail     *bulk.Ending // ends the stream once the queue is written
}

// chunk is data that waits to be written.
type chunk struct {
	data    []byte
	release func()
}

func (s *Service) startWrite(o *owner, id uint32, v uint8, op agent.OpWrite, offer *agent.BulkOffer) {
	var accepted agent.BulkAcceptedPayload
	if offer != nil {
		err := bulk.CheckGeneration(v)
		if err != nil {
			s.refuse(id, err.Error())
			return
		}
		if accepted, err = bulk.AcceptWrite(*offer); err != nil {
			s.refuse(id, err.Error())
			return
		}
	}
	f, err := s.useStream(o, op.Handle, true)
	if err != nil {
		s.refuse(id, failed("write", err).Error())
		return
	}
	w := &write{session: s.newSession(o, id, f, offer != nil), offset: op.Offset, expected: math.MaxUint64}
	if op.Len != nil {
		w.expected = *op.Len
	}
	if w.bulk {
		w.flow = bulk.NewReceiver(accepted.MaxRecordPayload, accepted.HostToGuestCreditLimit)
	}
	text, ok := s.register(w, func() {
		if w.bulk {
			_ = s.out.Send(id, agent.BulkAccepted, accepted)
		}
		s.actors.Enter(s)
		defer s.actors.Leave(s)
		w.run()
	})
	if !ok {
		_ = f.unref()
		if text != "" {
			s.refuse(id, "write: "+text)
		}
	}
}

func (w *write) Credit(agent.BulkCreditPayload) { w.endAfterQueue(bulk.Violation(unknownRead(w.id))) }

// endAfterQueue ends the stream once what came before is written.
func (w *write) endAfterQueue(e bulk.Ending) {
	w.mu.Lock()
	w.setTail(e)
	w.mu.Unlock()
}

func (w *write) setTail(e bulk.Ending) {
	if w.tail == nil && !w.done {
		w.tail = &e
		w.signal()
	}
}

// deaf tells whether further input is dropped.
func (w *write) deaf() bool { return w.over != nil || w.tail != nil }

func (w *write) Data(in port.Input) {
	if !w.takeData(in) {
		in.Release()
	}
}

func (w *write) takeData(in port.Input) (kept bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.deaf():
		return false
	case w.bulk:
		w.setTail(bulk.Ending{Text: "CBOR filesystem data is invalid after raw bulk acceptance"})
		return false
	case w.done:
		return false
	case len(in.Data) == 0:
		w.done = true
		w.signal()
		return false
	}
	return w.push(in.Data, in.Release)
}

func (w *write) Record(rec frame.Bulk, release func()) {
	if !w.takeRecord(rec, release) {
		release()
	}
}

func (w *write) takeRecord(rec frame.Bulk, release func()) (kept bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.deaf():
		return false
	case !w.bulk:
		w.setTail(bulk.Violation("raw bulk record sent to a filesystem write without raw bulk"))
		return false
	case rec.Kind != frame.BulkFilesystem || rec.Flow != frame.FlowHostToGuest:
		w.setTail(bulk.Violation("invalid filesystem bulk record: another kind or flow"))
		return false
	}
	if err := w.flow.Record(rec.Offset, len(rec.Payload)); err != nil {
		w.done = false // a record after the finish is one more violation
		w.setTail(bulk.Violation("invalid filesystem bulk record: " + err.Error()))
		return false
	}
	kept = w.push(rec.Payload, release)
	w.done = w.flow.Finished()
	return kept
}

// push queues data unless it goes past what the request announced.
func (w *write) push(data []byte, release func()) bool {
	w.received += uint64(len(data))
	switch {
	case w.received > w.expected:
		w.setTail(bulk.Ending{Text: fmt.Sprintf("write length mismatch: expected %d, received at least %d", w.expected, w.received)})
		return false
	case len(w.queue) >= maxQueuedChunks:
		w.setTail(bulk.Ending{Reason: agent.CancelResourceLimit, Text: "too much filesystem data is waiting to be written"})
		return false
	}
	w.queue = append(w.queue, chunk{data, release})
	w.signal()
	return true
}

func (w *write) Finish(m agent.BulkFinishPayload) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.deaf():
	case !w.bulk:
		w.setTail(bulk.Violation("bulk finish sent to a filesystem write without raw bulk"))
	case m.Kind != frame.BulkFilesystem || m.Flow != frame.FlowHostToGuest:
		w.setTail(bulk.Violation("invalid filesystem bulk finish: another kind or flow"))
	default:
		if err := w.flow.Finish(m.FinalOffset, w.svc.split); err != nil {
			w.done = false
			w.setTail(bulk.Violation("invalid filesystem bulk finish: " + err.Error()))
			return
		}
		w.done = w.flow.Finished()
		w.signal()
	}
}

func (w *write) run() *bulk.Ending {
	e := w.drain()
	w.mu.Lock()
	if e != nil && w.over == nil {
		w.endLocked(*e) // no more input
	}
	left := w.queue
	w.queue = nil
	w.mu.Unlock()
	for _, c := range left {
		c.release()
	}
	return w.close(e, nil)
}

// drain writes what comes until the stream ends.
func (w *write) drain() *bulk.Ending {
	var batch []chunk
	for {
		w.mu.Lock()
		over, tail, done := w.over, w.tail, w.done
		batch, w.queue = w.queue, batch[:0]
		w.mu.Unlock()
		if over == nil && len(batch) > 0 {
			for i, c := range batch {
				if e := w.write(c); e != nil {
					dropChunks(batch[i+1:])
					return e
				}
				batch[i] = chunk{}
			}
			continue
		}
		dropChunks(batch)
		switch {
		case over != nil:
			return over
		case tail != nil:
			return tail
		case done && w.expected != math.MaxUint64 && w.received != w.expected:
			return &bulk.Ending{Text: fmt.Sprintf("write length mismatch: expected %d, wrote %d", w.expected, w.received)}
		case done:
			return nil
		}
		select {
		case <-w.wake:
		case <-w.stop:
		}
	}
}

func dropChunks(cs []chunk) {
	for i := range cs {
		cs[i].release()
		cs[i] = chunk{}
	}
}

// write puts one chunk into the file and gives credit back. It always releases the chunk.
func (w *write) write(c chunk) *bulk.Ending {
	n := len(c.data)
	if !w.own.writes.enter(w.stop) {
		c.release()
		return w.ended()
	}
	err := w.file.writeAt(c.data, w.offset)
	w.own.writes.leave()
	c.release()
	if err != nil {
		return failure(err)
	}
	w.offset += uint64(n)
	if !w.bulk {
		return w.ended()
	}
	w.mu.Lock()
	grant, owed := w.flow.Consume(n)
	over := w.over
	w.mu.Unlock()
	if owed && over == nil {
		w.svc.Grant(w.id, grant)
	}
	return over
}

// writeAt writes all of p at offset, or at the end if the file was opened to append.
func (f *file) writeAt(p []byte, offset uint64) error {
	if f.append {
		return failed("write", writeAll(f.fd, p))
	}
	if offset > math.MaxInt64 {
		return failed("seek", unix.EINVAL)
	}
	for at := int64(offset); len(p) > 0; {
		n, err := unix.Pwrite(f.fd, p, at)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.ESPIPE:
			return failed("seek", err)
		case err != nil:
			return failed("write", err)
		case n == 0:
			return failed("write", io.ErrShortWrite)
		}
		p, at = p[n:], at+int64(n)
	}
	return nil
}

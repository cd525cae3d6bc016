package files

import (
	"fmt"
	"math"

	"golang.org/x/sys/unix"

	"msb/guest/bulk"
	"msb/guest/port"
	"msb/protocol/agent"
	"msb/protocol/frame"
)

// read streams a part of a file to the host.
type read struct {
	session
	offset uint64
	left   uint64 // bytes still wanted; MaxUint64: to the end
	flow   bulk.Sender
	max    int // payload of one record or chunk
}

func notOpenFor(num uint64, what string) error {
	return fmt.Errorf("handle %d is not open for %s", num, what)
}

func unknownRead(id uint32) string { return fmt.Sprintf("unknown filesystem read session: %d", id) }

func unknownWrite(id uint32, raw bool) string {
	if raw {
		return fmt.Sprintf("unknown filesystem write session: %d", id)
	}
	return fmt.Sprintf("unknown write session: %d", id)
}

func (s *Service) startRead(o *owner, id uint32, v uint8, op agent.OpRead, offer *agent.BulkOffer) {
	var accepted agent.BulkAcceptedPayload
	if offer != nil {
		err := bulk.CheckGeneration(v)
		if err != nil {
			s.refuse(id, err.Error())
			return
		}
		if accepted, err = bulk.AcceptRead(*offer); err != nil {
			s.refuse(id, err.Error())
			return
		}
	}
	f, err := s.useStream(o, op.Handle, false)
	if err != nil {
		s.refuse(id, failed("read", err).Error())
		return
	}
	r := &read{session: s.newSession(o, id, f, offer != nil), offset: op.Offset, left: math.MaxUint64, max: bufferSize}
	if op.Len != nil {
		r.left = *op.Len
	}
	if r.bulk {
		r.max = min(r.max, int(accepted.MaxRecordPayload))
		r.flow = bulk.NewSender(uint32(r.max), accepted.GuestToHostCreditLimit)
	}
	text, ok := s.register(r, func() {
		if r.bulk {
			_ = s.out.Send(id, agent.BulkAccepted, accepted)
		}
		r.run()
	})
	if !ok {
		_ = f.unref()
		if text != "" {
			s.refuse(id, "read: "+text)
		}
	}
}

func (r *read) Data(in port.Input) {
	r.End(bulk.Ending{Text: unknownWrite(r.id, false)})
	in.Release()
}

func (r *read) Record(rec frame.Bulk, release func()) {
	r.End(bulk.Violation(unknownWrite(r.id, true)))
	release()
}

func (r *read) Finish(agent.BulkFinishPayload) { r.End(bulk.Violation(unknownWrite(r.id, true))) }

func (r *read) Credit(m agent.BulkCreditPayload) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.over != nil:
	case !r.bulk:
		r.endLocked(bulk.Violation("filesystem read session is not using raw bulk"))
	case m.Kind != frame.BulkFilesystem || m.Flow != frame.FlowGuestToHost:
		r.endLocked(bulk.Violation("filesystem read received credit for another kind or flow"))
	default:
		advanced, err := r.flow.Apply(m.ConsumedOffset, m.CreditLimit)
		if err != nil {
			r.endLocked(bulk.Violation("invalid filesystem bulk credit: " + err.Error()))
		} else if advanced {
			r.signal()
		}
	}
}

func (r *read) run() *bulk.Ending {
	if r.offset > math.MaxInt64 {
		return r.close(failure(failed("seek", unix.EINVAL)), nil)
	}
	e := r.pump()
	if e == nil {
		e = r.ended()
	}
	if e != nil || !r.bulk {
		return r.close(e, nil)
	}
	r.mu.Lock()
	final, _ := r.flow.Finish()
	r.mu.Unlock()
	return r.close(nil, &final)
}

// room waits until the host takes more and returns how much may be read next; 0 when all has been read.
func (r *read) room() (int, *bulk.Ending) {
	for {
		r.mu.Lock()
		over, n := r.over, r.max
		if r.bulk {
			n = r.flow.Room()
		}
		r.mu.Unlock()
		if over != nil {
			return 0, over
		}
		if r.left == 0 {
			return 0, nil
		}
		if n > 0 {
			return int(min(uint64(n), r.left)), nil
		}
		select {
		case <-r.wake:
		case <-r.stop:
		}
	}
}

// pump reads the file and sends it. A second goroutine sends one piece while the next is read, from the second piece
// on; a file of one piece needs none.
func (r *read) pump() *bulk.Ending {
	p := pipe{r: r}
	defer p.close()
	for {
		want, e := r.room()
		if e != nil || want == 0 {
			return e
		}
		if !r.own.reads.enter(r.stop) {
			return nil
		}
		buf := takeBuffer()
		n, err := r.file.readFull(buf[:want], int64(r.offset))
		r.offset += uint64(n)
		if r.left != math.MaxUint64 {
			r.left -= uint64(n)
		}
		atEnd := err != nil || n < want || r.left == 0
		if n == 0 {
			giveBuffer(buf)
			r.own.reads.leave()
		} else if serr := p.send(buf, n, atEnd); serr != nil {
			return &bulk.Ending{Silent: true}
		}
		if err != nil {
			return failure(err)
		}
		if n < want {
			return nil
		}
	}
}

// readFull reads until p is full, the file ends or a read fails.
func (f *file) readFull(p []byte, offset int64) (n int, err error) {
	for n < len(p) {
		m, err := unix.Pread(f.fd, p[n:], offset+int64(n))
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.ESPIPE:
			return n, failed("seek", err)
		case err != nil:
			return n, failed("read", err)
		case m == 0:
			return n, nil
		}
		n += m
	}
	return n, nil
}

// pipe sends the pieces of a read in order, and gives back the buffer and the permit of each.
type pipe struct {
	r    *read
	ch   chan piece
	done chan struct{}
	err  error // valid after done, and in the sending goroutine
}

type piece struct {
	buf    *buffer
	n      int
	offset uint64
}

// send takes a piece over. last says that nothing follows.
func (p *pipe) send(buf *buffer, n int, last bool) error {
	pc := piece{buf: buf, n: n}
	if p.r.bulk {
		p.r.mu.Lock()
		pc.offset, _ = p.r.flow.Take(n) // within the room that was found, which only grows
		p.r.mu.Unlock()
	}
	if p.ch == nil {
		if last {
			return p.write(pc)
		}
		p.ch = make(chan piece)
		p.done = make(chan struct{})
		go p.run()
	}
	select {
	case p.ch <- pc:
		return nil
	case <-p.done:
		giveBuffer(buf)
		p.r.own.reads.leave()
		return p.err
	}
}

func (p *pipe) run() {
	defer close(p.done)
	for pc := range p.ch {
		if p.err = p.write(pc); p.err != nil {
			return
		}
	}
}

func (p *pipe) write(pc piece) error {
	defer p.r.own.reads.leave()
	defer giveBuffer(pc.buf)
	out := p.r.svc.out
	if p.r.bulk {
		return out.SendBulk(p.r.id, frame.BulkFilesystem, frame.FlowGuestToHost, pc.offset, pc.buf[:pc.n])
	}
	return out.Send(p.r.id, agent.FSData, agent.Data{Data: pc.buf[:pc.n]})
}

// close waits until everything has been sent.
func (p *pipe) close() {
	if p.ch != nil {
		close(p.ch)
		<-p.done
	}
}

package nodes

import (
	"golang.org/x/sys/unix"
)

const (
	maxRunning         = 256 // requests that run at the same moment, all clients
	maxRunningPerOwner = 16
	maxParkedPerOwner  = 512     // requests that wait for a lock or stream
	maxQueued          = 1024    // requests of one client that wait for their turn
	maxQueuedBytes     = 8 << 20 // of one client
	maxHeldBytes       = 64 << 20
	maxLarge           = 8 // requests with answers above largeAnswer
)

// submit queues a request and sees that someone serves the queue.
func (s *Service) submit(ownerID uint32, r *request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	o := s.owners[ownerID]
	if o == nil {
		o = newOwner()
		s.owners[ownerID] = o
	}
	switch {
	case o.requests[r.id] != nil:
		// The first one has the id: its answer is the only one that may end it.
		return nil
	case len(o.queue) >= maxQueued, o.bytes+r.size > maxQueuedBytes && len(o.queue) > 0,
		s.held.Load()+int64(r.size) > maxHeldBytes && len(o.queue) > 0:
		return fail(unix.EAGAIN, "too many file system requests are waiting")
	}
	r.own = o
	o.requests[r.id] = r
	o.queue = append(o.queue, r)
	o.bytes += r.size
	s.held.Add(int64(r.size))
	s.staff(o)
	return nil
}

// staff starts a worker when there is work for one. s.mu is held.
func (s *Service) staff(o *owner) {
	if len(o.queue) == 0 || o.running >= maxRunningPerOwner || o.ctx.Err() != nil {
		return
	}
	o.running++
	o.wg.Add(1)
	s.wg.Go(func() {
		defer o.wg.Done()
		s.work(o)
	})
}

// work serves requests of o until none waits.
func (s *Service) work(o *owner) {
	for {
		s.mu.Lock()
		if len(o.queue) == 0 || o.running > maxRunningPerOwner {
			o.running--
			s.mu.Unlock()
			return
		}
		r := o.queue[0]
		o.queue[0] = nil
		o.queue = o.queue[1:]
		o.bytes -= r.size
		s.mu.Unlock()
		s.held.Add(-int64(r.size))

		s.gate <- struct{}{}
		r.run()
		<-s.gate
		r.answer()
	}
}

// park runs a wait that must not keep other requests from running.
func (s *Service) park(o *owner, wait func()) error {
	s.mu.Lock()
	if o.parked >= maxParkedPerOwner {
		s.mu.Unlock()
		return fail(unix.EAGAIN, "too many file system requests are waiting for locks or data")
	}
	o.parked++
	o.running--
	s.staff(o)
	s.mu.Unlock()
	<-s.gate

	wait()

	s.mu.Lock()
	o.parked--
	o.running++ // above the limit for the rest of this request
	s.mu.Unlock()
	s.gate <- struct{}{}
	return nil
}

package files

import (
	"msb/protocol/agent"
)

const (
	maxRunning         = 256 // operations that run at the same moment, all clients
	maxRunningPerOwner = 16
	// freeQueue is how many waiting operations of one client cost no transport credit. Those beyond keep theirs until
	// they start, which slows their client down.
	freeQueue = 64
	// maxQueue is where a client that ignores credit gets errors.
	maxQueue = 4096
)

// task is one operation that waits for its turn.
type task struct {
	id      uint32
	op      agent.FSOp
	release func() // nil once called
}

func (t *task) free() {
	if t.release != nil {
		t.release()
		t.release = nil
	}
}

// schedule shares the running operations fairly among clients: each client's run in order of arrival, clients take
// turns. Service.mu guards it.
type schedule struct {
	running int
	waiting []*owner // clients with a queue, next first
}

// submit runs op now or queues it.
func (s *Service) submit(o *owner, id uint32, op agent.FSOp, release func()) {
	t := task{id: id, op: op, release: release}
	if tooLong(op) {
		s.refuse(id, opWord(op)+": "+errNameTooLong)
		t.free()
		return
	}
	s.mu.Lock()
	if o.ctx.Err() != nil {
		s.mu.Unlock()
		t.free()
		return
	}
	if s.schedule.running < maxRunning && o.running < maxRunningPerOwner {
		s.schedule.running++
		o.running++
		o.wg.Add(1)
		s.mu.Unlock()
		t.free()
		s.wg.Go(func() { s.work(o, t) })
		return
	}
	if len(o.queue) >= maxQueue {
		s.mu.Unlock()
		s.refuse(id, opWord(op)+": too many filesystem operations are waiting")
		t.free()
		return
	}
	if len(o.queue) < freeQueue {
		t.release = nil
		defer release()
	}
	o.queue = append(o.queue, t)
	if !o.waiting {
		o.waiting = true
		s.schedule.waiting = append(s.schedule.waiting, o)
	}
	s.mu.Unlock()
}

// work runs t and then whatever is next, until nothing may run.
func (s *Service) work(o *owner, t task) {
	for {
		s.serve(o, t.id, t.op)
		o.wg.Done()
		s.mu.Lock()
		o.running--
		s.schedule.running--
		var ok bool
		if o, t, ok = s.schedule.next(); !ok {
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		t.free()
	}
}

// next takes the task whose turn it is and counts it as running.
func (sch *schedule) next() (*owner, task, bool) {
	for i, o := range sch.waiting {
		if o.running >= maxRunningPerOwner {
			continue
		}
		t := o.queue[0]
		o.queue[0] = task{}
		o.queue = o.queue[1:]
		sch.waiting = append(sch.waiting[:i], sch.waiting[i+1:]...)
		if len(o.queue) > 0 {
			sch.waiting = append(sch.waiting, o)
		} else {
			o.waiting, o.queue = false, nil
		}
		sch.running++
		o.running++
		o.wg.Add(1)
		return o, t, true
	}
	return nil, task{}, false
}

// drop removes a client's queue and returns it.
func (sch *schedule) drop(o *owner) []task {
	dropped := o.queue
	o.queue, o.waiting = nil, false
	for i, w := range sch.waiting {
		if w == o {
			sch.waiting = append(sch.waiting[:i], sch.waiting[i+1:]...)
			break
		}
	}
	return dropped
}

// serve runs one operation and answers it.
func (s *Service) serve(o *owner, id uint32, op agent.FSOp) {
	if o.ctx.Err() != nil {
		return
	}
	s.actors.Enter(s)
	value, done, err := s.perform(o, op)
	s.actors.Leave(s)
	resp := agent.FSResponsePayload{OK: err == nil, Data: value}
	if err != nil {
		text := err.Error()
		resp.Error = &text
	}
	if o.ctx.Err() == nil {
		_ = s.out.Send(id, agent.FSResponse, resp)
	}
	if done != nil {
		done()
	}
}

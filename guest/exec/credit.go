package exec

import (
	"sync"

	"msb/protocol/agent"
)

// allowance is how much of one output the client takes. While it is used up the output is not read, so that the
// command waits as it would for a full pipe.
type allowance struct {
	mu    sync.Mutex
	more  sync.Cond
	limit uint64 // bytes since the start
	used  uint64
	over  bool
}

func newAllowance(limit uint64) *allowance {
	a := &allowance{limit: limit}
	a.more.L = &a.mu
	return a
}

// room waits until the client takes something and returns how much, at most most; 0 when it never will.
func (a *allowance) room(most int) int {
	if a == nil {
		return most
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.used >= a.limit && !a.over {
		a.more.Wait()
	}
	if a.over {
		return 0
	}
	return int(min(a.limit-a.used, uint64(most)))
}

func (a *allowance) take(n int) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.used += uint64(n)
}

// raise moves the limit forward; it never goes back.
func (a *allowance) raise(limit uint64) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if limit > a.limit {
		a.limit = limit
		a.more.Broadcast()
	}
}

// end lets whoever waits go.
func (a *allowance) end() {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
	a.more.Broadcast()
}

// Open is Request for a client of msb.exec.
func (s *Service) Open(id uint32, r agent.ExecOpenPayload) {
	ses := newSession(s, id)
	ses.extended = true
	if r.Credit != nil {
		ses.stdout, ses.stderr = newAllowance(*r.Credit), newAllowance(*r.Credit)
	}
	s.begin(ses, r.Request)
}

// Credit takes msb.exec.credit.
func (s *Service) Credit(id uint32, p agent.ExecCreditPayload) {
	if ses := s.session(id); ses != nil {
		ses.stdout.raise(p.Stdout)
		ses.stderr.raise(p.Stderr)
	}
}

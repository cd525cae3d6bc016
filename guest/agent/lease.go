package agent

import (
	"fmt"
	"sync"

	"msb/guest/port"
	"msb/protocol/agent"
	"msb/protocol/frame"
)

// leases remembers which incarnation of a client holds which range of ids.
type leases struct {
	mu   sync.Mutex
	held map[uint32]frame.Lease // by owner
}

func (l *leases) set(owner uint32, lease frame.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held == nil {
		l.held = make(map[uint32]frame.Lease)
	}
	l.held[owner] = lease
}

// incarnation of the client that holds the owner's range; zeros for one without a lease.
func (l *leases) incarnation(owner uint32) frame.Incarnation {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held[owner].Incarnation
}

// drop ends a lease. ok is false when another incarnation holds the range.
func (l *leases) drop(owner uint32, incarnation frame.Incarnation) (ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if held, leased := l.held[owner]; leased && held.Incarnation != incarnation {
		return false
	}
	delete(l.held, owner)
	return true
}

// owners are the slots that a range of ids touches. A relay's ranges are one slot each; a host without leases may name
// a wider one.
func owners(start, end uint32) (first, last uint32) {
	if end > start {
		end--
	}
	return port.Owner(start), port.Owner(end)
}

// lease takes the host's word that a client has connected.
func (a *server) lease(f frame.Frame) {
	l, err := frame.ParseLease(f)
	if err != nil || l.Event != frame.LeaseConnected {
		a.reject(f.ID, agent.Generation, agent.KindMalformedMessage, "range lease: not a connected event", "")
		return
	}
	first, last := owners(l.Start, l.End)
	if first != last {
		a.reject(f.ID, agent.Generation, agent.KindInvalidSession,
			fmt.Sprintf("range lease: %d to %d is not one client's range", l.Start, l.End), "")
		return
	}
	// A range that is leased anew without a disconnect has lost its former client all the same.
	if held := a.leases.incarnation(first); held != (frame.Incarnation{}) && held != l.Incarnation {
		a.closeOwner(first)
	}
	a.leases.set(first, l)
	a.out.openOwner(first)
	if a.bulkOut != nil {
		a.bulkOut.openOwner(first)
	}
}

// disconnected cleans a range whose client is gone. A leased range is acknowledged once nothing runs for it any more
// and nothing of it can be sent.
func (a *server) disconnected(p *agent.ClientDisconnectedPayload) {
	var incarnation frame.Incarnation
	leased := len(p.Incarnation) == len(incarnation)
	copy(incarnation[:], p.Incarnation)
	first, last := owners(p.IDStart, p.IDEndExclusive)
	last = min(last, frame.MaxClients-1)
	var quiet []<-chan struct{}
	for owner := first; owner <= last; owner++ {
		if leased && !a.leases.drop(owner, incarnation) {
			return // the range has a new client already
		}
		quiet = append(quiet, a.closeOwner(owner)...)
		if !leased {
			// Without leases the next client of the range is not announced.
			a.out.openOwner(owner)
			if a.bulkOut != nil {
				a.bulkOut.openOwner(owner)
			}
		}
	}
	if !leased {
		return
	}
	ack := frame.AppendLease(nil, frame.Lease{
		Event: frame.LeaseDisconnected, Start: p.IDStart, End: p.IDEndExclusive, Incarnation: incarnation,
	})
	a.helpers.Go(func() {
		for _, q := range quiet {
			<-q
		}
		a.out.sendRaw(ack)
	})
}

// closeOwner ends everything that runs for a client.
func (a *server) closeOwner(owner uint32) (quiet []<-chan struct{}) {
	a.out.closeOwner(owner)
	if a.bulkOut != nil {
		a.bulkOut.closeOwner(owner)
	}
	return []<-chan struct{}{
		a.exec.CloseOwner(owner), a.files.CloseOwner(owner), a.nodes.CloseOwner(owner), a.tcp.CloseOwner(owner),
		a.watch.CloseOwner(owner),
	}
}

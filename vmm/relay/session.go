package relay

import (
	"msb/protocol/agent"
)

// Bounds of what one client may have open.
const (
	maxBulk     = 64      // bulk operations; one more is answered by the relay
	maxSessions = 1 << 16 // sessions of all kinds; more costs the client its connection
	maxRetired  = 1024    // ended bulk operations whose late records are still known as such

	maxPendingRecords = 1024 // records that came before their acceptance
	maxPendingBytes   = 8 << 20
	maxHeldFrames     = 16
)

// session is one exec, file or TCP operation that a client opened and the guest has not ended.
type session struct {
	kind agent.Type // ExecRequest, FSRequest, TCPConnect or NodeRequest
	bulk *bulkOp    // nil when raw records were not offered
}

// bulkOp is what the relay knows of a raw bulk operation. The last three fields are used only when records
// have a port of their own, where they and the other frames of the operation overtake each other.
type bulkOp struct {
	kind     uint8
	accepted bool
	pending  fifo      // records that came before the acceptance
	received uint64    // end of the last record forwarded to the client
	held     []*packet // finish and what follows it, until all records are through
	final    uint64    // offset that ends the hold
}

func (b *bulkOp) drop() {
	if b == nil {
		return
	}
	b.pending.clear()
	for _, p := range b.held {
		p.free()
	}
	b.held = nil
}

// sessions is the table of one client; the client's lock guards it.
type sessions struct {
	open map[uint32]session
	bulk int // open bulk operations
	// retired remembers ended bulk operations: a record that crossed the end on the wire is dropped, not
	// held against the client.
	retired     map[uint32]struct{}
	retiredRing []uint32
	retiredNext int
	used        idSet // ids that opened something, when they must not come again
}

func newSessions() sessions {
	return sessions{open: map[uint32]session{}, retired: map[uint32]struct{}{}}
}

func (s *sessions) start(id uint32, x session) {
	s.open[id] = x
	if x.bulk != nil {
		s.bulk++
	}
}

// end closes a session and returns it.
func (s *sessions) end(id uint32) (session, bool) {
	x, ok := s.open[id]
	if !ok {
		return x, false
	}
	delete(s.open, id)
	if x.bulk != nil {
		s.bulk--
		s.retire(id)
	}
	return x, true
}

func (s *sessions) retire(id uint32) {
	if _, ok := s.retired[id]; ok {
		return
	}
	if len(s.retiredRing) < maxRetired {
		s.retiredRing = append(s.retiredRing, id)
	} else {
		delete(s.retired, s.retiredRing[s.retiredNext])
		s.retiredRing[s.retiredNext] = id
		s.retiredNext = (s.retiredNext + 1) % maxRetired
	}
	s.retired[id] = struct{}{}
}

// execs are the open exec ids.
func (s *sessions) execs() (ids []uint32) {
	for id, x := range s.open {
		if x.kind == agent.ExecRequest {
			ids = append(ids, id)
		}
	}
	return ids
}

// idSet is a set of ids that mostly go upwards: 4 KiB for 32768 of them, at most 4 MiB for a whole range.
type idSet map[uint32]*[512]uint64

// add says whether id is new.
func (s *idSet) add(id uint32) bool {
	if *s == nil {
		*s = idSet{}
	}
	page := (*s)[id>>15]
	if page == nil {
		page = new([512]uint64)
		(*s)[id>>15] = page
	}
	word, bit := &page[id>>6&511], uint64(1)<<(id&63)
	fresh := *word&bit == 0
	*word |= bit
	return fresh
}

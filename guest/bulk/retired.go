package bulk

// retiredMax is how many failed operations a Retired remembers.
const retiredMax = 1024

// Retired remembers the ids of operations that this side ended with a failure while the host may still have had data
// for them in flight. Such data is dropped in silence: the operation has had its one terminal answer. The memory is
// bounded, oldest first. The zero value is ready.
type Retired struct {
	ids  map[uint32]struct{}
	ring []uint32
	next int
}

// Add remembers id.
func (r *Retired) Add(id uint32) {
	if _, ok := r.ids[id]; ok {
		return
	}
	if r.ids == nil {
		r.ids = make(map[uint32]struct{})
	}
	if len(r.ring) < retiredMax {
		r.ring = append(r.ring, id)
	} else {
		delete(r.ids, r.ring[r.next])
		r.ring[r.next] = id
		r.next = (r.next + 1) % retiredMax
	}
	r.ids[id] = struct{}{}
}

// Has tells whether id is remembered.
func (r *Retired) Has(id uint32) bool {
	_, ok := r.ids[id]
	return ok
}

// Forget drops the ids that match, when their owner has gone or one is opened again.
func (r *Retired) Forget(match func(id uint32) bool) {
	kept := make([]uint32, 0, len(r.ring))
	for i := range r.ring {
		id := r.ring[(r.next+i)%len(r.ring)]
		if match(id) {
			delete(r.ids, id)
			continue
		}
		kept = append(kept, id)
	}
	r.ring, r.next = kept, 0
}

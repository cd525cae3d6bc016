package client

// allocator gives out correlation ids, upward from the first.
type allocator struct {
	space IDSpace
	next  uint64
}

// take returns a free id. For a reusable space it looks past those in use.
func (a *allocator) take(used map[uint32]*Stream) (uint32, error) {
	if !a.space.Reusable {
		if a.next > uint64(a.space.Last) {
			return 0, ErrIDsExhausted
		}
		a.next++
		return uint32(a.next - 1), nil
	}
	if uint64(len(used)) > uint64(a.space.Last-a.space.First) {
		return 0, ErrIDsExhausted
	}
	for {
		if a.next > uint64(a.space.Last) {
			a.next = uint64(a.space.First)
		}
		id := uint32(a.next)
		a.next++
		if _, taken := used[id]; !taken {
			return id, nil
		}
	}
}

func (a *allocator) left() uint64 {
	if a.space.Reusable {
		return uint64(a.space.Last-a.space.First) + 1
	}
	return uint64(a.space.Last) + 1 - a.next
}

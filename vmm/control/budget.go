package control

import "sync/atomic"

// budget bounds bytes that are held at a time.
type budget struct {
	limit int64
	used  atomic.Int64
}

// take reserves n bytes; false when they are not there.
func (b *budget) take(n int) bool {
	if b.used.Add(int64(n)) > b.limit {
		b.used.Add(-int64(n))
		return false
	}
	return true
}

func (b *budget) give(n int) { b.used.Add(-int64(n)) }

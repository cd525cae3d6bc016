package bulk

import "fmt"

// Grant is a credit that a receiver owes the sender.
type Grant struct {
	Consumed uint64 // bytes consumed so far
	Limit    uint64 // absolute, exclusive
}

// Receiver is the receiving side of one flow.
type Receiver struct {
	received uint64 // bytes accepted, and the offset the next record must have
	consumed uint64 // bytes the destination has taken
	limit    uint64 // what the sender has been granted
	window   uint64
	max      int
	held     bool // a finish that overtook its records waits for them
	final    uint64
	finished bool
}

// NewReceiver returns a Receiver that has granted window bytes in records of at most maxRecord bytes.
func NewReceiver(maxRecord uint32, window uint64) Receiver {
	return Receiver{max: int(maxRecord), limit: window, window: window}
}

// Received returns the bytes accepted so far.
func (r *Receiver) Received() uint64 { return r.received }

// Finished tells whether the sender has finished the flow and all of it is here.
func (r *Receiver) Finished() bool { return r.finished }

// Record checks a record of n bytes at offset and accepts it. After an error the operation must be failed.
func (r *Receiver) Record(offset uint64, n int) error {
	switch {
	case r.finished:
		return fmt.Errorf("bulk record at %d: %w", offset, ErrFinished)
	case offset != r.received:
		return fmt.Errorf("bulk record offset %d does not match expected %d", offset, r.received)
	case n <= 0 || n > r.max:
		return fmt.Errorf("invalid bulk record payload length %d (max %d)", n, r.max)
	case overflows(offset, n):
		return fmt.Errorf("bulk record at %d with %d bytes does not fit 64 bits", offset, n)
	}
	end := offset + uint64(n)
	if end > r.limit {
		return fmt.Errorf("bulk record end %d exceeds credit limit %d", end, r.limit)
	}
	if r.held && end > r.final {
		return fmt.Errorf("bulk record end %d exceeds the finished offset %d", end, r.final)
	}
	r.received = end
	if r.held && end == r.final {
		r.finished = true
	}
	return nil
}

// Consume accounts for n bytes that the destination has taken. owed is true when the sender must now be told grant.
// The limit has already moved then, so that a record sent in answer is accepted.
func (r *Receiver) Consume(n int) (grant Grant, owed bool) {
	r.consumed += uint64(n)
	if r.limit-r.consumed > r.window/2 {
		return Grant{}, false
	}
	r.limit = r.consumed + r.window
	return Grant{Consumed: r.consumed, Limit: r.limit}, true
}

// Finish takes the sender's finish. It must name exactly the bytes received. With hold, for transports where a finish
// can overtake records, a larger offset within the granted limit is kept and done becomes true by the record that
// completes it (see Finished). After an error the operation must be failed.
func (r *Receiver) Finish(final uint64, hold bool) error {
	switch {
	case r.finished || r.held:
		return fmt.Errorf("bulk finish at %d: %w", final, ErrFinished)
	case final == r.received:
		r.final, r.finished = final, true
		return nil
	case hold && final > r.received && final <= r.limit:
		r.held, r.final = true, final
		return nil
	}
	return fmt.Errorf("bulk finish offset %d does not match expected %d", final, r.received)
}

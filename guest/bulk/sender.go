package bulk

import (
	"errors"
	"fmt"
	"math"

	"msb/protocol/frame"
)

// ErrFinished is returned for a record or finish on a flow that is already finished.
var ErrFinished = errors.New("bulk flow is already finished")

// Sender is the sending side of one flow.
type Sender struct {
	sent     uint64 // bytes sent, and the offset of the next record
	consumed uint64 // bytes the receiver says it consumed
	limit    uint64 // absolute, exclusive
	max      int    // payload limit of one record
	finished bool
}

// NewSender returns a Sender that may send up to limit bytes in records of at most maxRecord bytes.
func NewSender(maxRecord uint32, limit uint64) Sender {
	return Sender{max: int(maxRecord), limit: limit}
}

// Room returns how many bytes the next record may carry: 0 when the credit is used up or the flow is finished.
func (s *Sender) Room() int {
	if s.finished {
		return 0
	}
	return int(min(s.limit-s.sent, uint64(s.max)))
}

// Credit returns how many bytes may be sent in all before more credit is needed.
func (s *Sender) Credit() uint64 { return s.limit - s.sent }

// Sent returns the bytes sent so far.
func (s *Sender) Sent() uint64 { return s.sent }

// Take admits a record of n bytes and returns its offset.
func (s *Sender) Take(n int) (offset uint64, err error) {
	switch {
	case s.finished:
		return 0, ErrFinished
	case n <= 0 || n > s.max:
		return 0, fmt.Errorf("invalid bulk record payload length %d (max %d)", n, s.max)
	case uint64(n) > s.limit-s.sent:
		return 0, fmt.Errorf("bulk record of %d bytes at %d exceeds the credit limit %d", n, s.sent, s.limit)
	}
	offset = s.sent
	s.sent += uint64(n)
	return offset, nil
}

// Apply takes the receiver's credit message. A message that advances nothing is ignored (advanced is false); one that
// no receiver may send is refused, and the operation must be failed.
func (s *Sender) Apply(consumed, limit uint64) (advanced bool, err error) {
	if consumed <= s.consumed && limit <= s.limit {
		return false, nil
	}
	switch {
	case consumed > s.sent:
		return false, fmt.Errorf("bulk credit consumed offset %d exceeds sent offset %d", consumed, s.sent)
	case limit < consumed:
		return false, fmt.Errorf("bulk credit limit %d is below consumed offset %d", limit, consumed)
	case limit-consumed > frame.MaxBulkWindow:
		return false, fmt.Errorf("bulk credit window %d exceeds maximum %d", limit-consumed, frame.MaxBulkWindow)
	case consumed < s.consumed:
		return false, fmt.Errorf("bulk credit consumed offset went back from %d to %d", s.consumed, consumed)
	case limit < s.limit:
		return false, fmt.Errorf("bulk credit limit went back from %d to %d", s.limit, limit)
	case limit < s.sent:
		return false, fmt.Errorf("bulk credit limit %d is below sent offset %d", limit, s.sent)
	}
	s.consumed, s.limit = consumed, limit
	return true, nil
}

// Finish ends the flow and returns its final offset.
func (s *Sender) Finish() (final uint64, err error) {
	if s.finished {
		return 0, ErrFinished
	}
	s.finished = true
	return s.sent, nil
}

// overflows tells whether offset+n does not fit 64 bits.
func overflows(offset uint64, n int) bool { return uint64(n) > math.MaxUint64-offset }

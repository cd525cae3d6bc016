package turnrpc

// BusyMessage is the message of the error CodeBusy.
const BusyMessage = "too many concurrent guest calls"

// Slots counts the guest calls under way: seven of any kind, and one more that
// is reserved for the cancel calls, so that a guest whose calls all wait can
// still end them.
type Slots struct {
	normal  chan struct{}
	reserve chan struct{}
}

// NewSlots returns MaxGuestCalls free slots.
func NewSlots() *Slots {
	return &Slots{normal: make(chan struct{}, MaxGuestCalls-1), reserve: make(chan struct{}, 1)}
}

// Take takes a slot for a call; without one, ok is false and the answer is
// CodeBusy. release gives it back.
func (s *Slots) Take(method string) (release func(), ok bool) {
	if IsCancelCall(method) {
		select {
		case s.reserve <- struct{}{}:
			return func() { <-s.reserve }, true
		default:
		}
	}
	select {
	case s.normal <- struct{}{}:
		return func() { <-s.normal }, true
	default:
		return nil, false
	}
}

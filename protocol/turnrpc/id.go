package turnrpc

import (
	"strconv"
	"strings"
)

// Ids say who started an exchange: each side demultiplexes by their form.

// HelloID is the id of the guest's hello and of its answer.
const HelloID = "hello"

// HostCallID is the id of the host's nth call or turn.
func HostCallID(n uint64) string { return strconv.FormatUint(n, 10) }

// NotificationID is the id of the host's nth notification; n shares the
// counter of its calls.
func NotificationID(n uint64) string { return "h-" + strconv.FormatUint(n, 10) }

// GuestCallID is the id of the guest's nth call.
func GuestCallID(n uint64) string { return "g-" + strconv.FormatUint(n, 10) }

// CancelID is the id of the call that cancels a turn.
func CancelID(turn string) string { return turn + "-cancel" }

// IsGuestCall tells whether an id was made by a guest.
func IsGuestCall(id string) bool { return strings.HasPrefix(id, "g-") }

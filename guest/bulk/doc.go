// Package bulk holds the flow state of generation 8 raw bulk: what one side of an operation may send, what it must
// refuse, and when it owes the other side credit. The file and the TCP service share it, and the table of their open
// operations. It does no I/O and starts no goroutine; callers guard each flow with a lock of their own.
//
// An operation has one or two flows, host→guest and guest→host. A flow counts bytes from 0. Its sender may send up to
// an absolute credit limit; its receiver moves that limit forward as bytes are consumed and checks every record, so
// that what waits in the receiver's queue never exceeds the window.
package bulk

import "msb/protocol/frame"

// Window is how far ahead of what it consumed this guest lets the host send, in bytes.
const Window = frame.DefaultBulkWindow

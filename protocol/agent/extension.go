package agent

import "fmt"

// Our additions to the agent protocol are messages whose names start with
// "msb.", never fields in core messages. A guest lists what it serves in
// core.ready (msb_extensions, name → version); they are sent only to a guest
// that did, and only to a client that asked for them by sending one.

// ExtensionGeneration is the least generation of a peer with extensions: they
// build on raw bulk and core.error.
const ExtensionGeneration uint8 = 9

// Names of the extensions.
const (
	// ExtFS is the file system by node handle.
	ExtFS = "msb.fs"
	// ExtExec adds the signal that ended a command and credit for its output.
	ExtExec = "msb.exec"
	// ExtInput tells the runtime whose input the guest has consumed.
	ExtInput = "msb.input"
	// ExtWatch tells what changes in the file system.
	ExtWatch = "msb.fs.watch"
)

// OurExtensions returns what this build speaks, each at its newest version.
func OurExtensions() Extensions { return Extensions{ExtFS: 1, ExtExec: 1, ExtInput: 1, ExtWatch: 1} }

// extensionBase is the first Type of an extension. The table of core types
// stays the contract's.
const extensionBase Type = 128

// Message types of extensions.
const (
	NodeRequest Type = extensionBase + iota
	NodeResponse
	NodeCancel
	ExecOpen
	ExecCredit
	ExecSignaled
	InputWatch
	InputConsumed
	WatchRequest
	WatchStarted
	WatchEvents
	WatchSeen
	WatchCancel
	WatchEnded
	extensionEnd
)

type extensionInfo struct {
	extension string
	version   uint8 // of the extension that introduced the message
	typeInfo
}

// extensions has one row a message type; a test fails for a missing row.
var extensions = [extensionEnd - extensionBase]extensionInfo{
	NodeRequest - extensionBase:   {ExtFS, 1, typeInfo{"msb.fs.request", 0, HostToGuest, session}},
	NodeResponse - extensionBase:  {ExtFS, 1, typeInfo{"msb.fs.response", 0, GuestToHost, terminal}},
	NodeCancel - extensionBase:    {ExtFS, 1, typeInfo{"msb.fs.cancel", 0, HostToGuest, 0}},
	ExecOpen - extensionBase:      {ExtExec, 1, typeInfo{"msb.exec.request", 0, HostToGuest, session}},
	ExecCredit - extensionBase:    {ExtExec, 1, typeInfo{"msb.exec.credit", 0, HostToGuest, 0}},
	ExecSignaled - extensionBase:  {ExtExec, 1, typeInfo{"msb.exec.signaled", 0, GuestToHost, 0}},
	WatchRequest - extensionBase:  {ExtWatch, 1, typeInfo{"msb.fs.watch.request", 0, HostToGuest, session}},
	WatchStarted - extensionBase:  {ExtWatch, 1, typeInfo{"msb.fs.watch.started", 0, GuestToHost, 0}},
	WatchEvents - extensionBase:   {ExtWatch, 1, typeInfo{"msb.fs.watch.events", 0, GuestToHost, 0}},
	WatchSeen - extensionBase:     {ExtWatch, 1, typeInfo{"msb.fs.watch.seen", 0, HostToGuest, 0}},
	WatchCancel - extensionBase:   {ExtWatch, 1, typeInfo{"msb.fs.watch.cancel", 0, HostToGuest, 0}},
	WatchEnded - extensionBase:    {ExtWatch, 1, typeInfo{"msb.fs.watch.ended", 0, GuestToHost, terminal}},
	InputWatch - extensionBase:    {ExtInput, 1, typeInfo{"msb.input.watch", 0, HostToGuest, 0}},
	InputConsumed - extensionBase: {ExtInput, 1, typeInfo{"msb.input.consumed", 0, GuestToHost, 0}},
}

// ExtensionTypes returns every message type of an extension.
func ExtensionTypes() []Type {
	var all []Type
	for t := extensionBase; t < extensionEnd; t++ {
		all = append(all, t)
	}
	return all
}

// Extension returns the extension that the type belongs to and the version of
// it that introduced the type; "" for a core type.
func (t Type) Extension() (name string, version uint8) {
	if t < extensionBase || t >= extensionEnd {
		return "", 0
	}
	x := extensions[t-extensionBase]
	return x.extension, x.version
}

// AvailableTo is AvailableAt for all types: a message of an extension may pass
// between peers of this generation when the guest has listed the extension at
// a version that has it.
func (t Type) AvailableTo(generation uint8, listed Extensions) bool {
	name, version := t.Extension()
	if name == "" {
		return t.AvailableAt(generation)
	}
	return generation >= ExtensionGeneration && listed[name] >= version
}

// Needs says what a peer must offer for the type: "agent generation 8",
// "extension msb.fs 1".
func (t Type) Needs() string {
	if name, version := t.Extension(); name != "" {
		return fmt.Sprintf("extension %s %d", name, version)
	}
	return fmt.Sprintf("agent generation %d", t.Since())
}

// ExecOpenPayload starts a process as core.exec.request does, for a client
// that wants to hear of the signal that ended it. The answers are those of
// core.exec, with msb.exec.signaled before core.exec.exited.
//
// With Credit, the guest sends at most that many bytes of each output until
// msb.exec.credit allows more, and stops reading what the command prints: the
// command waits as it would for a full pipe. Without, output is not held back.
type ExecOpenPayload struct {
	Request ExecRequestPayload `cbor:"request"`
	Credit  *uint64            `cbor:"credit,omitempty"`
}

func (r *ExecOpenPayload) SetDefaults() { r.Request.SetDefaults() }

// ExecCreditPayload allows output up to these absolute counts of bytes since
// the start of the command. A count never goes back. One for an output that is
// not held back, or for a command that has ended, means nothing.
type ExecCreditPayload struct {
	Stdout uint64 `cbor:"stdout"`
	Stderr uint64 `cbor:"stderr"`
}

// ExecSignaledPayload says that a signal ended the process, and whether it left
// a core.
type ExecSignaledPayload struct {
	Signal int32 `cbor:"signal"`
	Core   bool  `cbor:"core"`
}

// InputWatchPayload asks for msb.input.consumed from now on, on the private
// channel of runtime and guest.
type InputWatchPayload = Empty

// InputConsumedPayload says whose input of the data class the guest has
// consumed or dropped since the last one. It precedes the transport credit that
// gives the same back.
type InputConsumedPayload struct {
	Operations []ConsumedInput `cbor:"operations"`
}

// ConsumedInput is what was consumed of one operation, in frames and their
// bytes on the wire.
type ConsumedInput struct {
	_      struct{} `cbor:",toarray"`
	ID     uint32
	Bytes  uint64
	Frames uint64
}

// NodeCancelPayload asks for an early end of the request with the same id: an
// operation that waits ends with EINTR, operations that have not begun are not
// done. The response comes all the same.
type NodeCancelPayload = Empty

// MaxNodeInline bounds the bytes of one inline read or write, of one listing
// and of one extended attribute.
const MaxNodeInline = 1 << 20

// MaxNodeOps bounds the operations of one request.
const MaxNodeOps = 64

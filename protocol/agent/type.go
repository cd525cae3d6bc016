// Package agent is the wire format of the agent protocol, generations 1 to 9:
// message types with the generation that introduced them, the CBOR envelope
// and every payload. It holds no policy and does no I/O.
//
// Encoding is exactly the published form: definite containers, shortest heads,
// declared field order. Decoding is tolerant where published peers are.
package agent

import (
	"fmt"

	"msb/protocol/frame"
)

// Generation is the newest agent generation this package speaks, and the `v`
// that it puts on messages.
const Generation uint8 = 9

// LegacyGeneration is what is emitted to a relay with the pre-0.5 prologue.
const LegacyGeneration uint8 = 1

// Generations that introduced a behaviour rather than only a message.
const (
	MinBootstrapGeneration uint8 = 7 // least `v` of core.bootstrap
	BulkGeneration         uint8 = 8 // least `v` of a request with a bulk offer
	ErrorGeneration        uint8 = 5 // least `v` of a request that gets core.error
)

// Direction says who may send a message.
type Direction uint8

const (
	HostToGuest Direction = 1 << iota
	GuestToHost
	BothWays = HostToGuest | GuestToHost
)

// Type is a known message type. The zero value is no type.
type Type uint8

const (
	_ Type = iota
	Bootstrap
	InitResolved
	InitAck
	Ready
	Shutdown
	ClientDisconnected
	ClockSync
	Ping
	Pong
	Touch
	Touched
	Error
	ExecRequest
	ExecStarted
	ExecStdin
	ExecStdinError
	ExecStdout
	ExecStderr
	ExecExited
	ExecFailed
	ExecResize
	ExecSignal
	FSRequest
	FSResponse
	FSData
	TCPConnect
	TCPConnected
	TCPData
	TCPEOF
	TCPClose
	TCPClosed
	TCPFailed
	BulkAccepted
	BulkCredit
	BulkFinish
	BulkCancel
	WorkloadFreeze
	WorkloadFrozen
	WorkloadThaw
	WorkloadThawed
	TransportCredit
	RootDiskPrepare
	RootDiskGrow
	RootDiskState
	typeEnd
)

type typeInfo struct {
	wire  string
	since uint8
	dir   Direction
	flags uint8
}

const (
	terminal = frame.FlagTerminal
	session  = frame.FlagSessionStart
)

// types has one row a message type; a test fails for a missing row.
var types = [typeEnd]typeInfo{
	Bootstrap:          {"core.bootstrap", 7, HostToGuest, 0},
	InitResolved:       {"core.init.resolved", 1, GuestToHost, 0},
	InitAck:            {"core.init.ack", 1, HostToGuest, 0},
	Ready:              {"core.ready", 1, GuestToHost, 0},
	Shutdown:           {"core.shutdown", 1, HostToGuest, frame.FlagShutdown},
	ClientDisconnected: {"core.relay.client.disconnected", 1, HostToGuest, 0},
	ClockSync:          {"core.clock.sync", 1, HostToGuest, 0},
	Ping:               {"core.ping", 6, HostToGuest, 0},
	Pong:               {"core.pong", 6, GuestToHost, terminal},
	Touch:              {"core.touch", 6, HostToGuest, 0},
	Touched:            {"core.touched", 6, GuestToHost, terminal},
	Error:              {"core.error", 5, BothWays, terminal},
	ExecRequest:        {"core.exec.request", 1, HostToGuest, session},
	ExecStarted:        {"core.exec.started", 1, GuestToHost, 0},
	ExecStdin:          {"core.exec.stdin", 1, HostToGuest, 0},
	ExecStdinError:     {"core.exec.stdin.error", 1, GuestToHost, 0},
	ExecStdout:         {"core.exec.stdout", 1, GuestToHost, 0},
	ExecStderr:         {"core.exec.stderr", 1, GuestToHost, 0},
	ExecExited:         {"core.exec.exited", 1, GuestToHost, terminal},
	ExecFailed:         {"core.exec.failed", 1, GuestToHost, terminal},
	ExecResize:         {"core.exec.resize", 1, HostToGuest, 0},
	ExecSignal:         {"core.exec.signal", 1, HostToGuest, 0},
	FSRequest:          {"core.fs.request", 2, HostToGuest, session},
	FSResponse:         {"core.fs.response", 2, GuestToHost, terminal},
	FSData:             {"core.fs.data", 2, BothWays, 0},
	TCPConnect:         {"core.tcp.connect", 4, HostToGuest, session},
	TCPConnected:       {"core.tcp.connected", 4, GuestToHost, 0},
	TCPData:            {"core.tcp.data", 4, BothWays, 0},
	TCPEOF:             {"core.tcp.eof", 4, BothWays, 0},
	TCPClose:           {"core.tcp.close", 4, HostToGuest, 0},
	TCPClosed:          {"core.tcp.closed", 4, GuestToHost, terminal},
	TCPFailed:          {"core.tcp.failed", 4, GuestToHost, terminal},
	BulkAccepted:       {"core.bulk.accepted", 8, GuestToHost, 0},
	BulkCredit:         {"core.bulk.credit", 8, BothWays, 0},
	BulkFinish:         {"core.bulk.finish", 8, BothWays, 0},
	BulkCancel:         {"core.bulk.cancel", 8, BothWays, 0},
	WorkloadFreeze:     {"core.workload.freeze", 9, HostToGuest, 0},
	WorkloadFrozen:     {"core.workload.frozen", 9, GuestToHost, terminal},
	WorkloadThaw:       {"core.workload.thaw", 9, HostToGuest, 0},
	WorkloadThawed:     {"core.workload.thawed", 9, GuestToHost, terminal},
	TransportCredit:    {"core.workload.transport.credit", 9, GuestToHost, 0},
	RootDiskPrepare:    {"core.root_disk.prepare", 9, HostToGuest, 0},
	RootDiskGrow:       {"core.root_disk.grow", 9, HostToGuest, 0},
	RootDiskState:      {"core.root_disk.state", 9, GuestToHost, terminal},
}

var byWire = func() map[string]Type {
	m := make(map[string]Type, typeEnd)
	for t := Type(1); t < typeEnd; t++ {
		m[types[t].wire] = t
	}
	for _, t := range ExtensionTypes() {
		m[t.info().wire] = t
	}
	return m
}()

// Types returns every type of the contract in declaration order.
func Types() []Type {
	all := make([]Type, 0, typeEnd-1)
	for t := Type(1); t < typeEnd; t++ {
		all = append(all, t)
	}
	return all
}

// ParseType returns the type with this wire name; ok is false for a name that
// this build does not know.
func ParseType(wire string) (t Type, ok bool) {
	t, ok = byWire[wire]
	return t, ok
}

func (t Type) info() typeInfo {
	switch {
	case t < typeEnd:
		return types[t]
	case t >= extensionBase && t < extensionEnd:
		return extensions[t-extensionBase].typeInfo
	}
	return typeInfo{}
}

// String returns the wire name.
func (t Type) String() string {
	if s := t.info().wire; s != "" {
		return s
	}
	return fmt.Sprintf("Type(%d)", uint8(t))
}

// Since returns the generation that introduced the type.
func (t Type) Since() uint8 { return t.info().since }

// AvailableAt tells whether a peer of this generation knows the type by its
// generation alone, which holds for no type of an extension. See AvailableTo,
// the one predicate of both directions' send gates.
func (t Type) AvailableAt(generation uint8) bool {
	return t.Since() != 0 && t.Since() <= generation
}

// Flags returns the exact frame flags that messages of this type carry.
func (t Type) Flags() uint8 { return t.info().flags }

// Direction returns who may send the type.
func (t Type) Direction() Direction { return t.info().dir }

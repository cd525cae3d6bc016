// Package control is the wire format of the control protocol: the framed
// records of generation 1 and the JSON lines of older peers. It holds no
// policy and does no I/O.
package control

// Generation is the framed generation that this package speaks. It is counted
// apart from the agent protocol's.
const Generation uint8 = 1

// ProtocolName is what a hello and a welcome identify themselves with.
const ProtocolName = "msb.control"

// Limits of the framed form, in bytes and requests.
const (
	MinFrameSize     = 4096
	MaxFrameSize     = 4 << 20
	MaxOpening       = 4096 // the largest opening frame
	DefaultMaxFlight = 64
)

// Names of the framed messages. Requests and replies with one name differ in
// their flags: a reply is terminal.
const (
	TypeHello              = "control.hello"
	TypeWelcome            = "control.welcome"
	TypeError              = "control.error"
	TypeCapabilities       = "control.capabilities"
	TypeCapabilitiesResult = "control.capabilities.result"
	TypeMemoryState        = "control.memory.state"
	TypeMemoryTarget       = "control.memory.target"
	TypeCPUState           = "control.cpu.state"
	TypeCPUTarget          = "control.cpu.target"
	TypeSecretsUpdate      = "control.secrets.update"
	TypeSecretsResult      = "control.secrets.result"
)

// ReplyType returns the name of the successful reply to a request, "" for a
// name that is no request.
func ReplyType(request string) string {
	switch request {
	case TypeCapabilities:
		return TypeCapabilitiesResult
	case TypeMemoryState, TypeMemoryTarget:
		return TypeMemoryState
	case TypeCPUState, TypeCPUTarget:
		return TypeCPUState
	case TypeSecretsUpdate:
		return TypeSecretsResult
	}
	return ""
}

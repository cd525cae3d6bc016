package turnrpc

// Methods that the guest serves.
const (
	MethodUserTurn     = "user_turn"
	MethodCancelTurn   = "cancel_turn" // version 2
	MethodShutdown     = "shutdown"
	MethodGetContext   = "get_context"
	MethodSetModel     = "set_model"
	MethodArchiveChunk = "archive_chunk"
	MethodExportPatch  = "export_patch"
	MethodQuiesce      = "quiesce"
	MethodSetTime      = "set_time"
	MethodListFiles    = "list_files"
	MethodReadFile     = "read_file"
	MethodSearch       = "search"
	MethodApplyPatch   = "apply_patch"
	MethodRunCommand   = "run_command"
)

// Methods that the host serves, and the notifications of both sides.
const (
	MethodHello           = "hello"
	MethodProviderOpen    = "provider_open"
	MethodProviderSend    = "provider_send"
	MethodProviderCancel  = "provider_cancel"
	MethodMCPList         = "mcp_list"
	MethodMCPCall         = "mcp_call"
	MethodMCPCancel       = "mcp_cancel"
	MethodRequestApproval = "request_run_command_approval"

	MethodAgentEvent    = "agent_event"    // guest → host, the turn's id, no reply
	MethodProviderEvent = "provider_event" // host → guest, no reply
)

// guestCalls is the closed list of what a guest may ask of a host.
var guestCalls = map[string]int{
	MethodProviderOpen:    3,
	MethodProviderSend:    3,
	MethodProviderCancel:  3,
	MethodMCPList:         4,
	MethodMCPCall:         4,
	MethodMCPCancel:       4,
	MethodRequestApproval: 4,
}

// GuestCallVersion returns the least guest version that may call a method of
// the host; ok is false for what is no such method.
func GuestCallVersion(method string) (version int, ok bool) {
	version, ok = guestCalls[method]
	return version, ok
}

// IsCancelCall tells the two methods for which a slot is reserved.
func IsCancelCall(method string) bool {
	return method == MethodProviderCancel || method == MethodMCPCancel
}

// Slots for guest calls under way at once: one of MaxGuestCalls is reserved
// for cancel calls.
const MaxGuestCalls = 8

// Normalize maps the version of a hello: 0 counts as 1.
func Normalize(version int) int { return max(version, 1) }

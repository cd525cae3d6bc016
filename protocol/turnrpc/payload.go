package turnrpc

import "encoding/json"

// Hello is the guest's first frame.
type Hello struct {
	SessionID  string       `json:"session_id"` // 32 hex digits
	Capability string       `json:"capability"` // 64 hex digits
	ImageID    string       `json:"image_id"`
	Protocol   int          `json:"protocol"` // see Normalize
	GuestReady bool         `json:"guest_ready"`
	History    []AgentEvent `json:"history,omitempty"`
	// Extensions are the additions to version 4 that the guest knows.
	Extensions map[string]int `json:"extensions,omitempty"`
}

// HelloResult is the host's answer.
type HelloResult struct {
	Accepted   bool           `json:"accepted"`
	Message    string         `json:"message,omitempty"`
	Protocol   int            `json:"protocol,omitempty"`
	Extensions map[string]int `json:"extensions,omitempty"`
}

// UserTurn starts a turn. Options are of version 2.
type UserTurn struct {
	Text       string `json:"text"`
	MaxTurns   int    `json:"max_turns,omitempty"`   // model round trips; 0: DefaultMaxTurns
	TimeoutSec int    `json:"timeout_sec,omitempty"` // whole turn; 0: none
	RichEvents bool   `json:"rich_events,omitempty"`
}

// DefaultMaxTurns is the number of model round trips of a turn.
const DefaultMaxTurns = 16

// CancelTurn names the frame id of the turn to cancel.
type CancelTurn struct {
	ID string `json:"id"`
}

// OK is the result of a call that returns nothing.
type OK struct {
	OK bool `json:"ok"`
}

// Kinds of an agent event.
const (
	EventText     = "text"
	EventTool     = "tool"
	EventApproval = "approval"
	EventResult   = "result"
	EventError    = "error"
	EventDone     = "done"
	EventUser     = "user" // in a history only
)

// Statuses of tool and approval events.
const (
	StatusOK      = "ok"
	StatusError   = "error"
	StatusPending = "pending"
	StatusAllowed = "allowed"
	StatusDenied  = "denied"
)

// AgentEvent is one thing that happened in a turn. Everything but Kind is
// optional.
type AgentEvent struct {
	Kind       string `json:"kind"`
	Text       string `json:"text,omitempty"`
	Tool       string `json:"tool,omitempty"`
	Status     string `json:"status,omitempty"`
	Err        string `json:"err,omitempty"`
	ToolID     string `json:"tool_id,omitempty"`
	ToolArgs   string `json:"tool_args,omitempty"` // JSON in a string
	Usage      *Usage `json:"usage,omitempty"`
	StopReason string `json:"stop_reason,omitempty"`
	Stream     string `json:"stream,omitempty"` // of EventOutput
}

// Usage counts tokens.
type Usage struct {
	InputTokens  int64 `json:"input_tokens,omitempty"`
	OutputTokens int64 `json:"output_tokens,omitempty"`
}

// MaxEventText is the number of bytes of a tool result that an event holds.
const MaxEventText = 400

// Limits of the history in hello and get_context, in bytes.
const MaxHistory = 256 << 10

// Context is the result of get_context.
type Context struct {
	History []AgentEvent `json:"history"`
}

// GuestModel names the model of a session. A host of ours leaves the
// credential's name and the URL empty.
type GuestModel struct {
	Name          string `json:"name"`
	Provider      string `json:"provider"`
	Model         string `json:"model"`
	CredentialEnv string `json:"credential_env"`
	BaseURL       string `json:"base_url,omitempty"`
}

// SetModel selects the model of the next turns.
type SetModel struct {
	Model   GuestModel        `json:"model"`
	Secrets map[string]string `json:"secrets,omitempty"` // versions 1 and 2 only
}

// ArchiveChunk is a piece of a tar of the workspace.
type ArchiveChunk struct {
	Offset int64  `json:"offset"`
	Last   bool   `json:"last"`
	Data   []byte `json:"data"`
}

// MaxArchiveChunk is the largest Data of an ArchiveChunk.
const MaxArchiveChunk = 256 << 10

// ArchiveResult is the number of bytes taken so far.
type ArchiveResult struct {
	Written int64 `json:"written"`
}

// PatchResult is the result of export_patch.
type PatchResult struct {
	Patch   string `json:"patch"`
	Summary string `json:"summary"`
}

// Frozen is the result of quiesce.
type Frozen struct {
	Frozen bool `json:"frozen"`
}

// SetTime is the host's wall clock in microseconds since the epoch.
type SetTime struct {
	UnixMicro int64 `json:"unix_micro"`
}

// GuestConfig is what a guest is configured with before it says hello. One
// that holds secrets or MCP servers is refused by a version 4 guest.
type GuestConfig struct {
	SessionID  string            `json:"session_id"`
	Capability string            `json:"capability"`
	VsockPort  uint32            `json:"vsock_port,omitempty"`
	RepoDir    string            `json:"repo_dir,omitempty"`
	Model      GuestModel        `json:"model"`
	Secrets    map[string]string `json:"secrets,omitempty"`
	MCPServers []json.RawMessage `json:"mcp_servers,omitempty"`
}

// Defaults of a GuestConfig.
const (
	DefaultPort    = 1024
	DefaultRepoDir = "/work/repo"
)

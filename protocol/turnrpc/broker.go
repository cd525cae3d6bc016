package turnrpc

import "encoding/json"

// ProviderOpen asks for a stream to a model profile of the host.
type ProviderOpen struct {
	Model string `json:"model"`
	Rich  bool   `json:"rich,omitempty"`
}

// ProviderOpened names the stream.
type ProviderOpened struct {
	StreamID string `json:"stream_id"`
	// InputTokens is how many tokens a request may have, room for an answer
	// taken off; 0: it is not known. With ExtContextWindow.
	InputTokens int `json:"input_tokens,omitempty"`
}

// ProviderSend is a piece of an encoded ProviderRequest.
type ProviderSend struct {
	StreamID string `json:"stream_id"`
	Data     []byte `json:"data"`
	Last     bool   `json:"last,omitempty"`
}

// ProviderCancel ends a stream.
type ProviderCancel struct {
	StreamID string `json:"stream_id"`
}

// Caps of the provider path, in bytes where nothing else is said.
const (
	MaxProviderChunk    = 256 << 10
	MaxProviderRequest  = 4 << 20
	MaxProviderMessages = 4096 // messages of a request
	MaxProviderTools    = 256  // tools of a request
	MaxToolArgs         = 512 << 10
	MaxProviderEvent    = 512 << 10
	MaxProviderEvents   = 1 << 20 // events of a stream
	MaxProviderStreams  = 2       // open streams of a session
)

// ProviderRequest is what the pieces of a stream join to.
type ProviderRequest struct {
	Messages []Message `json:"messages"`
	Tools    []Tool    `json:"tools,omitempty"`
}

// Roles of a message.
const (
	RoleUser      = "user"
	RoleAssistant = "assistant"
	RoleTool      = "tool"
	RoleSystem    = "system" // with ExtSystemPrompt
)

// Message is one entry of the conversation. An assistant's tool call has the
// three Tool… fields; a tool's answer has ToolID and ToolResult.
type Message struct {
	Role       string `json:"role"`
	Content    string `json:"content,omitempty"`
	ToolID     string `json:"tool_id,omitempty"`
	ToolName   string `json:"tool_name,omitempty"`
	ToolArgs   string `json:"tool_args,omitempty"`
	ToolResult string `json:"tool_result,omitempty"`
}

// Tool is what a model may call.
type Tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters,omitempty"`
}

// Types of a provider event; done and error end the stream.
const (
	ProviderText  = "text"
	ProviderTool  = "tool"
	ProviderUsage = "usage"
	ProviderDone  = "done"
	ProviderError = "error"
)

// ProviderEvent is one piece of a model's answer.
type ProviderEvent struct {
	StreamID   string `json:"stream_id"`
	Type       string `json:"type"`
	Text       string `json:"text,omitempty"`
	ToolID     string `json:"tool_id,omitempty"`
	ToolName   string `json:"tool_name,omitempty"`
	ToolArgs   string `json:"tool_args,omitempty"`
	Usage      *Usage `json:"usage,omitempty"`
	StopReason string `json:"stop_reason,omitempty"`
	Err        string `json:"err,omitempty"`
}

// MCPTool is one tool of an MCP server. Prefixed is Server + "__" + Name.
type MCPTool struct {
	Server      string          `json:"server"`
	Name        string          `json:"name"`
	Prefixed    string          `json:"prefixed"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters"`
}

// MCPSeparator joins server and tool in MCPTool.Prefixed.
const MCPSeparator = "__"

// MCPTools is the result of mcp_list.
type MCPTools struct {
	Tools []MCPTool `json:"tools"`
}

// MCPCall calls a tool.
type MCPCall struct {
	CallID    string          `json:"call_id"`
	Server    string          `json:"server"`
	Tool      string          `json:"tool"`
	Arguments json.RawMessage `json:"arguments,omitempty"`
}

// MCPResult is a tool's answer, as text.
type MCPResult struct {
	Text      string `json:"text,omitempty"`
	IsError   bool   `json:"is_error,omitempty"`
	Truncated bool   `json:"truncated,omitempty"`
}

// MCPCancel ends a call.
type MCPCancel struct {
	CallID string `json:"call_id"`
}

// Caps of the MCP path, in bytes where nothing else is said.
const (
	MaxMCPTools     = 251 // MaxProviderTools less the five tools of the guest
	MaxMCPSchema    = 64 << 10
	MaxMCPArguments = 512 << 10
	MaxMCPResult    = 512 << 10
	MaxMCPCalls     = 7 // calls under way at once
)

// ApprovalRequest asks the host whether a model's command may run.
type ApprovalRequest struct {
	TurnID     string `json:"turn_id"`
	ToolID     string `json:"tool_id,omitempty"`
	Command    string `json:"command"` // at most MaxCommand bytes
	Workdir    string `json:"workdir,omitempty"`
	TimeoutSec int    `json:"timeout_sec,omitempty"`
}

// MaxCommand is the largest command that may be asked for.
const MaxCommand = 16 << 10

// Decisions. Anything else is a denial.
const (
	DecisionAllowOnce = "allow_once"
	DecisionDeny      = "deny"
)

// Approval is the host's decision.
type Approval struct {
	Decision string `json:"decision"`
	Cause    string `json:"cause,omitempty"`  // why it was denied, with ExtDenialReason
	Reason   string `json:"reason,omitempty"` // the user's words or the rule's, with ExtDenialReason
}

package turn

// Capabilities says what the peer of a session can do.
type Capabilities struct {
	Protocol     int  `json:"protocol"` // 0 in hello counts as 1
	Cancel       bool `json:"cancel"`
	RichEvents   bool `json:"rich_events"`
	TurnOptions  bool `json:"turn_options"`
	Approvals    bool `json:"approvals"`
	MCPBroker    bool `json:"mcp_broker"`
	ToolStarted  bool `json:"tool_started"`  // extension
	Output       bool `json:"output"`        // extension
	DenialReason bool `json:"denial_reason"` // extension
}

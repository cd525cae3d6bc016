package turnrpc

// Extensions are our additions to version 4. Each side lists those it knows in
// hello and its result (name → version); what an extension adds is sent only
// to a peer that listed it. A host lists only names that the guest listed, so
// that a plain peer sees the plain contract.
const (
	// ExtToolStarted adds EventToolStart.
	ExtToolStarted = "tool_started"
	// ExtOutput adds EventOutput.
	ExtOutput = "output"
	// ExtDenialReason adds Cause and Reason to Approval. A guest that lists it
	// also waits without a limit of its own for the answer of mcp_call, since
	// the host asks its user first; the turn's end and mcp_cancel end the wait.
	ExtDenialReason = "denial_reason"
	// ExtContextWindow adds InputTokens to ProviderOpened, so that a guest can
	// make a conversation shorter before it is too long.
	ExtContextWindow = "context_window"
	// ExtSystemPrompt adds RoleSystem to the roles of a ProviderRequest.
	ExtSystemPrompt = "system_prompt"
)

// Extensions returns what this package knows, each at its newest version.
func Extensions() map[string]int {
	return map[string]int{ExtToolStarted: 1, ExtOutput: 1, ExtDenialReason: 1, ExtContextWindow: 1, ExtSystemPrompt: 1}
}

// CommonExtensions returns the names both sides know with the smaller version
// of the two; nil when there are none.
func CommonExtensions(ours, theirs map[string]int) map[string]int {
	var common map[string]int
	for name, v := range ours {
		if w := min(v, theirs[name]); w > 0 {
			if common == nil {
				common = make(map[string]int)
			}
			common[name] = w
		}
	}
	return common
}

// Kinds of an agent event that need an extension.
const (
	// EventToolStart says that a tool call begins: tool, tool_id, tool_args.
	EventToolStart = "tool_start"
	// EventOutput is output of a running command as it comes: tool, tool_id,
	// text, and stream "stdout" or "stderr".
	EventOutput = "output"
)

// Causes of a denial, in Approval.Cause.
const (
	CauseUser       = "user"        // the user said no; Reason may hold why
	CauseRule       = "rule"        // a rule or policy said no
	CauseTimeout    = "timeout"     // nobody answered in time
	CauseNoApprover = "no_approver" // there is no one to ask
	CauseCancelled  = "cancelled"   // the turn ended first
	CauseError      = "error"       // something failed; the safe answer is no
)

package approval

import "time"

// Rule answers for the user.
type Rule struct {
	ID      string    `json:"id"`
	Kind    string    `json:"kind"`
	Allow   bool      `json:"allow"`
	Session string    `json:"session,omitempty"` // "": for the workspace
	Command string    `json:"command,omitempty"`
	Workdir string    `json:"workdir,omitempty"`
	Server  string    `json:"server,omitempty"`
	MCPTool string    `json:"mcp_tool,omitempty"`
	Added   time.Time `json:"added"`
	By      string    `json:"by,omitempty"`
}

// Policy answers instead of people in a headless turn.
type Policy struct {
	Source string       `json:"source"` // "deny", "ask", or the file's name
	Ask    bool         `json:"ask,omitempty"`
	Rules  []PolicyRule `json:"rules,omitempty"`
}

// PolicyRule is one entry of a policy file.
type PolicyRule struct {
	Allow   bool     `json:"allow"`
	Kind    string   `json:"kind"`
	Command string   `json:"command,omitempty"` // the whole command
	Words   []string `json:"words,omitempty"`   // word by word; "*" is any one word, "..." at the end any number
	Server  string   `json:"server,omitempty"`
	MCPTool string   `json:"mcp_tool,omitempty"`
}

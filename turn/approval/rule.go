package approval

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Rule answers for the user: one exact command, or one tool of an MCP server,
// for one session or for the workspace.
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

// ruleFor is the rule that remembers an answer to r.
func ruleFor(r Request, a Answer, now time.Time) Rule {
	rule := Rule{Kind: r.Kind, Allow: a.Allow, Added: now, By: a.By}
	if a.Scope == ScopeSession {
		rule.Session = r.Session
	}
	switch r.Kind {
	case KindCommand:
		rule.Command, rule.Workdir = r.Command, r.Workdir
	case KindMCP:
		rule.Server, rule.MCPTool = r.Server, r.MCPTool
	}
	return rule
}

// Match tells whether the rule is about a request. A command is the same when
// both are plain words (see Words) and the words are equal, or when the bytes
// are; the working directory must be the same too. Nothing matches a part.
func (r Rule) Match(q Request) bool {
	if r.Kind != q.Kind || r.Session != "" && r.Session != q.Session {
		return false
	}
	switch r.Kind {
	case KindCommand:
		return r.Command != "" && r.Workdir == q.Workdir && sameCommand(r.Command, q.Command)
	case KindMCP:
		return r.Server != "" && r.MCPTool != "" && r.Server == q.Server && r.MCPTool == q.MCPTool
	}
	return false
}

func sameCommand(a, b string) bool {
	if a == b {
		return true
	}
	x, ok := Words(a)
	if !ok {
		return false
	}
	y, ok := Words(b)
	return ok && slices.Equal(x, y)
}

// Describe says in words what the rule matches. The text is safe to show.
func (r Rule) Describe() string {
	verb, scope := "deny", "in every session of this workspace"
	if r.Allow {
		verb = "allow"
	}
	if r.Session != "" {
		scope = "in this session"
	}
	return verb + " " + r.subject() + ", " + scope
}

func (r Rule) subject() string {
	switch r.Kind {
	case KindCommand:
		at := ""
		if r.Workdir != "" {
			at = " in " + show(r.Workdir)
		}
		if words, ok := Words(r.Command); ok {
			return fmt.Sprintf("the command of exactly %s%s: %s", count(len(words), "word"), at, showWords(words))
		}
		return fmt.Sprintf("this text alone, byte for byte (%s)%s: %s", count(len(r.Command), "byte"), at, show(r.Command))
	case KindMCP:
		return fmt.Sprintf("every call of the tool %s of the MCP server %s, whatever its arguments", show(r.MCPTool), show(r.Server))
	}
	return "nothing"
}

// check refuses a rule that cannot have been made by a Gate.
func (r Rule) check() error {
	switch {
	case r.ID == "":
		return errors.New("a rule has no id")
	case r.Kind == KindCommand && r.Command != "" && r.Server == "" && r.MCPTool == "":
		return nil
	case r.Kind == KindMCP && r.Server != "" && r.MCPTool != "" && r.Command == "" && r.Workdir == "":
		return nil
	}
	return fmt.Errorf("rule %s is about neither a command nor an MCP tool", show(r.ID))
}

// show quotes foreign text so that every character of it is visible.
func show(s string) string { return strconv.QuoteToASCII(s) }

func showWords(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = show(w)
	}
	return strings.Join(quoted, " ")
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

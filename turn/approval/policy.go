package approval

import (
	"errors"
	"fmt"
	"slices"
)

// Policy answers instead of people in a headless turn.
type Policy struct {
	Source string       `json:"source"`        // "deny", "ask", or the file's name
	Ask    bool         `json:"ask,omitempty"` // what no entry matches goes on to rules and people
	Rules  []PolicyRule `json:"rules,omitempty"`
}

// DenyAll is the policy of a turn with no one to ask. Remembered rules do not
// count in it, what the configuration allows does.
func DenyAll() *Policy { return &Policy{Source: "deny"} }

// PolicyRule is one entry of a policy file. It is about a command, whole or
// word by word, or about a tool of an MCP server.
type PolicyRule struct {
	Allow   bool     `json:"allow"`
	Command string   `json:"command,omitempty"`
	Words   []string `json:"words,omitempty"`   // AnyWord is any one word, MoreWords at the end any number
	Workdir string   `json:"workdir,omitempty"` // "": any
	Server  string   `json:"server,omitempty"`
	Tool    string   `json:"tool,omitempty"` // AnyWord: every tool
}

// Wildcards of PolicyRule.
const (
	AnyWord   = "*"
	MoreWords = "..."
)

// Match tells whether the entry is about a request. Words matches only a
// command that is nothing but plain words; see Words.
func (p PolicyRule) Match(r Request) bool {
	if r.Kind == KindMCP {
		return p.Server != "" && p.Server == r.Server && (p.Tool == AnyWord || p.Tool != "" && p.Tool == r.MCPTool)
	}
	if r.Kind != KindCommand || p.Server != "" || p.Workdir != "" && p.Workdir != r.Workdir {
		return false
	}
	if p.Command != "" {
		return sameCommand(p.Command, r.Command)
	}
	words, ok := Words(r.Command)
	return ok && matchWords(p.Words, words)
}

func matchWords(pattern, words []string) bool {
	if len(pattern) == 0 {
		return false
	}
	for i, want := range pattern {
		if want == MoreWords && i == len(pattern)-1 {
			return true
		}
		if i >= len(words) || want != AnyWord && want != words[i] {
			return false
		}
	}
	return len(pattern) == len(words)
}

// Describe says in words what the entry matches. The text is safe to show.
func (p PolicyRule) Describe() string {
	verb := "deny "
	if p.Allow {
		verb = "allow "
	}
	switch {
	case p.Server != "" && p.Tool == AnyWord:
		return verb + "every tool of the MCP server " + show(p.Server)
	case p.Server != "":
		return verb + Rule{Kind: KindMCP, Server: p.Server, MCPTool: p.Tool}.subject()
	case p.Command != "":
		return verb + Rule{Kind: KindCommand, Command: p.Command, Workdir: p.Workdir}.subject()
	}
	words, more := p.Words, ""
	if n := len(words); n > 0 && words[n-1] == MoreWords {
		words, more = words[:n-1], " followed by any number of plain words"
	}
	text := ""
	for i, w := range words {
		if i > 0 {
			text += " "
		}
		if w == AnyWord {
			text += "(any one plain word)"
		} else {
			text += show(w)
		}
	}
	at := ""
	if p.Workdir != "" {
		at = " in " + show(p.Workdir)
	}
	return fmt.Sprintf("%sa command without any shell syntax%s, of the words %s%s", verb, at, text, more)
}

// Check refuses an entry that is not about one thing.
func (p PolicyRule) Check() error {
	about := 0
	for _, set := range []bool{p.Command != "", len(p.Words) > 0, p.Server != "" || p.Tool != ""} {
		if set {
			about++
		}
	}
	switch {
	case about != 1:
		return errors.New("an entry needs one of command, words, or server and tool")
	case p.Server != "" && p.Tool == "", p.Server == "" && p.Tool != "":
		return errors.New("an entry for MCP needs server and tool; tool \"*\" is every tool")
	case p.Server != "" && p.Workdir != "":
		return errors.New("an entry for MCP has no workdir")
	}
	if len(p.Words) == 0 {
		return nil
	}
	if p.Words[0] == AnyWord || p.Words[0] == MoreWords {
		return errors.New("the first of words must name the program")
	}
	for i, w := range p.Words {
		switch {
		case w == AnyWord, w == MoreWords && i == len(p.Words)-1:
			continue
		case w == MoreWords:
			return errors.New("\"...\" can only be the last of words")
		}
		if got, ok := Words("x " + w); !ok || !slices.Equal(got, []string{"x", w}) {
			return fmt.Errorf("%s is no plain word; give the whole text as command instead", show(w))
		}
	}
	if _, ok := Words(p.Words[0]); !ok {
		return fmt.Errorf("%s is no program; give the whole text as command instead", show(p.Words[0]))
	}
	return nil
}

// Check refuses a policy with an entry that is not one.
func (p *Policy) Check() error {
	for i, rule := range p.Rules {
		if err := rule.Check(); err != nil {
			return fmt.Errorf("policy %s, entry %d: %w", show(p.Source), i+1, err)
		}
	}
	return nil
}

// match finds the entry that decides. One that denies goes before those that
// allow.
func (p *Policy) match(r Request) (Outcome, bool) {
	var found *PolicyRule
	for i := range p.Rules {
		if rule := &p.Rules[i]; rule.Match(r) && (found == nil || found.Allow && !rule.Allow) {
			found = rule
		}
	}
	if found == nil {
		return Outcome{}, false
	}
	return Outcome{Allowed: found.Allow, Cause: CauseRule, Reason: "policy " + show(p.Source) + ": " + found.Describe(), Rule: "policy"}, true
}

// rest is the answer to what no entry matches.
func (p *Policy) rest() Outcome {
	if len(p.Rules) == 0 {
		return noApprover()
	}
	return Outcome{Cause: CauseRule, Reason: "policy " + show(p.Source) + ": no entry allows it", Rule: "policy"}
}

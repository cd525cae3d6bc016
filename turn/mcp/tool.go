package mcp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"msb/protocol/turnrpc"
)

// Tool is a tool that a server offers.
type Tool struct {
	Name        string
	Description string
	Parameters  json.RawMessage // a JSON schema of an object
	// Claim is what the server says the tool does to the world. Nobody has
	// checked it, and nothing is allowed because of it.
	Claim string
}

// Bounds of what a server says of a tool, in bytes.
const (
	maxToolName    = 128
	maxDescription = 4 << 10
)

// usable checks a tool of a server.
func usable(t *sdk.Tool) (Tool, error) {
	if t == nil || t.Name == "" || len(t.Name) > maxToolName || !utf8.ValidString(t.Name) ||
		strings.ContainsFunc(t.Name, func(r rune) bool { return !unicode.IsPrint(r) || unicode.IsSpace(r) }) {
		return Tool{}, fmt.Errorf("its name is not one")
	}
	schema, err := parameters(t.InputSchema)
	if err != nil {
		return Tool{}, err
	}
	return Tool{Name: t.Name, Description: cut(t.Description, maxDescription), Parameters: schema, Claim: claim(t.Annotations)}, nil
}

// parameters checks a tool's schema: it must be of an object and not too large.
// None at all is one that says nothing.
func parameters(schema any) (json.RawMessage, error) {
	b, err := json.Marshal(schema)
	if err != nil {
		return nil, fmt.Errorf("its schema is no JSON")
	}
	if bytes.Equal(b, []byte("null")) {
		return json.RawMessage(`{"type":"object"}`), nil
	}
	if len(b) > turnrpc.MaxMCPSchema {
		return nil, fmt.Errorf("its schema has %d bytes, allowed are %d", len(b), turnrpc.MaxMCPSchema)
	}
	var object map[string]json.RawMessage
	if json.Unmarshal(b, &object) != nil || object == nil {
		return nil, fmt.Errorf("its schema is no object")
	}
	if kind, ok := object["type"]; ok && string(kind) != `"object"` {
		return nil, fmt.Errorf("its schema is of %s and not of an object", clip(string(kind), 32))
	}
	if p, ok := object["properties"]; ok {
		var properties map[string]json.RawMessage
		if json.Unmarshal(p, &properties) != nil {
			return nil, fmt.Errorf("the properties of its schema are no object")
		}
	}
	return b, nil
}

// claim puts a server's hints in words.
func claim(a *sdk.ToolAnnotations) string {
	switch {
	case a == nil:
		return ""
	case a.ReadOnlyHint:
		return "the server says that it only reads"
	case a.DestructiveHint != nil && *a.DestructiveHint:
		return "the server says that it may destroy something"
	case a.DestructiveHint != nil:
		return "the server says that it destroys nothing"
	}
	return ""
}

// text turns what a tool gave into text of at most MaxMCPResult bytes.
func text(r *sdk.CallToolResult) turnrpc.MCPResult {
	var b strings.Builder
	add := func(s string) {
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
		if room := turnrpc.MaxMCPResult + 1 - b.Len(); len(s) > room {
			s = s[:max(room, 0)+utf8.UTFMax] // cut off below
		}
		b.WriteString(s)
	}
	for _, c := range r.Content {
		if b.Len() > turnrpc.MaxMCPResult {
			break
		}
		if t, ok := c.(*sdk.TextContent); ok {
			add(t.Text)
			continue
		}
		j, err := json.Marshal(c)
		if err != nil {
			j = []byte(`"content that is no JSON"`)
		}
		add(string(j))
	}
	if len(r.Content) == 0 && r.StructuredContent != nil {
		if j, err := json.Marshal(r.StructuredContent); err == nil {
			add(string(j))
		}
	}
	whole := strings.ToValidUTF8(b.String(), "\uFFFD")
	result := turnrpc.MCPResult{Text: prefix(whole, turnrpc.MaxMCPResult), IsError: r.IsError}
	result.Truncated = len(result.Text) < len(whole)
	return result
}

// prefix is the longest beginning of at most n bytes that ends between runes.
func prefix(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// cut bounds text and says that it did.
func cut(s string, n int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= n {
		return s
	}
	return prefix(s, n-len("…")) + "…"
}

// clip bounds foreign text in an error.
func clip(s string, n int) string { return cut(s, n) }

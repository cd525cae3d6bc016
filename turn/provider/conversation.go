package provider

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"msb/protocol/turnrpc"
)

// conversation is a request in the shape that both interfaces need: groups of
// one role, each tool call followed by its result, names and ids that every
// server takes.
type conversation struct {
	system string
	groups []group
	tools  []tool
	names  names
}

// group is what one side said in one go.
type group struct {
	role    string // turnrpc.RoleUser, RoleAssistant or RoleTool
	text    string
	calls   []call   // of an assistant
	results []result // of tools
}

type call struct {
	given    string // id in the request
	id, name string // as sent
	args     string // a JSON object
	answered bool
}

type result struct{ id, text string }

type tool struct {
	name, description string
	schema            map[string]json.RawMessage // an object's
}

// arrange puts a request in shape. A call without a result gets one that says
// so, a result without its call becomes text: servers refuse both.
func arrange(req turnrpc.ProviderRequest) (*conversation, error) {
	c := &conversation{names: newNames()}
	for _, t := range req.Tools {
		schema, err := objectSchema(t.Parameters)
		if err != nil {
			return nil, fmt.Errorf("tool %q: %w", clip(t.Name), err)
		}
		c.tools = append(c.tools, tool{c.names.sent(t.Name), t.Description, schema})
	}
	ids := make(map[string]bool)
	for _, m := range req.Messages {
		switch m.Role {
		case turnrpc.RoleSystem:
			c.system = join(c.system, m.Content)
		case turnrpc.RoleUser:
			c.say(turnrpc.RoleUser, m.Content)
		case turnrpc.RoleAssistant:
			if m.Content != "" {
				c.say(turnrpc.RoleAssistant, m.Content)
			}
			if m.ToolName != "" {
				g := c.open(turnrpc.RoleAssistant)
				g.calls = append(g.calls, call{given: m.ToolID, id: uniqueID(m.ToolID, ids), name: c.names.sent(m.ToolName), args: object(m.ToolArgs)})
			}
		case turnrpc.RoleTool:
			c.answer(m)
		default:
			return nil, fmt.Errorf("unknown role %q", clip(m.Role))
		}
	}
	c.settle()
	if len(c.groups) == 0 {
		return nil, fmt.Errorf("there is nothing to say to the model")
	}
	return c, nil
}

// open returns the last group if it is of the role, else a new one.
func (c *conversation) open(role string) *group {
	if n := len(c.groups); n > 0 && c.groups[n-1].role == role {
		return &c.groups[n-1]
	}
	if role != turnrpc.RoleTool {
		c.settle()
		if n := len(c.groups); n > 0 && c.groups[n-1].role == role {
			return &c.groups[n-1]
		}
	}
	c.groups = append(c.groups, group{role: role})
	return &c.groups[len(c.groups)-1]
}

func (c *conversation) say(role, text string) {
	g := c.open(role)
	g.text = join(g.text, text)
}

// pending are the calls that wait for results: those of the last group, or of
// the one before it if the last one is results.
func (c *conversation) pending() []call {
	n := len(c.groups)
	if n > 0 && c.groups[n-1].role == turnrpc.RoleTool {
		n--
	}
	if n == 0 || c.groups[n-1].role != turnrpc.RoleAssistant {
		return nil
	}
	return c.groups[n-1].calls
}

// answer puts a result to its call.
func (c *conversation) answer(m turnrpc.Message) {
	calls := c.pending()
	for i := range calls {
		if calls[i].given == m.ToolID && !calls[i].answered {
			calls[i].answered = true
			g := c.open(turnrpc.RoleTool)
			text := m.ToolResult
			if text == "" {
				text = m.Content
			}
			g.results = append(g.results, result{calls[i].id, text})
			return
		}
	}
	c.say(turnrpc.RoleUser, "[result of an earlier tool call]\n"+m.ToolResult)
}

// settle answers the calls that have no result.
func (c *conversation) settle() {
	calls := c.pending()
	for i := range calls {
		if !calls[i].answered {
			calls[i].answered = true
			g := c.open(turnrpc.RoleTool)
			g.results = append(g.results, result{calls[i].id, "error: this call has no result"})
		}
	}
}

func join(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "\n\n" + b
}

// blank replaces text that servers refuse to take.
func blank(text, instead string) string {
	if strings.TrimSpace(text) == "" {
		return instead
	}
	return text
}

// object makes sure that arguments are a JSON object.
func object(args string) string {
	if strings.TrimSpace(args) == "" {
		return "{}"
	}
	var o map[string]json.RawMessage
	if json.Unmarshal([]byte(args), &o) == nil && o != nil {
		return args
	}
	b, _ := json.Marshal(map[string]string{"not_an_object": args})
	return string(b)
}

// objectSchema is a tool's schema as servers want it: of an object, with
// properties.
func objectSchema(raw json.RawMessage) (map[string]json.RawMessage, error) {
	schema := make(map[string]json.RawMessage)
	if len(raw) > 0 && string(raw) != "null" {
		if err := json.Unmarshal(raw, &schema); err != nil {
			return nil, fmt.Errorf("its parameters are no JSON schema of an object")
		}
	}
	if _, ok := schema["type"]; !ok {
		schema["type"] = json.RawMessage(`"object"`)
	}
	if p, ok := schema["properties"]; !ok || string(p) == "null" {
		schema["properties"] = json.RawMessage(`{}`)
	}
	return schema, nil
}

var plain = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// Limits of servers.
const (
	maxName = 64
	maxID   = 40
)

// uniqueID is an id that every server takes and no other call has.
func uniqueID(id string, used map[string]bool) string {
	sent := id
	if !plain.MatchString(id) || len(id) > maxID {
		sum := sha256.Sum256([]byte(id))
		sent = "call_" + hex.EncodeToString(sum[:12])
	}
	for n := 2; used[sent]; n++ {
		sum := sha256.Sum256(fmt.Appendf(nil, "%s %d", id, n))
		sent = "call_" + hex.EncodeToString(sum[:12])
	}
	used[sent] = true
	return sent
}

// names maps tool names to those that servers take, and back.
type names struct{ to, from map[string]string }

func newNames() names { return names{make(map[string]string), make(map[string]string)} }

var notPlain = regexp.MustCompile(`[^A-Za-z0-9_-]+`)

func (n names) sent(name string) string {
	if s, ok := n.to[name]; ok {
		return s
	}
	s := notPlain.ReplaceAllString(name, "_")
	if _, taken := n.from[s]; taken || s == "" || len(s) > maxName {
		sum := sha256.Sum256([]byte(name))
		s = s[:min(len(s), maxName-9)] + "_" + hex.EncodeToString(sum[:4])
	}
	n.to[name], n.from[s] = s, name
	return s
}

// given is the name that the guest knows; a name the model made up stays.
func (n names) given(sent string) string {
	if name, ok := n.from[sent]; ok {
		return name
	}
	return sent
}

// clip bounds foreign text in an error.
func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}

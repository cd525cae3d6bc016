package turn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"msb/protocol/turnrpc"
)

// Waits for the MCP broker.
const (
	mcpListPatience = 45 * time.Second // the host connects and lists within 30 s
	mcpCallPatience = 60 * time.Second
)

// maxToolBytes bounds the encoded tools of a request.
const maxToolBytes = 1 << 20

// mcpTools asks for the tools of the host's MCP servers. An entry that breaks the rules costs only itself.
func (a *agent) mcpTools(ctx context.Context) ([]turnrpc.MCPTool, error) {
	wait, cancel := context.WithTimeout(ctx, mcpListPatience)
	defer cancel()
	var r turnrpc.MCPTools
	if err := a.conn.Call(wait, a.nextCall(), turnrpc.MethodMCPList, struct{}{}, &r); err != nil {
		return nil, err
	}
	var tools []turnrpc.MCPTool
	seen, size := make(map[string]bool), 0
	for _, t := range r.Tools {
		if err := checkMCPTool(&t); err != nil || seen[t.Prefixed] {
			a.log.Info("a tool of an MCP server is left out", "tool", clip(t.Prefixed, 128), "err", err)
			continue
		}
		t.Description = clip(t.Description, 8<<10)
		size += len(t.Parameters) + len(t.Description) + len(t.Prefixed) + 64
		if len(tools) == turnrpc.MaxMCPTools || size > maxToolBytes {
			a.log.Info("there are more tools of MCP servers than a request holds; the rest is left out")
			break
		}
		seen[t.Prefixed] = true
		tools = append(tools, t)
	}
	return tools, nil
}

func checkMCPTool(t *turnrpc.MCPTool) error {
	switch {
	case t.Server == "" || t.Name == "" || t.Prefixed != t.Server+turnrpc.MCPSeparator+t.Name:
		return errors.New("its name is not SERVER__TOOL")
	case len(t.Prefixed) > 256:
		return errors.New("its name is too long")
	case builtin(t.Prefixed) != nil:
		return errors.New("its name is a tool's of the agent")
	case len(t.Parameters) > turnrpc.MaxMCPSchema:
		return errors.New("its schema is too large")
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(t.Parameters, &object); err != nil || object == nil {
		return errors.New("its schema is no object")
	}
	return nil
}

// callMCP calls a tool of an MCP server. A host that asks its user first may take as long as the turn has.
func (a *agent) callMCP(ctx context.Context, tool *turnrpc.MCPTool, args string) (string, error) {
	id := "mcp-" + strconv.FormatUint(a.mcpCalls.Add(1), 10)
	wait, cancel := ctx, context.CancelFunc(func() {})
	if !a.hostKnows(turnrpc.ExtDenialReason) {
		wait, cancel = context.WithTimeout(ctx, mcpCallPatience)
	}
	defer cancel()
	var r turnrpc.MCPResult
	err := a.conn.Call(wait, a.nextCall(), turnrpc.MethodMCPCall, turnrpc.MCPCall{
		CallID: id, Server: tool.Server, Tool: tool.Name, Arguments: json.RawMessage(args),
	}, &r)
	if err != nil && wait.Err() != nil {
		a.tellCancel(turnrpc.MethodMCPCancel, turnrpc.MCPCancel{CallID: id})
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		return "", fmt.Errorf("the tool did not answer in %v", mcpCallPatience)
	}
	if err != nil {
		return "", err
	}
	text := middleCut(r.Text, maxModelResult)
	if r.Truncated {
		text += "\n[the result was cut by the host]"
	}
	if r.IsError {
		return "", errors.New(text)
	}
	return text, nil
}

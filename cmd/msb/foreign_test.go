package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"msb/protocol/turnrpc"
)

// foreignGuest is a turn agent that knows the plain contract of its version and nothing of ours, in a machine that is not
// of ours: it dials the host's socket, and plays a whole turn with one tool at a time.
type foreignGuest struct {
	t       *testing.T
	version int
	conn    *turnrpc.Conn
	calls   int
	streams chan turnrpc.ProviderEvent

	mu    sync.Mutex
	heard []*turnrpc.Frame // all that the host said
}

// meet waits for the file with what it must know, dials and says hello; it runs until the host ends the connection.
func (g *foreignGuest) meet(socket string) error {
	var config turnrpc.GuestConfig
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		b, err := os.ReadFile(socket + ".json")
		if err == nil {
			err = json.Unmarshal(b, &config)
		}
		if err == nil {
			break
		}
		if time.Now().After(end) {
			return err
		}
	}
	if len(config.Secrets)+len(config.MCPServers) > 0 || config.Model.BaseURL+config.Model.CredentialEnv != "" {
		return fmt.Errorf("the guest is told too much: %+v", config)
	}
	c, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	g.streams = make(chan turnrpc.ProviderEvent, 1000)
	var turns sync.WaitGroup
	defer turns.Wait()
	g.conn = turnrpc.NewConn(c, func(f *turnrpc.Frame) {
		g.mu.Lock()
		g.heard = append(g.heard, f)
		g.mu.Unlock()
		switch f.Method {
		case turnrpc.MethodListFiles:
			g.conn.Respond(context.Background(), f.ID, "guest", turnrpc.ListFilesResult{Paths: []string{"old\x1bfile"}})
		case turnrpc.MethodUserTurn:
			turns.Go(func() { g.turn(f) })
		case turnrpc.MethodShutdown:
			turns.Go(func() { g.conn.Respond(context.Background(), f.ID, "guest", turnrpc.OK{OK: true}) })
		case turnrpc.MethodProviderEvent:
			var e turnrpc.ProviderEvent
			if err := f.DecodeParams(&e); err == nil {
				g.streams <- e
			}
		}
	})
	served := make(chan error, 1)
	go func() { served <- g.conn.Serve() }()
	hello := map[string]any{"session_id": config.SessionID, "capability": config.Capability, "image_id": "foreign-1", "guest_ready": true}
	if g.version > 0 {
		hello["protocol"] = g.version
	}
	answer, err := g.call("hello", turnrpc.MethodHello, hello)
	if err == nil && g.version == turnrpc.Version && string(answer) != `{"accepted":true,"protocol":4}` {
		g.t.Errorf("the answer to hello is %s", answer)
	}
	<-served
	return nil
}

// call calls the host and returns the result as it came.
func (g *foreignGuest) call(id, method string, params any) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	p, err := g.conn.Start(ctx, id, method, params)
	if err != nil {
		return nil, err
	}
	select {
	case f := <-p.Answered():
		if f.Error != nil {
			return nil, f.Error
		}
		return f.Result, nil
	case <-g.conn.Done():
		return nil, g.conn.Err()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (g *foreignGuest) ask(method string, params any) (json.RawMessage, error) {
	g.calls++
	return g.call(fmt.Sprintf("g-%d", g.calls), method, params)
}

func (g *foreignGuest) event(turn string, e turnrpc.AgentEvent) {
	g.conn.Notify(context.Background(), turn, turnrpc.MethodAgentEvent, e)
}

// turn plays a turn, and answers it.
func (g *foreignGuest) turn(f *turnrpc.Frame) {
	var u turnrpc.UserTurn
	err := f.DecodeParams(&u)
	if err == nil {
		err = g.play(f.ID, u)
	}
	if err != nil {
		g.event(f.ID, turnrpc.AgentEvent{Kind: turnrpc.EventError, Err: err.Error()})
		g.conn.Fail(context.Background(), f.ID, turnrpc.CodeAgent, err.Error())
		return
	}
	g.event(f.ID, turnrpc.AgentEvent{Kind: turnrpc.EventDone})
	g.conn.Respond(context.Background(), f.ID, turnrpc.CodeAgent, turnrpc.OK{OK: true})
}

func (g *foreignGuest) play(turn string, u turnrpc.UserTurn) error {
	list, err := g.ask(turnrpc.MethodMCPList, struct{}{})
	if err != nil {
		return err
	}
	var tools turnrpc.MCPTools
	if err := json.Unmarshal(list, &tools); err != nil {
		return err
	}
	req := turnrpc.ProviderRequest{Messages: []turnrpc.Message{{Role: turnrpc.RoleUser, Content: u.Text}}}
	for _, name := range []string{"list_files", "read_file", "search", "apply_patch", "run_command"} {
		req.Tools = append(req.Tools, turnrpc.Tool{Name: name, Parameters: json.RawMessage(`{"type":"object"}`)})
	}
	servers := map[string]turnrpc.MCPTool{}
	for _, t := range tools.Tools {
		servers[t.Prefixed] = t
		req.Tools = append(req.Tools, turnrpc.Tool{Name: t.Prefixed, Description: t.Description, Parameters: t.Parameters})
	}
	for range turnrpc.DefaultMaxTurns {
		calls, err := g.model(turn, req)
		if err != nil {
			return err
		}
		if len(calls) == 0 {
			return nil
		}
		for _, c := range calls {
			result, err := g.tool(turn, c, servers)
			e := turnrpc.AgentEvent{Kind: turnrpc.EventTool, Tool: c.ToolName, ToolID: c.ToolID, ToolArgs: c.ToolArgs, Status: turnrpc.StatusOK, Text: result}
			if err != nil {
				e.Status, e.Err, e.Text, result = turnrpc.StatusError, err.Error(), "", "error: "+err.Error()
			}
			g.event(turn, e)
			req.Messages = append(req.Messages,
				turnrpc.Message{Role: turnrpc.RoleAssistant, ToolID: c.ToolID, ToolName: c.ToolName, ToolArgs: c.ToolArgs},
				turnrpc.Message{Role: turnrpc.RoleTool, ToolID: c.ToolID, ToolResult: result})
		}
	}
	return errors.New("turn limit reached")
}

// model asks the model and returns its calls.
func (g *foreignGuest) model(turn string, req turnrpc.ProviderRequest) ([]turnrpc.ProviderEvent, error) {
	opened, err := g.ask(turnrpc.MethodProviderOpen, turnrpc.ProviderOpen{Model: "demo", Rich: true})
	if err != nil {
		return nil, err
	}
	var stream map[string]any
	if err := json.Unmarshal(opened, &stream); err != nil || len(stream) != 1 {
		return nil, fmt.Errorf("provider_open: %s", opened)
	}
	body, err := json.Marshal(req)
	if err != nil {
		return nil, err
	}
	for len(body) > 0 {
		n := min(len(body), 1000)
		if _, err := g.ask(turnrpc.MethodProviderSend, turnrpc.ProviderSend{StreamID: stream["stream_id"].(string), Data: body[:n], Last: n == len(body)}); err != nil {
			return nil, err
		}
		body = body[n:]
	}
	var calls []turnrpc.ProviderEvent
	for {
		select {
		case e := <-g.streams:
			switch e.Type {
			case turnrpc.ProviderText:
				g.event(turn, turnrpc.AgentEvent{Kind: turnrpc.EventText, Text: e.Text})
			case turnrpc.ProviderTool:
				calls = append(calls, e)
			case turnrpc.ProviderDone:
				return calls, nil
			case turnrpc.ProviderError:
				return nil, errors.New(e.Err)
			}
		case <-g.conn.Done():
			return nil, g.conn.Err()
		}
	}
}

// tool plays a tool: there are no files and no commands here.
func (g *foreignGuest) tool(turn string, c turnrpc.ProviderEvent, servers map[string]turnrpc.MCPTool) (string, error) {
	if t, ok := servers[c.ToolName]; ok {
		r, err := g.ask(turnrpc.MethodMCPCall, turnrpc.MCPCall{CallID: fmt.Sprint("mcp-", g.calls), Server: t.Server, Tool: t.Name, Arguments: json.RawMessage(c.ToolArgs)})
		if err != nil {
			return "", err
		}
		var result turnrpc.MCPResult
		if err := json.Unmarshal(r, &result); err != nil || result.IsError {
			return "", errors.New(result.Text)
		}
		return result.Text, nil
	}
	if c.ToolName != turnrpc.MethodRunCommand {
		return "[]", nil
	}
	var args struct{ Command string }
	if err := json.Unmarshal([]byte(c.ToolArgs), &args); err != nil {
		return "", err
	}
	g.event(turn, turnrpc.AgentEvent{Kind: turnrpc.EventApproval, Tool: c.ToolName, Status: turnrpc.StatusPending, ToolID: c.ToolID})
	answer, err := g.ask(turnrpc.MethodRequestApproval, turnrpc.ApprovalRequest{TurnID: turn, ToolID: c.ToolID, Command: args.Command, TimeoutSec: 60})
	switch {
	case err != nil:
		return "", err
	case string(answer) == `{"decision":"deny"}`:
		return "", errors.New("run_command denied")
	case string(answer) != `{"decision":"allow_once"}`:
		g.t.Errorf("a plain guest is answered %s", answer)
	}
	return "exit=0\nLinux 6\n", nil
}

// runForeign runs msb with a guest that dials it.
func runForeign(t *testing.T, home string, g *foreignGuest, args ...string) (out string, code int) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	met := make(chan error, 1)
	go func() { met <- g.meet(socket) }()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(suite.bin, "msb"), append(args, "--rpc-socket", socket)...)
	cmd.Env, cmd.Dir = testEnv(home), home
	b, _ := cmd.CombinedOutput()
	if err := <-met; err != nil {
		t.Error(err)
	}
	for _, left := range []string{socket, socket + ".json"} {
		if _, err := os.Stat(left); err == nil {
			t.Errorf("%s is left behind", left)
		}
	}
	return string(b), cmd.ProcessState.ExitCode()
}

func TestForeignGuest(t *testing.T) {
	home, err := newHome(false)
	if err != nil {
		t.Fatal(err)
	}
	policy := writePolicy(t, home, "  - allow: {server: demo, tool: \"*\"}\n  - allow: {command: \"uname -sr && ls -l\"}\n")
	t.Run("turn", func(t *testing.T) {
		g := &foreignGuest{t: t, version: 4}
		out, code := runForeign(t, home, g, "turn", "--prompt", "hi", "--json", "--approve", policy)
		if code != exitOK {
			t.Fatalf("exit code %d\n%s", code, out)
		}
		for _, want := range []string{`"kind":"text"`, `"kind":"approval","tool":"run_command","status":"allowed"`, `"status":"ok","tool_id"`, `"kind":"done"`, `"kind":"end","status":"ok"`} {
			if !strings.Contains(out, want) {
				t.Errorf("no %s in\n%s", want, out)
			}
		}
		if strings.Contains(out, `"kind":"tool_start"`) || strings.Contains(out, `"kind":"output"`) {
			t.Errorf("a plain guest has no such events:\n%s", out)
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		for _, f := range g.heard { // nothing that is not of the contract
			switch f.Method {
			case turnrpc.MethodUserTurn, turnrpc.MethodProviderEvent, turnrpc.MethodShutdown, turnrpc.MethodCancelTurn:
			default:
				t.Errorf("the host said %q %q", f.Method, f.ID)
			}
		}
	})
	t.Run("workspace", func(t *testing.T) {
		out, err := msb(t, home, "turn", "--rpc-socket", filepath.Join(home, "s"), "--prompt", "hi", "--workspace", home)
		if err == nil || !strings.Contains(out, "for sandboxes of msb's own") {
			t.Errorf("%v, %s", err, out)
		}
	})
	t.Run("denied", func(t *testing.T) {
		out, code := runForeign(t, home, &foreignGuest{t: t, version: 4}, "turn", "--prompt", "hi", "--approve", "deny")
		if code != exitDenied || !strings.Contains(out, "denied because there is no one to ask") {
			t.Errorf("exit code %d\n%s", code, out)
		}
	})
	for version := range 4 {
		t.Run(fmt.Sprint("version ", version), func(t *testing.T) {
			out, code := runForeign(t, home, &foreignGuest{t: t, version: version}, "turn", "--prompt", "hi")
			said := fmt.Sprintf("guest protocol too old: it speaks %d and 4 is needed; run `make build && make image-update`, restart the sandbox and open a new session", max(version, 1))
			if code != exitFailure || !strings.Contains(out, said) {
				t.Errorf("exit code %d\n%s", code, out)
			}
			out, code = runForeign(t, home, &foreignGuest{t: t, version: version}, "probe")
			if code != exitOK || !strings.Contains(out, fmt.Sprintf("protocol %d, image foreign-1", max(version, 1))) || !strings.Contains(out, `old\x1bfile`) || !strings.Contains(out, "too old for turns") {
				t.Errorf("exit code %d\n%s", code, out)
			}
		})
	}
	t.Run("version 5", func(t *testing.T) {
		out, code := runForeign(t, home, &foreignGuest{t: t, version: 5}, "probe")
		if code != exitFailure || !strings.Contains(out, "update msb") {
			t.Errorf("exit code %d\n%s", code, out)
		}
	})
}

package turn_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"msb/guest/turn"
	"msb/guest/turn/turntest"
	"msb/protocol/turnrpc"
)

// play runs one turn against answers, the last of which is repeated, and returns events, end, and all requests.
func play(t *testing.T, s turntest.Script, u turnrpc.UserTurn, answers ...[]turnrpc.ProviderEvent) ([]turnrpc.AgentEvent, *session, []turnrpc.ProviderRequest, error) {
	t.Helper()
	s.Model = func(n int, _ turnrpc.ProviderRequest) []turnrpc.ProviderEvent {
		return answers[min(n, len(answers)-1)]
	}
	a := start(t, s)
	if u.Text == "" {
		u.Text = "go"
	}
	events, err := a.Start(u).Wait()
	var requests []turnrpc.ProviderRequest
	for len(a.Requests) > 0 {
		requests = append(requests, <-a.Requests)
	}
	return events, a, requests, err
}

func results(r turnrpc.ProviderRequest) []string {
	var list []string
	for _, m := range r.Messages {
		if m.Role == turnrpc.RoleTool {
			list = append(list, m.ToolResult)
		}
	}
	return list
}

// checkPairs fails when a call has no result right behind it or a result no call.
func checkPairs(t *testing.T, messages []turnrpc.Message) {
	t.Helper()
	for i, m := range messages {
		if m.ToolName != "" && (i+1 == len(messages) || messages[i+1].Role != turnrpc.RoleTool || messages[i+1].ToolID != m.ToolID) {
			t.Fatalf("message %d is a call without its result", i)
		}
		if m.Role == turnrpc.RoleTool && (i == 0 || messages[i-1].ToolID != m.ToolID) {
			t.Fatalf("message %d is a result without its call", i)
		}
	}
}

func TestSeveralCallsInOneAnswer(t *testing.T) {
	answer := append([]turnrpc.ProviderEvent{{Type: turnrpc.ProviderText, Text: "Let me see."}},
		turntest.Use([2]string{"list_files", `{"path":"."}`}, [2]string{"read_file", `{"path":"a"}`}, [2]string{"read_file", `{"path":"none"}`})...)
	events, _, requests, err := play(t, turntest.Script{}, turnrpc.UserTurn{RichEvents: true}, answer, turntest.Say("done"))
	if got, want := turntest.Kinds(events), "text tool:ok tool:error tool:error text result done"; err != nil || got != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
	m := requests[1].Messages
	checkPairs(t, m)
	if len(m) != 8 || m[1].Role != turnrpc.RoleAssistant || m[1].Content != "Let me see." || m[1].ToolName != "" {
		t.Errorf("the text beside the calls is not kept: %+v", m)
	}
	if got := results(requests[1]); !strings.Contains(got[2], "none") || !strings.HasPrefix(got[2], "error: ") {
		t.Errorf("results: %q", got)
	}
}

// What a model can do wrong goes back to it as an error, and the turn goes on.
func TestModelsMistakes(t *testing.T) {
	for name, c := range map[string]struct{ tool, args, want string }{
		"unknown tool":      {"rm_rf", `{}`, `there is no tool "rm_rf"; there are list_files, read_file`},
		"no name":           {"", `{}`, "there is no tool"},
		"odd name":          {"read file\n", `{}`, "there is no tool"},
		"half JSON":         {"read_file", `{"path": "a`, "no JSON object"},
		"array":             {"read_file", `["a"]`, "no JSON object"},
		"null":              {"read_file", `null`, "no JSON object"},
		"missing":           {"read_file", ``, `"path" is missing`},
		"wrong type":        {"read_file", `{"path":7}`, `"path" is a number`},
		"bad number":        {"read_file", `{"path":"a","start_line":"x"}`, "should be a int"},
		"backwards":         {"read_file", `{"path":"a","start_line":5,"end_line":2}`, "before"},
		"outside":           {"read_file", `{"path":"../../etc/passwd"}`, "outside"},
		"absolute":          {"read_file", `{"path":"/etc/passwd"}`, "outside"},
		"NUL in path":       {"read_file", `{"path":"a\u0000b"}`, "NUL"},
		"bad regex":         {"search", `{"query":"(","is_regex":true}`, "regular expression"},
		"empty query":       {"search", `{"query":""}`, "empty"},
		"empty command":     {"run_command", `{"command":""}`, "empty"},
		"NUL in command":    {"run_command", `{"command":"a\u0000b"}`, "NUL"},
		"long command":      {"run_command", `{"command":"` + strings.Repeat("x", 16385) + `"}`, "16385 bytes"},
		"workdir outside":   {"run_command", `{"command":"ls","workdir":"../.."}`, "outside"},
		"workdir is a file": {"run_command", `{"command":"ls","workdir":"none"}`, "no such file"},
		"no patch":          {"apply_patch", `{"patch":"please change a"}`, "no unified diff"},
		"MCP that is not":   {"svc__echo", `{}`, "there is no tool"},
	} {
		t.Run(name, func(t *testing.T) {
			asked := false
			s := turntest.Script{Approve: func(turnrpc.ApprovalRequest) turnrpc.Approval { asked = true; return turnrpc.Approval{} }}
			_, _, requests, err := play(t, s, turnrpc.UserTurn{}, turntest.Use([2]string{c.tool, c.args}), turntest.Say("sorry"))
			if err != nil {
				t.Fatal(err)
			}
			got := turntest.Last(requests[1])
			if !strings.HasPrefix(got, "error: ") || !strings.Contains(got, c.want) {
				t.Errorf("the model was told %.300q, want %q", got, c.want)
			}
			if asked {
				t.Error("the user was asked")
			}
			for _, m := range requests[1].Messages {
				var object map[string]any
				if m.ToolName != "" && json.Unmarshal([]byte(m.ToolArgs), &object) != nil {
					t.Errorf("arguments that are no object were kept: %q", m.ToolArgs)
				}
			}
			checkPairs(t, requests[1].Messages)
		})
	}
}

func TestNumbersAsModelsWriteThem(t *testing.T) {
	a := start(t, turntest.Script{Model: func(n int, _ turnrpc.ProviderRequest) []turnrpc.ProviderEvent {
		if n == 0 {
			return turntest.Use([2]string{"read_file", `{"path":"a","start_line":"2","end_line":2.0}`})
		}
		return turntest.Say("ok")
	}})
	a.write(t, "a", "1\n2\n3\n")
	if _, err := a.Start(turnrpc.UserTurn{Text: "x"}).Wait(); err != nil {
		t.Fatal(err)
	}
	<-a.Requests
	if got := turntest.Last(<-a.Requests); got != "2\n" {
		t.Errorf("got %q", got)
	}
}

func TestSameCallForEver(t *testing.T) {
	t.Run("in a row", func(t *testing.T) {
		_, _, requests, err := play(t, turntest.Script{}, turnrpc.UserTurn{MaxTurns: 1000}, turntest.Use([2]string{"list_files", `{"path":"."}`}))
		if err == nil || !strings.Contains(err.Error(), "same call of list_files") || len(requests) > 10 {
			t.Errorf("after %d requests: %v", len(requests), err)
		}
		if got := turntest.Last(requests[len(requests)-1]); !strings.Contains(got, "not run again") {
			t.Errorf("the model was not warned: %q", got)
		}
	})
	t.Run("with others in between", func(t *testing.T) {
		a := start(t, turntest.Script{Model: func(n int, _ turnrpc.ProviderRequest) []turnrpc.ProviderEvent {
			return turntest.Use([2]string{"list_files", fmt.Sprintf(`{"path":".","depth":%d}`, n%3+1)})
		}})
		_, err := a.Start(turnrpc.UserTurn{Text: "x", MaxTurns: 1000}).Wait()
		if err == nil || !strings.Contains(err.Error(), "same call of list_files") {
			t.Error(err)
		}
	})
	t.Run("limit of round trips", func(t *testing.T) {
		n := 0
		a := start(t, turntest.Script{Model: func(int, turnrpc.ProviderRequest) []turnrpc.ProviderEvent {
			n++
			return turntest.Use([2]string{"search", fmt.Sprintf(`{"query":"%d"}`, n)})
		}})
		events, err := a.Start(turnrpc.UserTurn{Text: "x", MaxTurns: 3}).Wait()
		var e *turnrpc.Error
		if !errors.As(err, &e) || e.Code != turnrpc.CodeAgent || !strings.HasPrefix(e.Message, "turn limit reached") || n != 3 {
			t.Errorf("after %d: %v", n, err)
		}
		if got := turntest.Kinds(events); got != "tool:ok tool:ok tool:ok error" {
			t.Error(got)
		}
	})
}

// What a stream can do wrong ends the turn with an error, never with success.
func TestBrokenStreams(t *testing.T) {
	text := func(s string) turnrpc.ProviderEvent {
		return turnrpc.ProviderEvent{Type: turnrpc.ProviderText, Text: s}
	}
	big := make([]turnrpc.ProviderEvent, 0, 300)
	for range 300 { // 100 MB in all, did the agent take it
		big = append(big, text(strings.Repeat("x", 350_000)))
	}
	calls := turnrpc.ProviderEvent{Type: turnrpc.ProviderTool, ToolName: "list_files"}
	many := make([]turnrpc.ProviderEvent, 100)
	for i := range many {
		many[i] = calls
	}
	for name, c := range map[string]struct {
		events []turnrpc.ProviderEvent
		want   string
		cancel bool
	}{
		"error":            {[]turnrpc.ProviderEvent{{Type: turnrpc.ProviderError, Err: "upstream died"}}, "upstream died", false},
		"error after text": {[]turnrpc.ProviderEvent{text("half an ans"), {Type: turnrpc.ProviderError, Err: "cut off"}}, "cut off", false},
		"error after call": {[]turnrpc.ProviderEvent{calls, {Type: turnrpc.ProviderError, Err: "cut off"}}, "cut off", false},
		"wordless error":   {[]turnrpc.ProviderEvent{{Type: turnrpc.ProviderError}}, "failed", false},
		"100 MB":           {big, "longer than", true},
		"100 calls":        {many, "too many tools", true},
	} {
		t.Run(name, func(t *testing.T) {
			events, a, _, err := play(t, turntest.Script{}, turnrpc.UserTurn{RichEvents: true}, c.events)
			var e *turnrpc.Error
			if !errors.As(err, &e) || e.Code != turnrpc.CodeAgent || !strings.Contains(e.Message, c.want) {
				t.Errorf("%v", err)
			}
			if got := turntest.Kinds(events); !strings.HasSuffix(got, "error") || strings.Contains(got, "done") || strings.Contains(got, "tool") {
				t.Errorf("events %s", got)
			}
			if c.cancel {
				a.AwaitCall(turnrpc.MethodProviderCancel)
			}
		})
	}
	t.Run("text before the error is kept", func(t *testing.T) {
		_, a, _, _ := play(t, turntest.Script{}, turnrpc.UserTurn{}, []turnrpc.ProviderEvent{text("half an ans"), {Type: turnrpc.ProviderError, Err: "x"}}, turntest.Say("k"))
		if _, err := a.Start(turnrpc.UserTurn{Text: "again"}).Wait(); err != nil {
			t.Fatal(err)
		}
		if m := (<-a.Requests).Messages; len(m) != 3 || m[1].Content != "half an ans" {
			t.Errorf("%+v", m)
		}
	})
	t.Run("unknown and odd events", func(t *testing.T) {
		_, _, _, err := play(t, turntest.Script{}, turnrpc.UserTurn{}, []turnrpc.ProviderEvent{
			{Type: "thinking", Text: "x"}, {}, text("ok"), {Type: turnrpc.ProviderDone}, text("late"), {Type: turnrpc.ProviderError, Err: "late"}})
		if err != nil {
			t.Error(err)
		}
	})
	t.Run("open is refused", func(t *testing.T) {
		_, _, _, err := play(t, turntest.Script{Open: func(turnrpc.ProviderOpen) error { return errors.New("offline mode") }}, turnrpc.UserTurn{}, nil)
		if err == nil || !strings.Contains(err.Error(), "offline mode") {
			t.Error(err)
		}
	})
	t.Run("silence", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := start(t, turntest.Script{Model: func(int, turnrpc.ProviderRequest) []turnrpc.ProviderEvent { return nil }})
			p, err := func() (*turnrpc.Pending, error) {
				a.Greeted()
				return a.Conn.Start(t.Context(), "77", turnrpc.MethodUserTurn, turnrpc.UserTurn{Text: "x"})
			}()
			if err != nil {
				t.Fatal(err)
			}
			begun := time.Now()
			err = p.Wait(t.Context(), nil)
			if err == nil || !strings.Contains(err.Error(), "sent nothing") {
				t.Error(err)
			}
			if took := time.Since(begun); took < 5*time.Minute || took > 10*time.Minute {
				t.Errorf("after %v", took)
			}
		})
	})
}

func TestRequestIsSentInChunks(t *testing.T) {
	a := start(t, turntest.Script{Model: func(int, turnrpc.ProviderRequest) []turnrpc.ProviderEvent { return turntest.Say("k") }})
	if _, err := a.Start(turnrpc.UserTurn{Text: strings.Repeat("y", 300_000)}).Wait(); err != nil {
		t.Fatal(err)
	}
	var sizes []int
	for len(a.Calls) > 0 {
		f := <-a.Calls
		if f.Method != turnrpc.MethodProviderSend {
			continue
		}
		var p turnrpc.ProviderSend
		_ = f.DecodeParams(&p)
		if p.Last != (len(p.Data) < turnrpc.MaxProviderChunk) {
			t.Errorf("a piece of %d bytes has last %v", len(p.Data), p.Last)
		}
		sizes = append(sizes, len(p.Data))
	}
	if len(sizes) != 2 || sizes[0] != turnrpc.MaxProviderChunk {
		t.Errorf("pieces of %v bytes", sizes)
	}
}

func TestOneTurnAtATime(t *testing.T) {
	a := start(t, turntest.Script{Model: func(int, turnrpc.ProviderRequest) []turnrpc.ProviderEvent { return nil }})
	first := a.Start(turnrpc.UserTurn{Text: "x"})
	a.AwaitCall(turnrpc.MethodProviderOpen)
	_, err := a.Start(turnrpc.UserTurn{Text: "y"}).Wait()
	var e *turnrpc.Error
	if !errors.As(err, &e) || e.Code != turnrpc.CodeGuest || e.Message != "turn already in progress" {
		t.Error(err)
	}
	if err := a.Call(turnrpc.MethodQuiesce, nil, nil); err == nil {
		t.Error("quiesced in a turn")
	}
	first.Cancel()
	if _, err := first.Wait(); err == nil {
		t.Error("the canceled turn succeeded")
	}
}

// Cancel at each state: the turn answers canceled at once, tells the host what it gives up, and the next turn works.
func TestCancel(t *testing.T) {
	tool := []turnrpc.MCPTool{{Server: "svc", Name: "echo", Prefixed: "svc__echo", Parameters: json.RawMessage(`{"type":"object"}`)}}
	never := func(ctx context.Context, _ turnrpc.MCPCall) (turnrpc.MCPResult, error) {
		<-ctx.Done()
		return turnrpc.MCPResult{}, ctx.Err()
	}
	hang := func(hang []turnrpc.ProviderEvent) func(int, turnrpc.ProviderRequest) []turnrpc.ProviderEvent {
		return func(n int, _ turnrpc.ProviderRequest) []turnrpc.ProviderEvent {
			if n == 0 {
				return hang
			}
			return turntest.Say("next")
		}
	}
	opens := 0
	for name, c := range map[string]struct {
		script turntest.Script
		until  func(a *session)
		cancel string // method that must follow
	}{
		"while the model thinks": {
			turntest.Script{Model: hang(nil)},
			func(a *session) { a.AwaitCall(turnrpc.MethodProviderSend) }, turnrpc.MethodProviderCancel,
		},
		"while the model speaks": {
			turntest.Script{Model: hang([]turnrpc.ProviderEvent{{Type: turnrpc.ProviderText, Text: "I"}})},
			func(a *session) { a.Await("text", func(e turnrpc.AgentEvent) bool { return e.Kind == "text" }) }, turnrpc.MethodProviderCancel,
		},
		"while the user is asked": {
			turntest.Script{
				Model:   hang(turntest.Use(turntest.Command("touch ran"))),
				Approve: func(turnrpc.ApprovalRequest) turnrpc.Approval { return turnrpc.Approval{} },
			},
			func(a *session) { a.AwaitCall(turnrpc.MethodRequestApproval) }, "",
		},
		"while a command runs": {
			turntest.Script{Hello: extensions, Model: hang(turntest.Use(turntest.Command("echo on; sleep 1000"))), Approve: allow},
			func(a *session) {
				a.Await("output", func(e turnrpc.AgentEvent) bool { return e.Kind == turnrpc.EventOutput })
			}, "",
		},
		"while an MCP tool runs": {
			turntest.Script{Model: hang(turntest.Use([2]string{"svc__echo", `{}`})), Tools: tool, Call: never},
			func(a *session) { a.AwaitCall(turnrpc.MethodMCPCall) }, turnrpc.MethodMCPCancel,
		},
		"while a stream is opened": {
			turntest.Script{Model: hang(nil), Open: func(turnrpc.ProviderOpen) error {
				if opens++; opens == 1 {
					time.Sleep(300 * time.Millisecond) // the answer comes late, and must be cancelled
				}
				return nil
			}},
			func(a *session) { a.AwaitCall(turnrpc.MethodProviderOpen) }, turnrpc.MethodProviderCancel,
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := start(t, c.script)
			turn := a.Start(turnrpc.UserTurn{Text: "x"})
			c.until(a)
			turn.Cancel()
			events, err := turn.Wait()
			var e *turnrpc.Error
			if !errors.As(err, &e) || e.Code != turnrpc.CodeCanceled {
				t.Errorf("%v", err)
			}
			if got := turntest.Kinds(events); strings.Contains(got, "done") || strings.Contains(got, "error") {
				t.Errorf("events %s", got)
			}
			if c.cancel != "" {
				a.AwaitCall(c.cancel)
			}
			if a.runner.left() != 0 {
				t.Error("the command still runs")
			}
			if _, err := os.Stat(filepath.Join(a.repo, "ran")); err == nil {
				t.Error("a command ran that nobody allowed")
			}
			for len(a.Requests) > 0 {
				<-a.Requests
			}
			if name == "while a stream is opened" {
				return // its first request is still to come, and would never be answered
			}
			if _, err := a.Start(turnrpc.UserTurn{Text: "y"}).Wait(); err != nil {
				t.Errorf("the next turn: %v", err)
			} else {
				checkPairs(t, (<-a.Requests).Messages)
			}
		})
	}
}

func TestDeadline(t *testing.T) {
	a := start(t, turntest.Script{Approve: allow, Model: func(int, turnrpc.ProviderRequest) []turnrpc.ProviderEvent {
		return turntest.Use(turntest.Command("sleep 1000"))
	}})
	_, err := a.Start(turnrpc.UserTurn{Text: "x", TimeoutSec: 1}).Wait()
	var e *turnrpc.Error
	if !errors.As(err, &e) || e.Code != turnrpc.CodeCanceled || a.runner.left() != 0 {
		t.Errorf("%v, %d commands left", err, a.runner.left())
	}
}

func TestCancelOfAnotherTurnIsIgnored(t *testing.T) {
	a := start(t, turntest.Script{Model: func(int, turnrpc.ProviderRequest) []turnrpc.ProviderEvent { return turntest.Say("k") }})
	if err := a.Call(turnrpc.MethodCancelTurn, turnrpc.CancelTurn{ID: "99"}, nil); err != nil {
		t.Error(err)
	}
	if _, err := a.Start(turnrpc.UserTurn{Text: "x"}).Wait(); err != nil {
		t.Error(err)
	}
}

func TestShutdownInATurn(t *testing.T) {
	a := start(t, turntest.Script{Model: func(int, turnrpc.ProviderRequest) []turnrpc.ProviderEvent { return nil }})
	turn := a.Start(turnrpc.UserTurn{Text: "x"})
	a.AwaitCall(turnrpc.MethodProviderOpen)
	if err := a.Call(turnrpc.MethodShutdown, turnrpc.OK{OK: true}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := turn.Wait(); err == nil {
		t.Error("the turn succeeded")
	}
	if err := <-a.done; err != nil {
		t.Error(err)
	}
	a.done <- nil
}

func TestApproval(t *testing.T) {
	reasons := func(d turnrpc.Approval) turntest.Script {
		return turntest.Script{Hello: extensions, Approve: func(turnrpc.ApprovalRequest) turnrpc.Approval { return d }}
	}
	plain := func(decision string) turntest.Script {
		return turntest.Script{Approve: func(turnrpc.ApprovalRequest) turnrpc.Approval {
			return turnrpc.Approval{Decision: decision, Cause: "user", Reason: "not for you"}
		}}
	}
	for name, c := range map[string]struct {
		script turntest.Script
		want   string
	}{
		"deny":         {plain("deny"), "error: run_command denied"},
		"unknown":      {plain("allow_always"), "error: run_command denied"},
		"case":         {plain("Allow_once"), "error: run_command denied"},
		"user":         {reasons(turnrpc.Approval{Decision: "deny", Cause: "user", Reason: "use make"}), "error: run_command denied by the user: use make"},
		"rule":         {reasons(turnrpc.Approval{Decision: "deny", Cause: "rule"}), "error: run_command denied by a rule of the user"},
		"timeout":      {reasons(turnrpc.Approval{Decision: "deny", Cause: "timeout"}), "error: run_command denied: nobody answered in time"},
		"nobody":       {reasons(turnrpc.Approval{Decision: "deny", Cause: "no_approver"}), "error: run_command denied: there is no one to ask"},
		"other":        {reasons(turnrpc.Approval{Decision: "deny", Cause: "moon"}), "error: run_command denied"},
		"allow reason": {reasons(turnrpc.Approval{Decision: "allow_once "}), "error: run_command denied"},
	} {
		t.Run(name, func(t *testing.T) {
			events, a, requests, err := play(t, c.script, turnrpc.UserTurn{}, turntest.Use(turntest.Command("touch ran")), turntest.Say("k"))
			if err != nil {
				t.Fatal(err)
			}
			if got := turntest.Last(requests[1]); got != c.want {
				t.Errorf("the model was told %q, want %q", got, c.want)
			}
			if !strings.Contains(turntest.Kinds(events), "approval:pending approval:denied tool:error") {
				t.Error(turntest.Kinds(events))
			}
			if _, err := os.Stat(filepath.Join(a.repo, "ran")); err == nil {
				t.Error("it ran")
			}
		})
	}
	t.Run("what is asked", func(t *testing.T) {
		var asked turnrpc.ApprovalRequest
		a := start(t, turntest.Script{
			Approve: func(r turnrpc.ApprovalRequest) turnrpc.Approval { asked = r; return allow(r) },
			Model: func(n int, _ turnrpc.ProviderRequest) []turnrpc.ProviderEvent {
				if n == 0 {
					return turntest.Use([2]string{"run_command", `{"command":"pwd","workdir":"sub","timeout_sec":100000}`})
				}
				return turntest.Say("k")
			}})
		a.write(t, "sub/x", "")
		turn := a.Start(turnrpc.UserTurn{Text: "x"})
		if _, err := turn.Wait(); err != nil {
			t.Fatal(err)
		}
		if asked.TurnID != turn.ID || asked.Command != "pwd" || asked.Workdir != a.repo+"/sub" || asked.TimeoutSec != 600 || asked.ToolID != "call_1" {
			t.Errorf("asked for %+v", asked)
		}
		<-a.Requests
		if got := turntest.Last(<-a.Requests); got != "exit=0\n"+a.repo+"/sub\n" {
			t.Errorf("%q", got)
		}
	})
}

func TestMCP(t *testing.T) {
	tools := []turnrpc.MCPTool{
		{Server: "svc", Name: "echo", Prefixed: "svc__echo", Description: "says it", Parameters: json.RawMessage(`{"type":"object"}`)},
		{Server: "svc", Name: "bad", Prefixed: "other__bad", Parameters: json.RawMessage(`{}`)},
		{Server: "svc", Name: "none", Prefixed: "svc__none"},
		{Server: "svc", Name: "list", Prefixed: "svc__list", Parameters: json.RawMessage(`[1]`)},
		{Server: "svc", Name: "echo", Prefixed: "svc__echo", Parameters: json.RawMessage(`{}`)},
		{Server: "svc", Name: "fat", Prefixed: "svc__fat", Parameters: json.RawMessage(`{"x":"` + strings.Repeat("x", 65<<10) + `"}`)},
	}
	var call turnrpc.MCPCall
	s := turntest.Script{Tools: tools, Call: func(_ context.Context, c turnrpc.MCPCall) (turnrpc.MCPResult, error) {
		call = c
		switch string(c.Arguments) {
		case `{"fail":1}`:
			return turnrpc.MCPResult{}, errors.New("denied by the user")
		case `{"bad":1}`:
			return turnrpc.MCPResult{Text: "no such thing", IsError: true}, nil
		}
		return turnrpc.MCPResult{Text: "echo:hi", Truncated: true}, nil
	}}
	_, _, requests, err := play(t, s, turnrpc.UserTurn{},
		turntest.Use([2]string{"svc__echo", `{"text":"hi"}`}, [2]string{"svc__echo", `{"fail":1}`}, [2]string{"svc__echo", `{"bad":1}`}), turntest.Say("k"))
	if err != nil {
		t.Fatal(err)
	}
	if call.CallID != "mcp-3" || call.Server != "svc" || call.Tool != "echo" {
		t.Errorf("%+v", call)
	}
	want := []string{"echo:hi\n[the result was cut by the host]", "error: host: denied by the user", "error: no such thing"}
	if got := results(requests[1]); strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("%q", got)
	}
	if n := len(requests[0].Tools); n != 6 || requests[0].Tools[5].Description != "[svc] says it" {
		t.Errorf("%d tools: %+v", n, requests[0].Tools)
	}
	t.Run("a name is looked up and sent as it is", func(t *testing.T) {
		long := "issues.search/" + strings.Repeat("é", 40) // longer than what a provider takes, and other characters
		var called []string
		_, _, requests, err := play(t, turntest.Script{
			Tools: []turnrpc.MCPTool{
				{Server: "svc", Name: "a.b", Prefixed: "svc__a.b", Parameters: json.RawMessage(`{}`)},
				{Server: "svc", Name: "a_b", Prefixed: "svc__a_b", Parameters: json.RawMessage(`{}`)},
				{Server: "svc", Name: long, Prefixed: "svc__" + long, Parameters: json.RawMessage(`{}`)},
			},
			Call: func(_ context.Context, c turnrpc.MCPCall) (turnrpc.MCPResult, error) {
				called = append(called, c.Tool)
				return turnrpc.MCPResult{Text: "ok"}, nil
			},
		}, turnrpc.UserTurn{}, turntest.Use([2]string{"svc__a.b", `{}`}, [2]string{"svc__a_b", `{}`}, [2]string{"svc__" + long, `{}`}, [2]string{"svc__no.such", `{}`}), turntest.Say("k"))
		if err != nil {
			t.Fatal(err)
		}
		if want := []string{"a.b", "a_b", long}; !slices.Equal(called, want) {
			t.Errorf("called %q, want %q", called, want)
		}
		var names []string
		for _, m := range requests[1].Messages {
			if m.ToolName != "" {
				names = append(names, m.ToolName)
			}
		}
		if want := []string{"svc__a.b", "svc__a_b", "svc__" + long, "svc__no_such"}; !slices.Equal(names, want) {
			t.Errorf("the conversation has %q, want %q", names, want)
		}
	})
	t.Run("a broken broker costs its tools only", func(t *testing.T) {
		_, _, requests, err := play(t, turntest.Script{Hello: extensions, ListError: "server down"}, turnrpc.UserTurn{}, turntest.Say("k"))
		if err != nil || len(requests[0].Tools) != 5 || !strings.Contains(requests[0].Messages[0].Content, "server down") {
			t.Errorf("%v, %+v", err, requests)
		}
	})
}

func TestSchemas(t *testing.T) {
	_, _, requests, _ := play(t, turntest.Script{}, turnrpc.UserTurn{}, turntest.Say("k"))
	for _, tool := range requests[0].Tools {
		var s struct {
			Type       string
			Properties map[string]struct{ Type, Description string }
			Required   []string
		}
		if err := json.Unmarshal(tool.Parameters, &s); err != nil || s.Type != "object" || len(s.Required) == 0 || tool.Description == "" {
			t.Errorf("%s: %s, %v", tool.Name, tool.Parameters, err)
		}
		for name, p := range s.Properties {
			if p.Type == "" || p.Description == "" {
				t.Errorf("%s: %s is not described", tool.Name, name)
			}
		}
	}
}

// A host that reads slowly slows the command and the model down, and loses nothing.
func TestSlowHost(t *testing.T) {
	ours, theirs := net.Pipe()
	cfg := config(t, t.TempDir(), t.TempDir())
	done := make(chan error, 1)
	go func() { done <- turn.Serve(context.Background(), theirs, cfg) }()
	h := turntest.New(t, &slow{Conn: ours}, turntest.Script{Hello: extensions, Approve: allow, Model: func(n int, _ turnrpc.ProviderRequest) []turnrpc.ProviderEvent {
		if n == 0 {
			return turntest.Use(turntest.Command("seq 1 100000"))
		}
		var events []turnrpc.ProviderEvent
		for range 2000 {
			events = append(events, turnrpc.ProviderEvent{Type: turnrpc.ProviderText, Text: "word "})
		}
		return append(events, turnrpc.ProviderEvent{Type: turnrpc.ProviderDone})
	}})
	events, err := h.Start(turnrpc.UserTurn{Text: "x"}).Wait()
	if err != nil {
		t.Fatal(err)
	}
	var output, text int
	for _, e := range events {
		switch e.Kind {
		case turnrpc.EventOutput:
			output += len(e.Text)
		case turnrpc.EventText:
			text += len(e.Text)
		}
	}
	if output != 588895 || text != 10000 {
		t.Errorf("%d bytes of output, %d of text", output, text)
	}
	ours.Close()
	<-done
}

// slow reads a little at a time.
type slow struct{ net.Conn }

func (s *slow) Read(p []byte) (int, error) {
	time.Sleep(50 * time.Microsecond)
	return s.Conn.Read(p[:min(len(p), 2048)])
}

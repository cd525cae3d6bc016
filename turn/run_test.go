package turn

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"msb/protocol/turnrpc"
	"msb/turn/approval"
)

func TestTurn(t *testing.T) {
	s := open(t, Options{}, "", func(g *guest) {
		g.expect(`{"v":4,"id":"1","method":"user_turn","params":{"text":"hi"}}`)
		g.say(`{"v":4,"id":"1","method":"agent_event","params":{"kind":"text","text":"ok"}}`)
		g.say(`{"v":4,"id":"7","method":"agent_event","params":{"kind":"text","text":"of another turn"}}`)
		g.say(`{"v":4,"id":"1","method":"agent_event","params":{"kind":"user","text":"imitated"}}`)
		g.say(`{"v":4,"id":"1","method":"agent_event","params":{"kind":"approval","status":"allowed"}}`)
		g.say(`{"v":4,"id":"1","method":"agent_event","params":{"kind":"tool_start","tool":"x"}}`)
		g.say(`{"v":4,"id":"1","method":"agent_event","params":{"kind":"output","text":"x"}}`)
		g.say(`{"v":4,"id":"1","method":"agent_event","params":{"kind":"news"}}`)
		g.say(`{"v":4,"id":"1","method":"agent_event","params":{"kind":7}}`)
		g.say(`{"v":4,"id":"1","method":"agent_event"}`)
		g.say(`{"v":4,"id":"1","method":"nothing","params":{}}`)
		g.say(`{"v":4,"id":"99","result":{"ok":true}}`)
		g.say(`{"v":4,"id":"1","method":"agent_event","params":{"kind":"done"}}`)
		g.say(`{"v":4,"id":"1","result":{"ok":true}}`)

		g.expect(`{"v":4,"id":"2","method":"user_turn","params":{"text":"inspect","max_turns":3,"timeout_sec":7,"rich_events":true}}`)
		g.say(`{"v":4,"id":"2","method":"agent_event","params":{"kind":"tool","text":"[\"a.go\"]","tool":"list_files","status":"ok","tool_id":"call_1","tool_args":"{\"path\":\".\"}"}}`)
		g.say(`{"v":4,"id":"2","method":"agent_event","params":{"kind":"result","usage":{"input_tokens":11,"output_tokens":4},"stop_reason":"end_turn"}}`)
		g.say(`{"v":4,"id":"2","method":"agent_event","params":{"kind":"done"}}`)
		g.say(`{"v":4,"id":"2","result":{"ok":true}}`)

		g.expect(`{"v":4,"id":"3","method":"user_turn","params":{"text":"fail"}}`)
		g.say(`{"v":4,"id":"3","method":"agent_event","params":{"kind":"error","err":"turn limit reached"}}`)
		g.say(`{"v":4,"id":"3","error":{"code":"agent","message":"turn limit reached"}}`)
	})
	var e events
	if _, err := s.Turn(t.Context(), "hi", TurnOptions{}, e.emit); err != nil || e.String() != "text:ok done:" {
		t.Errorf("%v; %v", &e, err)
	}
	e = events{}
	r, err := s.Turn(t.Context(), "inspect", TurnOptions{MaxTurns: 3, Timeout: 6500 * time.Millisecond, RichEvents: true}, e.emit)
	if err != nil || r.Usage == nil || *r.Usage != (turnrpc.Usage{InputTokens: 11, OutputTokens: 4}) || r.StopReason != "end_turn" || r.Canceled {
		t.Errorf("%+v; %v", r, err)
	}
	if first := e.list[0]; first.ToolArgs != `{"path":"."}` || first.ToolID != "call_1" {
		t.Errorf("%+v", first)
	}
	_, err = s.Turn(t.Context(), "fail", TurnOptions{}, e.emit)
	var failed *turnrpc.Error
	if !errors.As(err, &failed) || failed.Code != turnrpc.CodeAgent {
		t.Errorf("%v", err)
	}
	if _, err := s.Turn(t.Context(), strings.Repeat("<", 200_000), TurnOptions{}, e.emit); err == nil || !strings.Contains(err.Error(), "1200") {
		t.Errorf("a prompt larger than a frame: %v", err)
	}
	if s.Err() != nil {
		t.Errorf("it ended the connection: %v", s.Err())
	}
}

func TestTurnExtensions(t *testing.T) {
	s := open(t, Options{}, ours, func(g *guest) {
		g.frame()
		g.say(`{"v":4,"id":"1","method":"agent_event","params":{"kind":"tool_start","tool":"run_command"}}`)
		g.say(`{"v":4,"id":"1","method":"agent_event","params":{"kind":"output","text":"x","stream":"stderr"}}`)
		g.say(`{"v":4,"id":"1","result":{"ok":true}}`)
	})
	var e events
	if _, err := s.Turn(t.Context(), "hi", TurnOptions{}, e.emit); err != nil || e.String() != "tool_start: output:x" || e.list[1].Stream != "stderr" {
		t.Errorf("%v; %v", &e, err)
	}
}

func TestOneTurnAtATime(t *testing.T) {
	s := open(t, Options{}, "", func(g *guest) {
		g.frame()
		g.say(`{"v":4,"id":"1","method":"agent_event","params":{"kind":"text","text":"ok"}}`)
		g.expect(`{"v":4,"id":"1-cancel","method":"cancel_turn","params":{"id":"1"}}`)
		g.say(`{"v":4,"id":"1","error":{"code":"canceled","message":"context canceled"}}`)
		// The late answer to the cancel must not be taken for the next one.
		g.say(`{"v":4,"id":"1-cancel","result":{"ok":true}}`)
		g.expect(`{"v":4,"id":"2","method":"get_context","params":{"ok":true}}`)
		g.say(`{"v":4,"id":"2","result":{"history":[{"kind":"user","text":"hi"}]}}`)
	})
	ctx, cancel := context.WithCancel(t.Context())
	r, err := s.Turn(ctx, "hi", TurnOptions{}, func(Event) {
		if _, err := s.Turn(t.Context(), "second", TurnOptions{}, nil); !errors.Is(err, ErrTurnActive) {
			t.Errorf("second turn: %v", err)
		}
		if err := s.SetModel(t.Context(), turnrpc.GuestModel{Name: "m"}); !errors.Is(err, ErrTurnActive) {
			t.Errorf("set_model in a turn: %v", err)
		}
		cancel()
	})
	var failed *turnrpc.Error
	if !r.Canceled || r.TimedOut || !errors.As(err, &failed) || failed.Code != turnrpc.CodeCanceled {
		t.Errorf("%+v; %v", r, err)
	}
	if h, err := s.History(t.Context()); err != nil || len(h) != 1 || h[0].Text != "hi" {
		t.Errorf("%v %v", h, err)
	}
}

// A guest that ignores the cancel is waited for 5 s.
func TestCancelIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, Options{}, "", func(g *guest) { g.frame(); g.frame() })
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, cancel)
		begun := time.Now()
		r, err := s.Turn(ctx, "hi", TurnOptions{}, func(Event) {})
		var failed *turnrpc.Error
		if !r.Canceled || !errors.As(err, &failed) || failed.Code != CodeTimeout || time.Since(begun) != time.Minute+CancelTimeout {
			t.Errorf("after %v: %+v; %v", time.Since(begun), r, err)
		}
		s.conn.Close()
	})
}

// A guest that takes no data at all holds up neither the end of a turn nor the
// farewell.
func TestGuestTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		s := open(t, Options{}, "", func(g *guest) { g.frame(); <-stop })
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, cancel)
		begun := time.Now()
		_, err := s.Turn(ctx, "hi", TurnOptions{}, func(Event) {})
		var failed *turnrpc.Error
		if !errors.As(err, &failed) || failed.Code != CodeTimeout || time.Since(begun) != time.Minute+CancelTimeout {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
		begun = time.Now()
		s.Close()
		if d := time.Since(begun); d != ShutdownTimeout {
			t.Errorf("closed after %v", d)
		}
		close(stop)
	})
}

// A guest that does not keep the deadline is cancelled by the host.
func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, Options{}, "", func(g *guest) {
			g.frame()
			g.expect(`{"v":4,"id":"1-cancel","method":"cancel_turn","params":{"id":"1"}}`)
			g.say(`{"v":4,"id":"1","error":{"code":"canceled","message":"context canceled"}}`)
		})
		r, err := s.Turn(t.Context(), "hi", TurnOptions{Timeout: time.Minute}, func(Event) {})
		if !r.TimedOut || err == nil {
			t.Errorf("%+v; %v", r, err)
		}
		s.conn.Close()
	})
}

func TestGuestDies(t *testing.T) {
	s := open(t, Options{}, "", func(g *guest) {
		g.frame()
		g.say(`{"v":4,"id":"1","method":"agent_event","params":{"kind":"text","text":"last words"}}`)
		g.c.Close()
	})
	var e events
	_, err := s.Turn(t.Context(), "hi", TurnOptions{}, e.emit)
	var lost *turnrpc.LostError
	if !errors.As(err, &lost) || e.String() != "text:last words" {
		t.Errorf("%v; %v", &e, err)
	}
	if _, err := s.Turn(t.Context(), "hi", TurnOptions{}, e.emit); !errors.As(err, &lost) {
		t.Errorf("%v", err)
	}
}

// Many more events than fit in any queue reach a slow reader, all of them.
func TestBackPressure(t *testing.T) {
	const count = 5000
	text := strings.Repeat("x", 2000) // 10 MB in all
	s := open(t, Options{}, "", func(g *guest) {
		g.frame()
		for range count {
			g.say(`{"v":4,"id":"1","method":"agent_event","params":{"kind":"text","text":"` + text + `"}}`)
		}
		g.say(`{"v":4,"id":"1","result":{"ok":true}}`)
	})
	n := 0
	if _, err := s.Turn(t.Context(), "hi", TurnOptions{}, func(e Event) {
		if n++; n == 10 { // hold everything up for a moment
			time.Sleep(50 * time.Millisecond)
		}
	}); err != nil || n != count {
		t.Errorf("%d events; %v", n, err)
	}
}

func TestApproval(t *testing.T) {
	const ask = `{"v":4,"id":"g-5","method":"request_run_command_approval","params":{"turn_id":"1","tool_id":"call_1","command":"go test ./...","timeout_sec":60}}`
	for _, c := range []struct {
		name   string
		more   string
		answer *approval.Answer // nil: no one to ask
		want   string
		events string
	}{
		{"allowed", "", &approval.Answer{Allow: true}, `{"v":4,"id":"g-5","result":{"decision":"allow_once"}}`, "text:why approval:pending approval:allowed"},
		{"allowed for the session", ours, &approval.Answer{Allow: true, Scope: approval.ScopeSession}, `{"v":4,"id":"g-5","result":{"decision":"allow_once"}}`, "text:why approval:pending approval:allowed"},
		{"denied", "", &approval.Answer{Reason: "no"}, `{"v":4,"id":"g-5","result":{"decision":"deny"}}`, "text:why approval:pending approval:denied"},
		{"denied, with the reason", ours, &approval.Answer{Reason: "no"}, `{"v":4,"id":"g-5","result":{"decision":"deny","cause":"user","reason":"no"}}`, "text:why approval:pending approval:denied"},
		{"no one to ask", "", nil, `{"v":4,"id":"g-5","result":{"decision":"deny"}}`, "text:why approval:pending approval:denied"},
		{"no one to ask, with the reason", ours, nil, `{"v":4,"id":"g-5","result":{"decision":"deny","cause":"no_approver"}}`, "text:why approval:pending approval:denied"},
	} {
		t.Run(c.name, func(t *testing.T) {
			gate := newGate(t, approval.Options{})
			if c.answer != nil {
				answerAll(t, gate, *c.answer)
			}
			s := open(t, Options{Gate: gate, CommandUser: "dev"}, c.more, func(g *guest) {
				g.frame()
				g.say(`{"v":4,"id":"1","method":"agent_event","params":{"kind":"text","text":"why"}}`)
				g.say(ask)
				g.expect(c.want)
				g.say(`{"v":4,"id":"1","result":{"ok":true}}`)
			})
			var e events
			if _, err := s.Turn(t.Context(), "hi", TurnOptions{Label: "7"}, e.emit); err != nil || e.String() != c.events {
				t.Errorf("%v; %v", &e, err)
			}
			q := e.list[1].Request
			if q.Session != testID || q.Turn != "7" || q.Command != "go test ./..." || q.Workdir != "/work/repo" || q.User != "dev" ||
				q.Timeout != time.Minute || q.Reason != "why" || q.ToolID != "call_1" || q.ID == "" {
				t.Errorf("%+v", q)
			}
			if out := e.list[2].Outcome; out == nil || out.Allowed != (c.answer != nil && c.answer.Allow) {
				t.Errorf("%+v", out)
			}
		})
	}
}

// Requests that are not of the turn under way, or not requests, are never
// allowed, though somebody would say yes.
func TestApprovalRefused(t *testing.T) {
	const invalid = `{"v":4,"id":"g-1","error":{"code":"host","message":"invalid run_command approval request"}}`
	const deny = `{"v":4,"id":"g-1","result":{"decision":"deny"}}`
	for name, c := range map[string]struct{ params, want string }{
		"no turn":         {`{"command":"id"}`, invalid},
		"other turn":      {`{"turn_id":"2","command":"id"}`, deny},
		"no params":       {`null`, invalid},
		"wrong type":      {`{"turn_id":"1","command":["id"]}`, invalid},
		"16385 bytes":     {`{"turn_id":"1","command":"` + strings.Repeat("x", 16385) + `"}`, invalid},
		"NUL in it":       {`{"turn_id":"1","command":"a\u0000b"}`, invalid},
		"16384 bytes":     {`{"turn_id":"1","command":"` + strings.Repeat("x", 16384) + `"}`, `{"v":4,"id":"g-1","result":{"decision":"allow_once"}}`},
		"escape sequence": {`{"turn_id":"1","command":"a\u001b[2Jb"}`, `{"v":4,"id":"g-1","result":{"decision":"allow_once"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			gate := newGate(t, approval.Options{})
			answerAll(t, gate, approval.Answer{Allow: true})
			s := open(t, Options{Gate: gate}, "", func(g *guest) {
				g.frame()
				g.say(`{"v":4,"id":"g-1","method":"request_run_command_approval","params":` + c.params + `}`)
				g.expect(c.want)
				g.say(`{"v":4,"id":"1","result":{"ok":true}}`)
			})
			if _, err := s.Turn(t.Context(), "hi", TurnOptions{}, func(Event) {}); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("outside a turn", func(t *testing.T) {
		gate := newGate(t, approval.Options{})
		answerAll(t, gate, approval.Answer{Allow: true})
		done := make(chan struct{})
		open(t, Options{Gate: gate, MCP: fakeMCP{}}, "", func(g *guest) {
			g.say(`{"v":4,"id":"g-1","method":"request_run_command_approval","params":{"turn_id":"1","command":"id"}}`)
			g.expect(deny)
			g.say(`{"v":4,"id":"g-2","method":"mcp_call","params":{"call_id":"mcp-1","server":"svc","tool":"echo"}}`)
			if f := g.frame(); !strings.Contains(string(f.Result), `"is_error":true`) {
				g.t.Errorf("%s", f.Result)
			}
			close(done)
		})
		<-done
	})
}

// What a model gives as the reason of a command is shown with it; without one,
// what it said before.
func TestReasonOfACommand(t *testing.T) {
	gate := newGate(t, approval.Options{})
	answerAll(t, gate, approval.Answer{})
	s := open(t, Options{Gate: gate}, ours, func(g *guest) {
		g.frame()
		g.say(`{"v":4,"id":"1","method":"agent_event","params":{"kind":"text","text":"I look."}}`)
		g.say(`{"v":4,"id":"1","method":"agent_event","params":{"kind":"tool_start","tool":"run_command","tool_id":"a","tool_args":"{\"command\":\"id\",\"reason\":\"to see who I am\"}"}}`)
		for _, id := range []string{"a", "b"} {
			g.sayf(`{"v":4,"id":"g-%s","method":"request_run_command_approval","params":{"turn_id":"1","tool_id":%q,"command":"id"}}`, id, id)
			g.frame()
		}
		g.say(`{"v":4,"id":"1","result":{"ok":true}}`)
	})
	reasons := ""
	if _, err := s.Turn(t.Context(), "hi", TurnOptions{}, func(e Event) {
		if e.Outcome != nil {
			reasons += e.Request.Reason + "|"
		}
	}); err != nil {
		t.Fatal(err)
	}
	if reasons != "to see who I am|I look.|" {
		t.Error(reasons)
	}
}

// A turn that ends closes its request, and an answer then comes too late.
func TestTurnEndsWithApproval(t *testing.T) {
	gate := newGate(t, approval.Options{})
	defer gate.Attach()()
	s := open(t, Options{Gate: gate}, "", func(g *guest) {
		g.frame()
		g.say(`{"v":4,"id":"g-1","method":"request_run_command_approval","params":{"turn_id":"1","command":"id"}}`)
		cancelled, denied := g.frame(), g.frame()
		if denied.ID != "g-1" {
			cancelled, denied = denied, cancelled
		}
		if cancelled.ID != "1-cancel" || string(denied.Result) != `{"decision":"deny"}` {
			g.t.Errorf("%+v %s", cancelled, denied.Result)
		}
		g.say(`{"v":4,"id":"1","error":{"code":"canceled","message":"context canceled"}}`)
	})
	ctx, cancel := context.WithCancel(t.Context())
	var e events
	id := ""
	s.Turn(ctx, "hi", TurnOptions{}, func(v Event) {
		e.emit(v)
		if v.Status == turnrpc.StatusPending {
			id = v.Request.ID
			cancel()
		}
	})
	if e.String() != "approval:pending approval:denied" || e.list[1].Outcome.Cause != approval.CauseCancelled {
		t.Errorf("%v", &e)
	}
	if err := gate.Answer(id, approval.Answer{Allow: true}); !errors.Is(err, approval.ErrAnswered) && !errors.Is(err, approval.ErrUnknownRequest) {
		t.Errorf("late answer: %v", err)
	}
	if len(gate.Pending()) != 0 {
		t.Error("it still waits")
	}
}

func TestMCP(t *testing.T) {
	const call = `{"v":4,"id":"g-4","method":"mcp_call","params":{"call_id":"mcp-1","server":"svc","tool":"echo","arguments":{"text":"hi"}}}`
	var called atomic.Int32
	broker := fakeMCP{call: func(ctx context.Context, c turnrpc.MCPCall) (turnrpc.MCPResult, error) {
		called.Add(1)
		return fakeMCP{}.Call(ctx, c)
	}}
	for _, c := range []struct {
		name   string
		answer *approval.Answer
		tool   string
		want   string
		calls  int32
	}{
		{"allowed", &approval.Answer{Allow: true}, "", `{"v":4,"id":"g-4","result":{"text":"echo:hi"}}`, 1},
		{"denied", &approval.Answer{Reason: "not that one"}, "", `{"v":4,"id":"g-4","result":{"text":"this call was denied by the user: not that one","is_error":true}}`, 0},
		{"no one to ask", nil, "", `{"v":4,"id":"g-4","result":{"text":"this call was denied because there is no one to ask","is_error":true}}`, 0},
		{"allowed by the configuration", nil, approval.ToolAllow, `{"v":4,"id":"g-4","result":{"text":"echo:hi"}}`, 1},
		{"denied by the configuration", &approval.Answer{Allow: true}, approval.ToolDeny, `{"v":4,"id":"g-4","result":{"text":"this call was denied by a rule: the configuration denies this tool","is_error":true}}`, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			called.Store(0)
			gate := newGate(t, approval.Options{Tool: func(string, string) string { return c.tool }})
			if c.answer != nil {
				answerAll(t, gate, *c.answer)
			}
			s := open(t, Options{Gate: gate, MCP: broker}, "", func(g *guest) {
				g.frame()
				g.say(`{"v":4,"id":"g-3","method":"mcp_list","params":{}}`)
				g.expect(`{"v":4,"id":"g-3","result":{"tools":[{"server":"svc","name":"echo","prefixed":"svc__echo","parameters":{"type":"object"}}]}}`)
				g.say(call)
				g.expect(c.want)
				g.say(`{"v":4,"id":"1","result":{"ok":true}}`)
			})
			var e events
			if _, err := s.Turn(t.Context(), "hi", TurnOptions{}, e.emit); err != nil {
				t.Error(err)
			}
			if n := called.Load(); n != c.calls {
				t.Errorf("the tool was called %d times", n)
			}
			for _, v := range e.list {
				if r := v.Request; r == nil || r.ID == "" || r.Asked.IsZero() || r.Claim != "it claims to be echo" {
					t.Errorf("event of the approval: %+v", r)
				}
			}
		})
	}
}

// A guest that does not wait for approvals gets a denial before it gives up;
// one of ours waits.
func TestMCPPatience(t *testing.T) {
	for _, c := range []struct {
		name, more string
		wait       time.Duration
		want       string
	}{
		{"foreign", "", ForeignWait, "denied because nobody answered in time: no answer within 55s; this guest does not wait longer"},
		{"ours", ours, time.Hour, "echo:"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				gate := newGate(t, approval.Options{})
				defer gate.Attach()()
				time.AfterFunc(time.Hour, func() {
					for _, q := range gate.Pending() {
						gate.Answer(q.ID, approval.Answer{Allow: true})
					}
				})
				begun := time.Now()
				s := open(t, Options{Gate: gate, MCP: fakeMCP{}}, c.more, func(g *guest) {
					g.frame()
					g.say(`{"v":4,"id":"g-1","method":"mcp_call","params":{"call_id":"mcp-1","server":"svc","tool":"echo"}}`)
					f := g.frame()
					if !strings.Contains(string(f.Result), c.want) || time.Since(begun).Round(time.Second) != c.wait {
						g.t.Errorf("after %v: %s", time.Since(begun), f.Result)
					}
					g.say(`{"v":4,"id":"1","result":{"ok":true}}`)
				})
				if _, err := s.Turn(t.Context(), "hi", TurnOptions{}, func(Event) {}); err != nil {
					t.Error(err)
				}
				s.conn.Close()
			})
		})
	}
}

// The time limit of a call begins when it was approved, however long that took.
func TestMCPCallTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := newGate(t, approval.Options{})
		defer gate.Attach()()
		time.AfterFunc(10*time.Minute, func() {
			for _, q := range gate.Pending() {
				gate.Answer(q.ID, approval.Answer{Allow: true})
			}
		})
		slow := fakeMCP{call: func(ctx context.Context, c turnrpc.MCPCall) (turnrpc.MCPResult, error) {
			<-ctx.Done()
			return turnrpc.MCPResult{}, fmt.Errorf("no answer: %w", ctx.Err())
		}}
		begun := time.Now()
		s := open(t, Options{Gate: gate, MCP: slow}, ours, func(g *guest) {
			g.frame()
			g.say(`{"v":4,"id":"g-1","method":"mcp_call","params":{"call_id":"mcp-1","server":"svc","tool":"echo"}}`)
			g.expect(`{"v":4,"id":"g-1","error":{"code":"host","message":"no answer: context deadline exceeded"}}`)
			if took := time.Since(begun).Round(time.Second); took != 10*time.Minute+CallTimeout {
				g.t.Errorf("after %v", took)
			}
			g.say(`{"v":4,"id":"1","result":{"ok":true}}`)
		})
		if _, err := s.Turn(t.Context(), "hi", TurnOptions{}, func(Event) {}); err != nil {
			t.Error(err)
		}
		s.conn.Close()
	})
}

func TestMCPCancelAndTwice(t *testing.T) {
	gate := newGate(t, approval.Options{})
	answerAll(t, gate, approval.Answer{Allow: true})
	broker := fakeMCP{call: func(ctx context.Context, c turnrpc.MCPCall) (turnrpc.MCPResult, error) {
		if c.CallID == "big" {
			return turnrpc.MCPResult{Text: strings.Repeat("\x01", 400_000)}, nil // 2.4 MB encoded
		}
		<-ctx.Done()
		return turnrpc.MCPResult{}, ctx.Err()
	}}
	s := open(t, Options{Gate: gate, MCP: broker}, "", func(g *guest) {
		g.frame()
		g.say(`{"v":4,"id":"g-1","method":"mcp_call","params":{"call_id":"a","server":"svc","tool":"echo"}}`)
		g.say(`{"v":4,"id":"g-2","method":"mcp_call","params":{"call_id":"big","server":"svc","tool":"echo"}}`)
		f := g.frame()
		var r turnrpc.MCPResult
		if err := f.Decode("mcp_call", &r); err != nil || !r.Truncated || len(r.Text) < 100_000 {
			g.t.Errorf("%v, %d bytes", err, len(r.Text))
		}
		g.say(`{"v":4,"id":"g-3","method":"mcp_call","params":{"call_id":"a","server":"svc","tool":"echo"}}`)
		f = g.frame()
		if f.ID != "g-3" || f.Error == nil || f.Error.Code != turnrpc.CodeHost {
			g.t.Errorf("the same id twice: %+v", f)
		}
		g.say(`{"v":4,"id":"g-4","method":"mcp_cancel","params":{"call_id":"a"}}`)
		g.say(`{"v":4,"id":"g-5","method":"mcp_cancel","params":{"call_id":"unknown"}}`)
		got := map[string]string{}
		for range 3 {
			f := g.frame()
			got[f.ID] = string(f.Result)
			if f.Error != nil {
				got[f.ID] = f.Error.Code
			}
		}
		if got["g-1"] != "canceled" || got["g-4"] != `{"ok":true}` || got["g-5"] != `{"ok":true}` {
			g.t.Errorf("%v", got)
		}
		g.say(`{"v":4,"id":"1","result":{"ok":true}}`)
	})
	if _, err := s.Turn(t.Context(), "hi", TurnOptions{}, func(Event) {}); err != nil {
		t.Error(err)
	}
}

// How large a request may be is told to a guest that asked for it, and to no other.
func TestContextWindow(t *testing.T) {
	for more, want := range map[string]string{
		"": `{"stream_id":"s1"}`, ours: `{"stream_id":"s1"}`,
		`,"extensions":{"context_window":1}`: `{"stream_id":"s1","input_tokens":1000}`,
	} {
		done := make(chan struct{})
		open(t, Options{Provider: provider(nil)}, more, func(g *guest) {
			defer close(done)
			g.say(`{"v":4,"id":"g-1","method":"provider_open","params":{"model":"x"}}`)
			g.expect(`{"v":4,"id":"g-1","result":` + want + `}`)
		})
		<-done
	}
}

func TestProvider(t *testing.T) {
	done := make(chan struct{})
	open(t, Options{Provider: provider(nil)}, "", func(g *guest) {
		defer close(done)
		g.say(`{"v":4,"id":"g-1","method":"provider_open","params":{"model":"grok-default","rich":true}}`)
		g.expect(`{"v":4,"id":"g-1","result":{"stream_id":"s1"}}`)
		g.say(`{"v":4,"id":"g-2","method":"provider_send","params":{"stream_id":"s1","data":"e30=","last":true}}`)
		g.expect(`{"v":4,"id":"h-1","method":"provider_event","params":{"stream_id":"s1","type":"text","text":"hi"}}`)
		g.expect(`{"v":4,"id":"h-2","method":"provider_event","params":{"stream_id":"s1","type":"done"}}`)
		g.expect(`{"v":4,"id":"g-2","result":{"ok":true}}`)
		g.say(`{"v":4,"id":"g-3","method":"provider_cancel","params":{"stream_id":"s9"}}`)
		g.expect(`{"v":4,"id":"g-3","result":{"ok":true}}`)
		g.say(`{"v":4,"id":"g-4","method":"provider_open"}`)
		g.expect(`{"v":4,"id":"g-4","error":{"code":"host","message":"empty params"}}`)
		g.say(`{"v":4,"id":"g-5","method":"provider_open","params":{"model":"panic"}}`)
		g.expect(`{"v":4,"id":"g-5","error":{"code":"host","message":"internal error"}}`)
	})
	<-done
	done = make(chan struct{})
	open(t, Options{Provider: provider(fmt.Errorf("model: %w", errTest))}, "", func(g *guest) {
		defer close(done)
		g.say(`{"v":4,"id":"g-1","method":"provider_open","params":{"model":"x"}}`)
		g.expect(`{"v":4,"id":"g-1","error":{"code":"host","message":"model: broker failed"}}`)
	})
	<-done
}

// Seven calls wait; the eighth is refused, a cancel is not.
func TestBusy(t *testing.T) {
	gate := newGate(t, approval.Options{})
	defer gate.Attach()()
	done := make(chan struct{})
	s := open(t, Options{Gate: gate, Provider: provider(nil)}, "", func(g *guest) {
		defer close(done)
		g.frame()
		for i := range 7 {
			g.sayf(`{"v":4,"id":"g-%d","method":"request_run_command_approval","params":{"turn_id":"1","command":"id"}}`, i)
		}
		g.say(`{"v":4,"id":"g-9","method":"mcp_list","params":{}}`)
		g.expect(`{"v":4,"id":"g-9","error":{"code":"busy","message":"too many concurrent guest calls"}}`)
		g.say(`{"v":4,"id":"g-10","method":"provider_cancel","params":{"stream_id":"s1"}}`)
		g.expect(`{"v":4,"id":"g-10","result":{"ok":true}}`)
		// A flood is slowed down, not cut off.
		go func() {
			for i := range 100 {
				g.sayf(`{"v":4,"id":"g-%d","method":"mcp_list","params":{}}`, 100+i)
			}
		}()
		for range 100 {
			if f := g.frame(); f.Error == nil || f.Error.Code != turnrpc.CodeBusy {
				g.t.Errorf("%+v", f)
			}
		}
		g.say(`{"v":4,"id":"1","result":{"ok":true}}`)
		for range 7 {
			if f := g.frame(); string(f.Result) != `{"decision":"deny"}` {
				g.t.Errorf("%+v", f)
			}
		}
	})
	if _, err := s.Turn(t.Context(), "hi", TurnOptions{}, func(Event) {}); err != nil {
		t.Error(err)
	}
	<-done
}

func TestShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, Options{}, "", func(g *guest) {
			g.expect(`{"v":4,"id":"1","method":"set_model","params":{"model":{"name":"m","provider":"openai","model":"x","credential_env":""}}}`)
			g.say(`{"v":4,"id":"1","result":{"ok":true}}`)
			g.expect(`{"v":4,"id":"2","method":"shutdown","params":{"ok":true}}`)
		})
		// Neither a variable's name nor a URL reaches the guest.
		if err := s.SetModel(t.Context(), turnrpc.GuestModel{Name: "m", Provider: "openai", Model: "x", CredentialEnv: "KEY", BaseURL: "https://x"}); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		s.Close()
		if d := time.Since(begun); d != ShutdownTimeout {
			t.Errorf("a silent guest was waited for %v", d)
		}
	})
}

package turn_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"msb/guest/turn"
	"msb/guest/turn/turntest"
	"msb/protocol/turnrpc"
)

func fd(f *os.File) string { return strconv.Itoa(int(f.Fd())) }

func TestHello(t *testing.T) {
	a := start(t, turntest.Script{})
	h := a.Greeted()
	if h.SessionID != "sid" || h.Capability != "cap" || h.ImageID != "image" || h.Protocol != 4 || !h.GuestReady || len(h.History) != 0 {
		t.Errorf("hello: %+v", h)
	}
	for name := range turnrpc.Extensions() {
		if h.Extensions[name] != 1 {
			t.Errorf("hello does not list %s: %v", name, h.Extensions)
		}
	}
}

// A host of each version, and hosts that refuse.
func TestHosts(t *testing.T) {
	for name, c := range map[string]struct {
		answer turnrpc.HelloResult
		old    bool
		want   string
	}{
		"no version": {turnrpc.HelloResult{Accepted: true}, true, "make build"},
		"version 1":  {turnrpc.HelloResult{Accepted: true, Protocol: 1}, true, "protocol 1"},
		"version 2":  {turnrpc.HelloResult{Accepted: true, Protocol: 2}, true, "protocol 2"},
		"version 3":  {turnrpc.HelloResult{Accepted: true, Protocol: 3}, true, "protocol 3"},
		"refused":    {turnrpc.HelloResult{Message: "go away\x1b[31m", Protocol: 4}, false, `"go away\x1b[31m"`},
	} {
		t.Run(name, func(t *testing.T) {
			a := start(t, turntest.Script{Hello: func(turnrpc.Hello) turnrpc.HelloResult { return c.answer }})
			err := <-a.done
			a.done <- nil
			if err == nil || errors.Is(err, turn.ErrHostTooOld) != c.old || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v", err)
			}
		})
	}
	for name, c := range map[string]string{
		"error":      `{"v":4,"id":"hello","error":{"code":"host","message":"no"}}`,
		"call first": `{"v":4,"id":"1","method":"user_turn","params":{"text":"x"}}`,
		"garbage":    `[1,2`,
		"no result":  `{"v":4,"id":"hello"}`,
	} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := net.Pipe()
			defer ours.Close()
			done := make(chan error, 1)
			cfg := config(t, t.TempDir(), t.TempDir())
			go func() { done <- turn.Serve(context.Background(), theirs, cfg) }()
			if _, err := turnrpc.Read(ours); err != nil {
				t.Fatal(err)
			}
			head := []byte{0, 0, 0, byte(len(c))}
			if _, err := ours.Write(append(head, c...)); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err == nil {
				t.Error("the agent took it")
			}
		})
	}
	t.Run("version 4, plain", func(t *testing.T) {
		a := start(t, turntest.Script{Approve: allow, Model: func(n int, r turnrpc.ProviderRequest) []turnrpc.ProviderEvent {
			if n == 0 {
				return turntest.Use(turntest.Command("echo hi"))
			}
			return turntest.Say("ok")
		}})
		events, err := a.Start(turnrpc.UserTurn{Text: "go"}).Wait()
		if got, want := turntest.Kinds(events), "approval:pending approval:allowed tool:ok text done"; err != nil || got != want {
			t.Errorf("a plain host got %s, %v; want %s", got, err, want)
		}
		for _, e := range events {
			if e.ToolID != "" || e.ToolArgs != "" || e.Stream != "" {
				t.Errorf("a plain turn has a rich field: %+v", e)
			}
		}
		r := <-a.Requests
		if len(r.Messages) != 1 || r.Messages[0].Role != turnrpc.RoleUser || !strings.HasSuffix(r.Messages[0].Content, "go") {
			t.Errorf("a plain host got the messages %+v", r.Messages)
		}
	})
	t.Run("version 4 with extensions", func(t *testing.T) {
		a := start(t, turntest.Script{Hello: extensions, Approve: allow, Model: func(n int, r turnrpc.ProviderRequest) []turnrpc.ProviderEvent {
			if n == 0 {
				return turntest.Use(turntest.Command("echo hi"))
			}
			return append([]turnrpc.ProviderEvent{{Type: turnrpc.ProviderUsage, Usage: &turnrpc.Usage{InputTokens: 3, OutputTokens: 4}, StopReason: "end_turn"}}, turntest.Say("ok")...)
		}})
		events, err := a.Start(turnrpc.UserTurn{Text: "go", RichEvents: true}).Wait()
		if got, want := turntest.Kinds(events), "tool_start approval:pending output approval:allowed tool:ok text result done"; err != nil || (got != want && got != "tool_start approval:pending approval:allowed output tool:ok text result done") {
			t.Fatalf("got %s, %v", got, err)
		}
		for _, e := range events {
			switch {
			case e.Kind == turnrpc.EventResult && (e.Usage == nil || e.Usage.OutputTokens != 4 || e.StopReason != "end_turn"):
				t.Errorf("%+v", e)
			case e.Kind == turnrpc.EventOutput && (e.Text != "hi\n" || e.Stream != "stdout" || e.ToolID != "call_1"):
				t.Errorf("%+v", e)
			}
		}
		r := <-a.Requests
		if r.Messages[0].Role != turnrpc.RoleSystem || !strings.Contains(r.Messages[0].Content, a.repo) {
			t.Errorf("the system prompt does not name the workspace: %+v", r.Messages[0])
		}
	})
}

// A host that lists one extension gets what that one adds, and nothing of the others.
func TestOneExtension(t *testing.T) {
	for name := range turnrpc.Extensions() {
		t.Run(name, func(t *testing.T) {
			only := func(turnrpc.Hello) turnrpc.HelloResult {
				return turnrpc.HelloResult{Accepted: true, Protocol: 4, Extensions: map[string]int{name: 9}}
			}
			a := start(t, turntest.Script{Hello: only, Window: 50, Model: func(n int, r turnrpc.ProviderRequest) []turnrpc.ProviderEvent {
				if n == 0 {
					return turntest.Use(turntest.Command("echo hi"))
				}
				return turntest.Say("ok")
			}, Approve: func(r turnrpc.ApprovalRequest) turnrpc.Approval {
				if name == turnrpc.ExtDenialReason {
					return turnrpc.Approval{Decision: turnrpc.DecisionDeny, Cause: turnrpc.CauseUser}
				}
				return allow(r)
			}})
			events, err := a.Start(turnrpc.UserTurn{Text: "go"}).Wait()
			if err != nil {
				t.Fatal(err)
			}
			kinds := turntest.Kinds(events)
			if got, want := strings.Contains(kinds, turnrpc.EventToolStart), name == turnrpc.ExtToolStarted; got != want {
				t.Errorf("tool_start: %s", kinds)
			}
			if got, want := strings.Contains(kinds, turnrpc.EventOutput), name == turnrpc.ExtOutput; got != want {
				t.Errorf("output: %s", kinds)
			}
			r := <-a.Requests
			if got, want := r.Messages[0].Role == turnrpc.RoleSystem, name == turnrpc.ExtSystemPrompt; got != want {
				t.Errorf("first message: %s", r.Messages[0].Role)
			}
			if last := turntest.Last(<-a.Requests); strings.Contains(last, "by the user") != (name == turnrpc.ExtDenialReason) {
				t.Errorf("the model was told %q", last)
			}
		})
	}
}

func TestConfigIsRefused(t *testing.T) {
	for name, c := range map[string]string{
		"secrets":     `{"session_id":"a","capability":"b","secrets":{"k":"v"}}`,
		"mcp_servers": `{"session_id":"a","capability":"b","mcp_servers":[{}]}`,
		"odd secrets": `{"session_id":"a","capability":"b","secrets":"v"}`,
	} {
		if _, err := turn.ParseConfig([]byte(c)); !errors.Is(err, turn.ErrSecrets) {
			t.Errorf("%s: %v", name, err)
		}
	}
	c, err := turn.ParseConfig([]byte(`{"session_id":"a","capability":"b","secrets":{},"mcp_servers":null,"model":{"name":"m"}}`))
	if err != nil || c.RepoDir != "/work/repo" || c.VsockPort != 1024 || c.Model.Name != "m" {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestHostMethods(t *testing.T) {
	a := start(t, turntest.Script{})
	a.write(t, "b/two.txt", "one\ntwo\nthree\n")
	a.write(t, ".git/config", "")
	a.write(t, "a.bin", "\x00\x01")

	var list turnrpc.ListFilesResult
	if err := a.Call(turnrpc.MethodListFiles, turnrpc.ListFiles{Path: ".", Depth: 4, Limit: 50}, &list); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(list.Paths, " "); got != ".git .git/config a.bin b b/two.txt" {
		t.Errorf("list: %s", got)
	}
	var read turnrpc.ReadFileResult
	if err := a.Call(turnrpc.MethodReadFile, turnrpc.ReadFile{Path: "b/two.txt", StartLine: 2, EndLine: 2}, &read); err != nil || read.Content != "two\n" || read.Truncated {
		t.Errorf("read: %+v, %v", read, err)
	}
	if err := a.Call(turnrpc.MethodReadFile, turnrpc.ReadFile{Path: "a.bin"}, &read); err != nil || !read.Binary {
		t.Errorf("read: %+v, %v", read, err)
	}
	var found turnrpc.SearchResult
	if err := a.Call(turnrpc.MethodSearch, turnrpc.Search{Query: "TWO"}, &found); err != nil || strings.Join(found.Matches, " ") != "b/two.txt" {
		t.Errorf("search: %+v, %v", found, err)
	}
	if err := a.Call(turnrpc.MethodSearch, turnrpc.Search{Query: "^t.o$", IsRegex: true, Path: "b"}, &found); err != nil || len(found.Matches) != 1 {
		t.Errorf("search: %+v, %v", found, err)
	}
	var patched turnrpc.ApplyPatchResult
	if err := a.Call(turnrpc.MethodApplyPatch, turnrpc.ApplyPatch{Patch: "--- a/b/two.txt\n+++ b/b/two.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"}, &patched); err != nil || !patched.OK {
		t.Errorf("patch: %+v, %v", patched, err)
	}
	if err := a.Call(turnrpc.MethodApplyPatch, turnrpc.ApplyPatch{Patch: "--- a/b/two.txt\n+++ b/b/two.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"}, &patched); err != nil || patched.OK || !strings.Contains(patched.Output, "| 2") {
		t.Errorf("patch that does not apply: %+v, %v", patched, err)
	}
	var ran turnrpc.RunCommandResult
	if err := a.Call(turnrpc.MethodRunCommand, turnrpc.RunCommand{Command: "cat two.txt; echo no >&2; exit 3", Workdir: "b"}, &ran); err != nil || ran.ExitCode != 3 || ran.Stdout != "one\n2\nthree\n" || ran.Stderr != "no\n" {
		t.Errorf("run: %+v, %v", ran, err)
	}
	// 1 MiB of bytes that are six when encoded: cut, and the connection lives.
	if err := a.Call(turnrpc.MethodRunCommand, turnrpc.RunCommand{Command: "head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2"}, &ran); err != nil || !ran.Truncated {
		t.Errorf("run: truncated %v, %v", ran.Truncated, err)
	}
	if err := a.Call(turnrpc.MethodRunCommand, turnrpc.RunCommand{Command: "sleep 100", TimeoutSec: 1}, &ran); err != nil || ran.ExitCode != 124 {
		t.Errorf("run: %+v, %v", ran, err)
	}
	if err := a.Call(turnrpc.MethodSetModel, turnrpc.SetModel{Model: turnrpc.GuestModel{Name: "m2"}, Secrets: map[string]string{"k": "v"}}, nil); err != nil {
		t.Error(err)
	}
	if err := a.Call(turnrpc.MethodSetTime, turnrpc.SetTime{UnixMicro: 1_700_000_000_000_000}, nil); err != nil {
		t.Error(err)
	}
	var frozen turnrpc.Frozen
	if err := a.Call(turnrpc.MethodQuiesce, nil, &frozen); err != nil || !frozen.Frozen {
		t.Error(err)
	}
	var ctx turnrpc.Context
	if err := a.Call(turnrpc.MethodGetContext, nil, &ctx); err != nil || ctx.History == nil {
		t.Errorf("%+v, %v", ctx, err)
	}
	for method, params := range map[string]any{
		"no_such_method":           nil,
		turnrpc.MethodReadFile:     turnrpc.ReadFile{Path: "../etc/passwd"},
		turnrpc.MethodSetModel:     []int{1},
		turnrpc.MethodRunCommand:   turnrpc.RunCommand{Command: strings.Repeat("x", 16385)},
		turnrpc.MethodApplyPatch:   []string{},
		turnrpc.MethodArchiveChunk: turnrpc.ArchiveChunk{Offset: 7},
		turnrpc.MethodUserTurn:     turnrpc.UserTurn{},
		turnrpc.MethodProviderOpen: turnrpc.ProviderOpen{},
	} {
		err := a.Call(method, params, nil)
		var e *turnrpc.Error
		if !errors.As(err, &e) || e.Code != turnrpc.CodeGuest {
			t.Errorf("%s: %v, want an error of the guest", method, err)
		}
	}
}

func TestModelOfNextTurn(t *testing.T) {
	opened := make(chan turnrpc.ProviderOpen, 2)
	a := start(t, turntest.Script{
		Open:  func(o turnrpc.ProviderOpen) error { opened <- o; return nil },
		Model: func(int, turnrpc.ProviderRequest) []turnrpc.ProviderEvent { return turntest.Say("ok") },
	})
	for _, want := range []string{"m1", "m2"} {
		if want == "m2" {
			if err := a.Call(turnrpc.MethodSetModel, turnrpc.SetModel{Model: turnrpc.GuestModel{Name: want}}, nil); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := a.Start(turnrpc.UserTurn{Text: "x", RichEvents: true}).Wait(); err != nil {
			t.Fatal(err)
		}
		if o := <-opened; o.Model != want || !o.Rich {
			t.Errorf("opened %+v, want %s", o, want)
		}
	}
}

func TestQuiesceEndsWithNextCall(t *testing.T) {
	ours, theirs := net.Pipe()
	m := &fakeMachine{}
	cfg := config(t, t.TempDir(), t.TempDir())
	cfg.Machine = m
	done := make(chan error, 1)
	go func() { done <- turn.Serve(context.Background(), theirs, cfg) }()
	h := turntest.New(t, ours, turntest.Script{})
	for _, method := range []string{turnrpc.MethodQuiesce, turnrpc.MethodGetContext} {
		if err := h.Call(method, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	m.mu.Lock()
	if got := strings.Join(m.calls, " "); got != "freeze thaw" {
		t.Error(got)
	}
	m.mu.Unlock()
	if err := h.Call(turnrpc.MethodShutdown, nil, nil); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Errorf("after shutdown: %v", err)
	}
}

func TestHistorySurvives(t *testing.T) {
	script := turntest.Script{Model: func(n int, r turnrpc.ProviderRequest) []turnrpc.ProviderEvent {
		if n == 0 {
			return turntest.Use([2]string{"list_files", `{"path":"."}`})
		}
		return turntest.Say("hello there")
	}}
	a := start(t, script)
	if _, err := a.Start(turnrpc.UserTurn{Text: "first words"}).Wait(); err != nil {
		t.Fatal(err)
	}
	_ = a.Conn.Close()
	<-a.done
	a.done <- nil

	st, err := os.Stat(filepath.Join(a.state, "context.json"))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	b := resume(t, script, a.repo, a.state)
	if got, want := turntest.Kinds(b.Greeted().History), "user tool:ok text"; got != want {
		t.Errorf("history is %s, want %s", got, want)
	}
	if _, err := b.Start(turnrpc.UserTurn{Text: "second"}).Wait(); err != nil {
		t.Fatal(err)
	}
	r := <-b.Requests
	if len(r.Messages) != 5 || r.Messages[1].ToolName != "list_files" || r.Messages[2].ToolID != r.Messages[1].ToolID {
		t.Errorf("the model was sent %+v", r.Messages)
	}
}

func TestDamagedContext(t *testing.T) {
	for name, text := range map[string]string{"half": `{"version":1,"messa`, "version": `{"version":9}`, "type": `{"version":1,"messages":7}`} {
		t.Run(name, func(t *testing.T) {
			state := t.TempDir()
			if err := os.WriteFile(filepath.Join(state, "context.json"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			a := resume(t, turntest.Script{}, t.TempDir(), state)
			if h := a.Greeted(); len(h.History) != 0 {
				t.Error(h.History)
			}
			if b, err := os.ReadFile(filepath.Join(state, "context.json.damaged")); err != nil || string(b) != text {
				t.Errorf("the damaged file was not kept: %v", err)
			}
		})
	}
	t.Run("call without result", func(t *testing.T) {
		state := t.TempDir()
		b, _ := json.Marshal(map[string]any{"version": 1, "messages": []turnrpc.Message{
			{Role: "tool", ToolID: "z", ToolResult: "orphan"},
			{Role: "user", Content: "u"}, {Role: "assistant", ToolID: "a", ToolName: "x", ToolArgs: "{}"}, {Role: "user", Content: "v"},
		}})
		if err := os.WriteFile(filepath.Join(state, "context.json"), b, 0o600); err != nil {
			t.Fatal(err)
		}
		a := resume(t, turntest.Script{Model: func(int, turnrpc.ProviderRequest) []turnrpc.ProviderEvent { return turntest.Say("k") }}, t.TempDir(), state)
		if _, err := a.Start(turnrpc.UserTurn{Text: "w"}).Wait(); err != nil {
			t.Fatal(err)
		}
		if r := <-a.Requests; len(r.Messages) != 3 {
			t.Errorf("%+v", r.Messages)
		}
	})
}

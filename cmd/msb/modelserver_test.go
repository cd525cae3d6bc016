package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// modelServer is a model behind the two interfaces of real ones, in their streaming formats: /v1/chat/completions as
// OpenAI has it and /v1/messages as Anthropic has it. It plays steps: text and tool calls for the first request of a
// conversation, then for the one with the results of those calls, and so on.
type modelServer struct {
	*httptest.Server
	key string

	mu       sync.Mutex
	steps    []modelStep
	results  [][]string // that came with each request, in order
	tools    []string   // of the last request
	problems []string
	asked    int
}

// modelStep is one answer.
type modelStep struct {
	text  string
	calls []modelCall
	// status other than 0 is an error; its body repeats the key, as careless servers do.
	status int
	before func() // is called before the answer begins
	// hang leaves the answer without an end until the client goes away; hanging is told when the text is out.
	hang    bool
	hanging chan<- struct{}
	gone    chan<- struct{} // is closed when it did
}

type modelCall struct{ name, args string }

func serveModel(t *testing.T, key string) *modelServer {
	t.Helper()
	s := &modelServer{key: key}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", s.chat)
	mux.HandleFunc("POST /v1/messages", s.messages)
	s.Server = httptest.NewServer(mux)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, p := range s.problems {
			t.Error(p)
		}
	})
	return s
}

// plays sets the steps of the next conversation.
func (s *modelServer) plays(steps ...modelStep) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps, s.results, s.asked = steps, nil, 0
}

func (s *modelServer) problem(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.problems = append(s.problems, fmt.Sprintf(format, args...))
}

// seen returns the tool results of each request and the tools offered.
func (s *modelServer) seen() (results [][]string, tools []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.results, s.tools
}

// take notes a request and returns the step to play.
func (s *modelServer) take(results, tools []string) modelStep {
	s.mu.Lock()
	s.results, s.tools = append(s.results, results), tools
	step := modelStep{text: "I have nothing more to do."}
	if s.asked < len(s.steps) {
		step = s.steps[s.asked]
		s.asked++
	}
	s.mu.Unlock()
	if step.before != nil {
		step.before()
	}
	return step
}

// refused answers what is not a stream; it tells whether it did.
func (s *modelServer) refused(w http.ResponseWriter, step modelStep) bool {
	if step.status == 0 {
		return false
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(step.status)
	fmt.Fprintf(w, `{"error":{"type":"invalid_request_error","message":"your key %s is not good for this"}}`, s.key)
	return true
}

func (s *modelServer) chat(w http.ResponseWriter, r *http.Request) {
	if got := r.Header.Get("Authorization"); got != "Bearer "+s.key {
		s.problem("chat: Authorization %q", got)
	}
	var req struct {
		Model    string
		Stream   bool
		Messages []struct {
			Role       string
			Content    any
			ToolCallID string `json:"tool_call_id"`
			ToolCalls  []struct {
				ID       string
				Function struct{ Name, Arguments string }
			} `json:"tool_calls"`
		}
		Tools []struct{ Function struct{ Name string } }
	}
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil || !req.Stream || req.Model == "" {
		s.problem("chat: %+v, %v", req, err)
	}
	var results, tools []string
	open := map[string]bool{}
	for _, m := range req.Messages {
		for _, c := range m.ToolCalls {
			open[c.ID] = true
		}
		switch {
		case m.Role == "tool" && !open[m.ToolCallID]:
			s.problem("chat: the result of %q has no call", m.ToolCallID)
		case m.Role == "tool":
			delete(open, m.ToolCallID)
			results = append(results, fmt.Sprint(m.Content))
		}
	}
	if len(open) > 0 {
		s.problem("chat: calls without a result: %v", open)
	}
	for _, t := range req.Tools {
		tools = append(tools, t.Function.Name)
	}
	step := s.take(results, tools)
	if s.refused(w, step) {
		return
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	send := func(choice map[string]any) {
		b, _ := json.Marshal(map[string]any{"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": req.Model,
			"choices": []any{choice}, "usage": nil})
		fmt.Fprintf(w, "data: %s\n\n", b)
		w.(http.Flusher).Flush()
	}
	delta := func(d map[string]any) { send(map[string]any{"index": 0, "delta": d, "finish_reason": nil}) }
	delta(map[string]any{"role": "assistant", "content": ""})
	for _, word := range strings.SplitAfter(step.text, " ") {
		delta(map[string]any{"content": word})
	}
	if s.hangs(r, step) {
		return
	}
	for i, c := range step.calls {
		delta(map[string]any{"tool_calls": []any{map[string]any{"index": i, "id": fmt.Sprintf("call_%d_%d", len(results), i), "type": "function",
			"function": map[string]any{"name": c.name, "arguments": ""}}}})
	}
	for i, c := range step.calls { // their arguments come mixed, in pieces
		for _, piece := range []string{c.args[:len(c.args)/2], c.args[len(c.args)/2:]} {
			delta(map[string]any{"tool_calls": []any{map[string]any{"index": i, "function": map[string]any{"arguments": piece}}}})
		}
	}
	reason := "stop"
	if len(step.calls) > 0 {
		reason = "tool_calls"
	}
	send(map[string]any{"index": 0, "delta": map[string]any{}, "finish_reason": reason})
	io.WriteString(w, `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":120,"completion_tokens":7,"total_tokens":127}}`+"\n\ndata: [DONE]\n\n")
}

// hangs waits for the client to go away, if the step says so.
func (s *modelServer) hangs(r *http.Request, step modelStep) bool {
	if !step.hang {
		return false
	}
	if step.hanging != nil {
		step.hanging <- struct{}{}
	}
	<-r.Context().Done()
	if step.gone != nil {
		close(step.gone)
	}
	return true
}

func (s *modelServer) messages(w http.ResponseWriter, r *http.Request) {
	if got := r.Header.Get("X-Api-Key"); got != s.key || r.Header.Get("Anthropic-Version") == "" {
		s.problem("messages: x-api-key %q, version %q", got, r.Header.Get("Anthropic-Version"))
	}
	var req struct {
		Model     string
		Stream    bool
		MaxTokens int `json:"max_tokens"`
		System    any
		Messages  []struct {
			Role    string
			Content []struct {
				Type      string
				ID        string
				Text      string
				ToolUseID string `json:"tool_use_id"`
				Content   []struct{ Text string }
			}
		}
		Tools []struct{ Name string }
	}
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil || !req.Stream || req.Model == "" || req.MaxTokens == 0 || req.System == nil {
		s.problem("messages: %+v, %v", req, err)
	}
	var results, tools []string
	open, last := map[string]bool{}, ""
	for _, m := range req.Messages {
		if m.Role == last {
			s.problem("messages: two messages of %q in a row", m.Role)
		}
		last = m.Role
		for _, b := range m.Content {
			switch b.Type {
			case "tool_use":
				open[b.ID] = true
			case "tool_result":
				if !open[b.ToolUseID] {
					s.problem("messages: the result of %q has no call", b.ToolUseID)
				}
				delete(open, b.ToolUseID)
				text := ""
				for _, c := range b.Content {
					text += c.Text
				}
				results = append(results, text)
			}
		}
	}
	if len(open) > 0 {
		s.problem("messages: calls without a result: %v", open)
	}
	for _, t := range req.Tools {
		tools = append(tools, t.Name)
	}
	step := s.take(results, tools)
	if s.refused(w, step) {
		return
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	send := func(kind string, body map[string]any) {
		body["type"] = kind
		b, _ := json.Marshal(body)
		fmt.Fprintf(w, "event: %s\ndata: %s\n\n", kind, b)
		w.(http.Flusher).Flush()
	}
	send("message_start", map[string]any{"message": map[string]any{"id": "msg_1", "type": "message", "role": "assistant", "model": req.Model,
		"content": []any{}, "stop_reason": nil, "stop_sequence": nil, "usage": map[string]any{"input_tokens": 110, "output_tokens": 1}}})
	send("content_block_start", map[string]any{"index": 0, "content_block": map[string]any{"type": "text", "text": ""}})
	send("ping", map[string]any{})
	for _, word := range strings.SplitAfter(step.text, " ") {
		send("content_block_delta", map[string]any{"index": 0, "delta": map[string]any{"type": "text_delta", "text": word}})
	}
	if s.hangs(r, step) {
		return
	}
	send("content_block_stop", map[string]any{"index": 0})
	for i, c := range step.calls {
		send("content_block_start", map[string]any{"index": i + 1, "content_block": map[string]any{"type": "tool_use",
			"id": fmt.Sprintf("toolu_%d_%d", len(results), i), "name": c.name, "input": map[string]any{}}})
		for _, piece := range []string{"", c.args[:len(c.args)/2], c.args[len(c.args)/2:]} {
			send("content_block_delta", map[string]any{"index": i + 1, "delta": map[string]any{"type": "input_json_delta", "partial_json": piece}})
		}
		send("content_block_stop", map[string]any{"index": i + 1})
	}
	reason := "end_turn"
	if len(step.calls) > 0 {
		reason = "tool_use"
	}
	send("message_delta", map[string]any{"delta": map[string]any{"stop_reason": reason, "stop_sequence": nil}, "usage": map[string]any{"output_tokens": 9}})
	send("message_stop", map[string]any{})
}

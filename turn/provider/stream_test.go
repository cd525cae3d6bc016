package provider_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"msb/protocol/turnrpc"
	"msb/turn/config"
)

// What the two kinds of server really send.
const (
	chatAnswer = `: OPENROUTER PROCESSING

data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"model-1","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}

data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"model-1","choices":[{"index":0,"delta":{"content":"I look "},"finish_reason":null}]}

data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"model-1","choices":[{"index":0,"delta":{"content":"at both. ☂"},"finish_reason":null}]}

data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"model-1","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"call_a","type":"function","function":{"name":"read_file","arguments":""}}]},"finish_reason":null}]}

data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"model-1","choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"id":"call_b","type":"function","function":{"name":"svc__echo","arguments":""}}]},"finish_reason":null}]}

data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"model-1","choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"function":{"arguments":"{\"text\":"}},{"index":0,"function":{"arguments":"{\"path\""}}]},"finish_reason":null}]}

data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"model-1","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":":\"a.go\"}"}},{"index":1,"function":{"arguments":"\"hi\"}"}}]},"finish_reason":null}]}

data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"model-1","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}

data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"model-1","choices":[],"usage":{"prompt_tokens":31,"completion_tokens":12,"total_tokens":43}}

data: [DONE]

`
	messagesAnswer = `event: message_start
data: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"model-1","content":[],"stop_reason":null,"usage":{"input_tokens":20,"cache_read_input_tokens":11,"output_tokens":1}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}

event: ping
data: {"type": "ping"}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"I look "}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"at both. ☂"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"call_a","name":"read_file","input":{}}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"path\""}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":":\"a.go\"}"}}

event: content_block_stop
data: {"type":"content_block_stop","index":1}

event: content_block_start
data: {"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"call_b","name":"svc__echo","input":{}}}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{\"text\":\"hi\"}"}}

event: content_block_stop
data: {"type":"content_block_stop","index":2}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"output_tokens":12}}

event: message_stop
data: {"type":"message_stop"}

`
	bothSay = `text:I look at both. ☂ | tool:call_a read_file {"path":"a.go"} | tool:call_b svc__echo {"text":"hi"} | usage:31/12 | done:tool_use`
)

func TestAnswerOfBothInterfaces(t *testing.T) {
	for _, c := range []struct{ api, body, path string }{
		{config.APIChat, chatAnswer, "/v1/chat/completions"},
		{config.APIMessages, messagesAnswer, "/v1/messages"},
	} {
		for _, size := range []int{1 << 20, 64, 1} {
			t.Run(fmt.Sprintf("%s in pieces of %d", c.api, size), func(t *testing.T) {
				s := serve(t, stream(c.body, size))
				r := newRig(t, profile(s, c.api))
				if got := show(r.ask(user("hi"))); got != bothSay {
					t.Errorf("got  %s\nwant %s", got, bothSay)
				}
				q := s.seen()[0]
				if q.path != c.path {
					t.Errorf("path %s", q.path)
				}
				auth := q.header.Get("Authorization") + q.header.Get("X-Api-Key")
				if auth != "Bearer "+canary && auth != canary {
					t.Errorf("the key is %q", auth)
				}
			})
		}
	}
}

func TestCRLF(t *testing.T) {
	s := serve(t, stream(strings.ReplaceAll(chatAnswer, "\n", "\r\n"), 100))
	if got := show(newRig(t, profile(s, config.APIChat)).ask(user("hi"))); got != bothSay {
		t.Errorf("got %s", got)
	}
}

// chunk is an event of a chat stream.
func chunk(delta, finish string) string {
	if finish != "null" {
		finish = `"` + finish + `"`
	}
	return `data: {"choices":[{"index":0,"delta":` + delta + `,"finish_reason":` + finish + `}]}` + "\n\n"
}

func TestOddAnswers(t *testing.T) {
	call := func(id, name, args string, index int) string {
		return chunk(fmt.Sprintf(`{"tool_calls":[{"index":%d,"id":%q,"function":{"name":%q,"arguments":%q}}]}`, index, id, name, args), "null")
	}
	event := func(kind, data string) string { return "event: " + kind + "\ndata: " + data + "\n\n" }
	start := event("message_start", `{"type":"message_start","message":{"usage":{"input_tokens":4}}}`)
	stop := event("message_delta", `{"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":1}}`) + event("message_stop", `{"type":"message_stop"}`)
	for _, c := range []struct{ name, api, body, want string }{
		{"end mark alone", "chat", chunk(`{"content":"hi"}`, "null") + "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n", `text:hi | usage:3/2 | done:`},
		{"finish reason alone", "chat", chunk(`{"content":"hi"}`, "stop"), `text:hi | done:end_turn`},
		{"all calls with index 0", "chat", call("a", "f", "{}", 0) + call("b", "g", `{"x":1}`, 0) + chunk("{}", "tool_calls"), ` | tool:a f {} | tool:b g {"x":1} | done:tool_use`},
		{"call without arguments", "chat", call("a", "f", "", 0) + chunk("{}", "tool_calls"), ` | tool:a f {} | done:tool_use`},
		{"arguments that do not parse", "chat", call("a", "f", `{"x":`, 0) + chunk("{}", "tool_calls"), ` | tool:a f {"x": | done:tool_use`},
		{"cut inside a call", "chat", call("a", "f", `{"x":`, 0) + chunk("{}", "length"), ` | error:the model's answer was cut off inside a tool call: raise max_tokens of the profile`},
		{"cut text", "chat", chunk(`{"content":"hi"}`, "length"), `text:hi | done:max_tokens`},
		{"broken off", "chat", chunk(`{"content":"hi"}`, "null"), `text:hi | error:the provider's answer broke off`},
		{"broken off in a call", "chat", call("a", "f", `{}`, 0), ` | error:the provider's answer broke off`},
		{"nothing", "chat", "", ` | error:the provider's answer broke off`},
		{"garbage", "chat", "data: \x00\xff\xfe{{{\n\n", ` | error:the provider's answer is garbled`},
		{"not even lines", "chat", strings.Repeat("\x01\x02", 1000), ` | error:the provider's answer broke off`},
		{"half JSON", "chat", chunk(`{"content":"hi"}`, "null") + "data: {\"choices\":[{\"delta\":{\"con\n\n", `text:hi | error:the provider's answer is garbled`},
		{"wrong JSON", "chat", "data: [1,2]\n\n", ` | error:the provider's answer is garbled`},
		{"error inside", "chat", chunk(`{"content":"hi"}`, "null") + "data: {\"error\":{\"message\":\"body of the provider " + canary + "\",\"type\":\"server_error\"}}\n\n", `text:hi | error:the provider reported an error in its answer`},
		{"too long, said inside", "chat", "data: {\"error\":{\"message\":\"body of the provider\",\"code\":\"context_length_exceeded\"}}\n\n", ` | error:the request is too long for the model's context window`},
		{"arguments of 600 KiB", "chat", call("a", "f", strings.Repeat("x", 300<<10), 0) + call("a", "", strings.Repeat("x", 300<<10), 0), ` | error:provider tool arguments too large`},
		{"a million calls", "chat", manyCalls(), ` | error:provider tool arguments too large`},
		{"text of 600 KiB in one event", "chat", chunk(`{"content":"`+strings.Repeat("x", 600<<10)+`"}`, "stop"), ` | error:provider event too large`},
		{"event of 2 MiB", "chat", chunk(`{"content":"`+strings.Repeat("x", 2<<20)+`"}`, "stop"), ` | error:the provider's answer is too large`},
		{"event of many lines", "chat", strings.Repeat("data: x\n", 200000), ` | error:the provider's answer is too large`},

		{"empty input", "messages", start + event("content_block_start", `{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"a","name":"f","input":{}}}`) + event("content_block_stop", `{"type":"content_block_stop","index":0}`) + stop, ` | tool:a f {} | usage:4/1 | done:tool_use`},
		{"input at the start", "messages", start + event("content_block_start", `{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"a","name":"f","input":{"x":1}}}`) + event("content_block_stop", `{"type":"content_block_stop","index":0}`) + stop, ` | tool:a f {"x":1} | usage:4/1 | done:tool_use`},
		{"thinking", "messages", start + event("content_block_start", `{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":""}}`) + event("content_block_delta", `{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}`) + stop, ` | usage:4/1 | done:tool_use`},
		{"unknown event", "messages", start + event("news", `{"type":"news"}`) + stop, ` | usage:4/1 | done:tool_use`},
		{"broken off", "messages", start, ` | error:the provider's answer broke off`},
		{"overloaded inside", "messages", start + event("error", `{"type":"error","error":{"type":"overloaded_error","message":"body of the provider `+canary+`"}}`), ` | error:the provider is overloaded`},
		{"garbage", "messages", event("message_start", `{{{`), ` | error:the provider's answer is garbled`},
	} {
		t.Run(c.api+" "+c.name, func(t *testing.T) {
			s := serve(t, stream(c.body, 1<<20))
			if got := show(newRig(t, profile(s, c.api)).ask(user("hi"))); got != c.want {
				t.Errorf("got  %.300s\nwant %s", got, c.want)
			}
			if n := len(s.seen()); n != 1 {
				t.Errorf("%d requests; an answer that began is not asked for again", n)
			}
		})
	}
}

func manyCalls() string {
	var b strings.Builder
	for i := range 200 {
		fmt.Fprintf(&b, "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":%d,\"id\":\"i%d\",\"function\":{\"name\":\"f\"}}]}}]}\n\n", i, i)
	}
	return b.String()
}

func TestHundredMegabytes(t *testing.T) {
	piece := []byte(chunk(`{"content":"`+strings.Repeat("x", 64<<10)+`"}`, "null"))
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for range 1600 {
			if _, err := w.Write(piece); err != nil {
				return
			}
		}
	})
	if got := show(newRig(t, profile(s, config.APIChat)).ask(user("hi"))); !strings.HasSuffix(got, "| error:the provider's answer is too large") {
		t.Errorf("ended with %s", got[max(0, len(got)-100):])
	}
}

func TestRefusals(t *testing.T) {
	body := `{"error":{"message":"body of the provider: wrong key ` + canary + `","type":"x"}}`
	for _, c := range []struct {
		name    string
		answer  http.HandlerFunc
		want    string
		attempt int
	}{
		{"wrong key", status(401, "", body), "the provider answered 401 (the key is not accepted)", 1},
		{"forbidden", status(403, "", body), "the provider answered 403 (forbidden)", 1},
		{"no such model", status(404, "", body), "the provider answered 404 (model or address not found)", 1},
		{"bad request", status(400, "", body), "the provider answered 400 (request refused)", 1},
		{"too long", status(400, "", `{"error":{"code":"context_length_exceeded","message":"body of the provider"}}`), "the provider answered 400 (the request is too long for the model's context window)", 1},
		{"too long for a proxy", status(413, "", "<html>"), "the provider answered 413 (the request is too long for the model's context window)", 1},
		{"error that is no JSON", status(400, "", "\xff\xfe body of the provider"), "the provider answered 400 (request refused)", 1},
		{"endless error", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(400)
			for {
				if _, err := w.Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		}, "the provider answered 400 (request refused)", 1},
		{"rate limit for ever", status(429, "Retry-After-Ms: 1", body), "the provider answered 429 (too many requests, or no quota left)", 3},
		{"broken server", status(500, "Retry-After-Ms: 1", body), "the provider answered 500 (server error)", 3},
		{"a web page", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			io.WriteString(w, "body of the provider")
		}, "the provider's answer is no event stream", 1},
		{"no stream", status(200, "", `{"choices":[]}`), "the provider's answer is no event stream", 1},
	} {
		for _, api := range []string{config.APIChat, config.APIMessages} {
			t.Run(api+" "+c.name, func(t *testing.T) {
				s := serve(t, c.answer)
				if got := show(newRig(t, profile(s, api)).ask(user("hi"))); got != " | error:"+c.want {
					t.Errorf("got %s", got)
				}
				if n := len(s.seen()); n != c.attempt {
					t.Errorf("%d requests", n)
				}
			})
		}
	}
}

func TestRetriedBeforeTheFirstByte(t *testing.T) {
	for api, body := range map[string]string{config.APIChat: chatAnswer, config.APIMessages: messagesAnswer} {
		s := serve(t, status(429, "Retry-After-Ms: 1", "{}"), status(503, "Retry-After-Ms: 1", "{}"), stream(body, 1000))
		if got := show(newRig(t, profile(s, api)).ask(user("hi"))); got != bothSay {
			t.Errorf("%s: got %s", api, got)
		}
		if n := len(s.seen()); n != 3 {
			t.Errorf("%s: %d requests", api, n)
		}
	}
}

func TestNobodyThere(t *testing.T) {
	s := serve(t, stream("", 1))
	m := profile(s, config.APIChat)
	none := 0
	m.Retries = &none
	s.Close()
	if got := show(newRig(t, m).ask(user("hi"))); got != " | error:the provider could not be reached (connection refused)" {
		t.Errorf("got %s", got)
	}
}

func TestSilence(t *testing.T) {
	hang := func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	begin := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, chunk(`{"content":"hi"}`, "null"))
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}
	drip := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for r.Context().Err() == nil {
			io.WriteString(w, ": still here\n\n")
			w.(http.Flusher).Flush()
			select {
			case <-time.After(10 * time.Millisecond):
			case <-r.Context().Done():
			}
		}
	}
	for _, c := range []struct {
		name   string
		answer http.HandlerFunc
		set    func(*config.Timeouts)
		want   string
	}{
		{"no answer", hang, func(t *config.Timeouts) { t.Connect, t.FirstByte = 2*time.Second, time.Second }, " | error:the provider sent nothing for 1s"},
		{"stops in the middle", begin, func(t *config.Timeouts) { t.Idle = 2 * time.Second }, "text:hi | error:the provider sent nothing for 2s"},
		{"drips for ever", drip, func(t *config.Timeouts) { t.Total = 2 * time.Second }, " | error:the answer took longer than 2s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := serve(t, c.answer)
			m := profile(s, config.APIChat)
			c.set(&m.Timeouts)
			if got := show(newRig(t, m).ask(user("hi"))); got != c.want {
				t.Errorf("got %s", got)
			}
			if n := len(s.seen()); n != 1 {
				t.Errorf("%d requests", n)
			}
		})
	}
}

func TestRedirectIsNotFollowed(t *testing.T) {
	for _, code := range []int{301, 302, 307, 308} {
		for _, api := range []string{config.APIChat, config.APIMessages} {
			thief := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				t.Errorf("%d: the other host was asked, with %v", code, r.Header)
			}))
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, thief.URL+"/?k="+r.Header.Get("Authorization")+r.Header.Get("X-Api-Key"), code)
			})
			if got := show(newRig(t, profile(s, api)).ask(user("hi"))); got != " | error:the provider redirects to another address, which is not followed" {
				t.Errorf("%d: got %s", code, got)
			}
			thief.Close()
		}
	}
}

func TestHostThatIsNotAllowed(t *testing.T) {
	s := serve(t, stream(chatAnswer, 100))
	m := profile(s, config.APIChat)
	m.Hosts = []string{"api.example"}
	if got := show(newRig(t, m).ask(user("hi"))); got != " | error:the host of the request is not allowed by the profile" {
		t.Errorf("got %s", got)
	}
	if len(s.seen()) != 0 {
		t.Error("the host was asked")
	}
}

func TestEnvironmentOfTheSDKs(t *testing.T) {
	thief := serve(t, stream("", 1))
	for _, v := range []string{"OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"} {
		t.Setenv(v, thief.URL)
	}
	for _, v := range []string{"OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"} {
		t.Setenv(v, "from-the-environment")
	}
	for api, body := range map[string]string{config.APIChat: chatAnswer, config.APIMessages: messagesAnswer} {
		s := serve(t, stream(body, 1000))
		m := profile(s, api)
		m.Credential = nil
		if got := show(newRig(t, m).ask(user("hi"))); got != bothSay {
			t.Errorf("%s: got %s", api, got)
		}
		if h := fmt.Sprint(s.seen()[0].header); strings.Contains(h, "from-the-environment") {
			t.Errorf("%s: headers %s", api, h)
		}
	}
	if len(thief.seen()) != 0 {
		t.Error("an address from the environment was asked")
	}
}

func TestCancelClosesTheRequest(t *testing.T) {
	for _, api := range []string{config.APIChat, config.APIMessages} {
		began, ended := make(chan struct{}), make(chan struct{})
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			w.(http.Flusher).Flush()
			close(began)
			<-r.Context().Done()
			close(ended)
		})
		r := newRig(t, profile(s, api))
		id := r.start(user("hi"))
		<-began
		r.Cancel(id)
		select {
		case <-ended:
		case <-time.After(time.Minute):
			t.Fatal("the request goes on")
		}
		r.Broker.Close()
		if len(r.events) != 0 {
			t.Errorf("%s: %v after the cancel", api, <-r.events)
		}
		r.Cancel(id)
		r.Cancel("s999")
	}
}

func TestRequestOfBothInterfaces(t *testing.T) {
	req := turnrpc.ProviderRequest{
		Messages: []turnrpc.Message{
			{Role: "system", Content: "You are here."},
			{Role: "user", Content: "look"},
			{Role: "assistant", Content: "I look."},
			{Role: "assistant", ToolName: "read_file", ToolID: "functions.read:0", ToolArgs: ""},
			{Role: "assistant", ToolName: "bad.name", ToolID: "b", ToolArgs: "{broken"},
			{Role: "tool", ToolID: "b", ToolResult: ""},
			{Role: "tool", ToolID: "functions.read:0", ToolResult: "text"},
			{Role: "assistant", ToolName: "read_file", ToolID: "b", ToolArgs: `{"path":"x"}`},
			{Role: "user", Content: "go on"},
			{Role: "tool", ToolID: "lost", ToolResult: "late"},
		},
		Tools: []turnrpc.Tool{
			{Name: "read_file", Description: "reads", Parameters: json.RawMessage(`{"type":"object","properties":{"path":{"type":"string"}},"required":["path"],"additionalProperties":false}`)},
			{Name: "bad.name"},
		},
	}
	const chatWant = `[{"content":"You are here.","role":"system"},{"content":"look","role":"user"},` +
		`{"content":"I look.","role":"assistant","tool_calls":[{"function":{"arguments":"{}","name":"read_file"},"id":"call_ID1","type":"function"},{"function":{"arguments":"{\"not_an_object\":\"{broken\"}","name":"bad_name"},"id":"b","type":"function"}]},` +
		`{"content":"(no output)","role":"tool","tool_call_id":"b"},{"content":"text","role":"tool","tool_call_id":"call_ID1"},` +
		`{"role":"assistant","tool_calls":[{"function":{"arguments":"{\"path\":\"x\"}","name":"read_file"},"id":"call_ID2","type":"function"}]},` +
		`{"content":"error: this call has no result","role":"tool","tool_call_id":"call_ID2"},{"content":"go on\n\n[result of an earlier tool call]\nlate","role":"user"}]`
	const messagesWant = `[{"content":[{"text":"look","type":"text"}],"role":"user"},` +
		`{"content":[{"text":"I look.","type":"text"},{"id":"call_ID1","input":{},"name":"read_file","type":"tool_use"},{"id":"b","input":{"not_an_object":"{broken"},"name":"bad_name","type":"tool_use"}],"role":"assistant"},` +
		`{"content":[{"content":[{"text":"(no output)","type":"text"}],"is_error":false,"tool_use_id":"b","type":"tool_result"},{"content":[{"text":"text","type":"text"}],"is_error":false,"tool_use_id":"call_ID1","type":"tool_result"}],"role":"user"},` +
		`{"content":[{"id":"call_ID2","input":{"path":"x"},"name":"read_file","type":"tool_use"}],"role":"assistant"},` +
		`{"content":[{"content":[{"text":"error: this call has no result","type":"text"}],"is_error":true,"tool_use_id":"call_ID2","type":"tool_result"},{"text":"go on\n\n[result of an earlier tool call]\nlate","type":"text"}],"role":"user"}]`
	for api, want := range map[string]string{config.APIChat: chatWant, config.APIMessages: messagesWant} {
		body := chatAnswer
		if api == config.APIMessages {
			body = messagesAnswer
		}
		s := serve(t, stream(strings.ReplaceAll(body, "svc__echo", "bad_name"), 1000))
		m := profile(s, api)
		m.MaxTokens = 77
		got := show(newRig(t, m).ask(req))
		if !strings.Contains(got, "tool:call_b bad.name") {
			t.Errorf("%s: the guest's own name of the tool does not come back: %s", api, got)
		}
		sent := s.seen()[0].body
		b, _ := json.Marshal(sent["messages"])
		text := string(b)
		for i, id := range ids(text) {
			text = strings.ReplaceAll(text, id, fmt.Sprintf("call_ID%d", i+1))
		}
		if text != want {
			t.Errorf("%s: messages\ngot  %s\nwant %s", api, text, want)
		}
		tools, _ := json.Marshal(sent["tools"])
		for _, part := range []string{`"additionalProperties":false`, `"required":["path"]`, `"name":"bad_name"`, `"type":"object"`} {
			if !strings.Contains(string(tools), part) {
				t.Errorf("%s: tools %s lack %s", api, tools, part)
			}
		}
		if sent["stream"] != true || sent["max_tokens"] != 77.0 || sent["model"] != "model-1" {
			t.Errorf("%s: stream %v, max_tokens %v, model %v", api, sent["stream"], sent["max_tokens"], sent["model"])
		}
		if api == config.APIMessages && !strings.Contains(fmt.Sprint(sent["system"]), "You are here.") {
			t.Errorf("system is %v", sent["system"])
		}
	}
}

// ids finds the made-up ids of a text in their order.
func ids(text string) []string {
	var found []string
	for _, part := range strings.Split(text, `"`) {
		if strings.HasPrefix(part, "call_") && len(part) == 29 && (len(found) == 0 || found[len(found)-1] != part && found[0] != part) {
			found = append(found, part)
		}
	}
	return found
}

func TestSlowGuestHoldsTheModelBack(t *testing.T) {
	var sent int
	full := make(chan struct{})
	piece := []byte(chunk(`{"content":"`+strings.Repeat("x", 32<<10)+`"}`, "null"))
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		defer close(full)
		w.Header().Set("Content-Type", "text/event-stream")
		for sent < 1000 {
			ctl := http.NewResponseController(w)
			ctl.SetWriteDeadline(time.Now().Add(time.Second))
			if _, err := w.Write(piece); err != nil {
				return
			}
			sent++
		}
	})
	r := newRig(t, profile(s, config.APIChat))
	r.events = make(chan turnrpc.ProviderEvent) // nobody takes anything
	id := r.start(user("hi"))
	<-full
	if sent >= 900 {
		t.Errorf("%d pieces of 32 KiB were taken from the model while the guest took none", sent)
	}
	// The broker still works: it holds no lock.
	if _, err := r.Open(context.Background(), "m", false); err != nil {
		t.Error(err)
	}
	r.Cancel(id)
	<-r.events
}

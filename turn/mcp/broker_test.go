package mcp_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"msb/protocol/turnrpc"
	"msb/turn"
	"msb/turn/config"
	"msb/turn/creds"
	"msb/turn/mcp"
)

var _ turn.MCP = (*mcp.Broker)(nil)

// canary is a token. It may be in requests to the server, and nowhere else.
const canary = "tok-canary-77aa12"

// TestMain also is the program of the stdio servers.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "mcp-demo":
			if err := mcp.Demo(context.Background(), os.Stdin, os.Stdout); err != nil {
				os.Exit(1)
			}
			return
		case "stdio":
			stdioServer(os.Args[2:])
			return
		}
	}
	os.Exit(m.Run())
}

// tracker is a server of a test with the tool echo.
func tracker(more ...func(*sdk.Server)) *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "tracker", Version: "1"}, nil)
	s.AddTool(&sdk.Tool{Name: "echo", Description: "says it again", InputSchema: json.RawMessage(`{"type":"object","properties":{"text":{"type":"string"}}}`), Annotations: &sdk.ToolAnnotations{ReadOnlyHint: true}},
		func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			var in struct{ Text string }
			if err := json.Unmarshal(r.Params.Arguments, &in); err != nil {
				return nil, err
			}
			return said("echo:" + in.Text), nil
		})
	for _, add := range more {
		add(s)
	}
	return s
}

func said(text string) *sdk.CallToolResult {
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}}
}

// tool adds a tool that answers with a result.
func tool(name string, schema any, r *sdk.CallToolResult) func(*sdk.Server) {
	return func(s *sdk.Server) {
		s.AddTool(&sdk.Tool{Name: name, InputSchema: schema}, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) { return r, nil })
	}
}

var anything = json.RawMessage(`{"type":"object"}`)

// overHTTP serves a server and wraps what it gets.
func overHTTP(t *testing.T, s *sdk.Server, wrap func(http.Handler) http.Handler) string {
	t.Helper()
	var h http.Handler = sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, nil)
	if wrap != nil {
		h = wrap(h)
	}
	srv := httptest.NewServer(h)
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
	return srv.URL + "/mcp"
}

func at(name, url string) config.Server {
	return config.Server{Name: name, URL: url, Loopback: true}
}

type rig struct {
	*mcp.Broker
	store *creds.Store
	log   *syncBuffer
	seen  *syncBuffer // everything that a guest would get
}

func newRig(t *testing.T, servers ...config.Server) *rig {
	t.Helper()
	r := &rig{store: creds.Open(t.TempDir()), log: &syncBuffer{}, seen: &syncBuffer{}}
	for _, s := range servers {
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
	}
	r.Broker = mcp.New(mcp.Options{
		Servers: func() ([]config.Server, error) { return servers, nil }, Credentials: r.store,
		Log: slog.New(slog.NewJSONHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	t.Cleanup(func() {
		r.Close()
		for what, b := range map[string]*syncBuffer{"the guest": r.seen, "the log": r.log} {
			if strings.Contains(b.String(), canary) {
				t.Errorf("the token is in what %s got: %s", what, b.String())
			}
		}
		if s := r.seen.String(); strings.Contains(s, "127.0.0.1") || strings.Contains(s, "http://") {
			t.Errorf("the guest was told an address: %s", s)
		}
	})
	return r
}

func (r *rig) list(t *testing.T) []turnrpc.MCPTool {
	t.Helper()
	tools, err := r.List(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	b, _ := json.Marshal(tools)
	r.seen.Write(b)
	return tools
}

func names(tools []turnrpc.MCPTool) string {
	var list []string
	for _, t := range tools {
		list = append(list, t.Prefixed)
	}
	return strings.Join(list, " ")
}

var callID = func() func() string {
	var mu sync.Mutex
	n := 0
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		n++
		return fmt.Sprint("mcp-", n)
	}
}()

func (r *rig) call(server, tool, args string) (turnrpc.MCPResult, error) {
	return r.callCtx(context.Background(), callID(), server, tool, args)
}

func (r *rig) callCtx(ctx context.Context, id, server, tool, args string) (turnrpc.MCPResult, error) {
	res, err := r.Call(ctx, turnrpc.MCPCall{CallID: id, Server: server, Tool: tool, Arguments: json.RawMessage(args)})
	fmt.Fprintln(r.seen, clip(res.Text), err)
	return res, err
}

func clip(s string) string { return s[:min(len(s), 4096)] }

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func TestListAndCall(t *testing.T) {
	r := newRig(t, at("svc", overHTTP(t, tracker(), nil)))
	tools := r.list(t)
	b, _ := json.Marshal(tools)
	if want := `[{"server":"svc","name":"echo","prefixed":"svc__echo","description":"says it again","parameters":{"properties":{"text":{"type":"string"}},"type":"object"}}]`; string(b) != want {
		t.Errorf("tools %s", b)
	}
	res, err := r.call("svc", "echo", `{"text":"hi"}`)
	if err != nil || res != (turnrpc.MCPResult{Text: "echo:hi"}) {
		t.Errorf("%+v %v", res, err)
	}
	if tool := r.Claim("svc", "echo"); tool != "the server says that it only reads" {
		t.Errorf("%+v", tool)
	}
}

func TestRefusedCalls(t *testing.T) {
	limited := at("limited", overHTTP(t, tracker(tool("other", anything, said("x")), tool("closed", anything, said("x"))), nil))
	limited.Tools = []string{"echo", "closed"}
	limited.Policy = map[string]string{"closed": "deny"}
	r := newRig(t, limited)
	if got := names(r.list(t)); got != "limited__echo" {
		t.Errorf("tools %s", got)
	}
	for _, c := range []struct{ server, tool, args, want string }{
		{"nobody", "echo", "{}", `unknown MCP server "nobody"`},
		{"limited", "other", "{}", `the tool "other" of MCP server "limited" is not allowed`},
		{"limited", "closed", "{}", `the tool "closed" of MCP server "limited" is not allowed`},
		{"limited", "echo", "{", `MCP arguments are not valid JSON`},
		{"limited", "echo", `"` + strings.Repeat("x", turnrpc.MaxMCPArguments) + `"`, `MCP arguments too large: 524290 bytes, allowed are 524288`},
	} {
		if _, err := r.call(c.server, c.tool, c.args); err == nil || err.Error() != c.want {
			t.Errorf("%s %s: %v", c.server, c.tool, err)
		}
	}
	all := at("all", overHTTP(t, tracker(), nil))
	r = newRig(t, all)
	r.list(t)
	if _, err := r.call("all", "undiscovered", "{}"); err == nil || err.Error() != `MCP server "all" has no tool "undiscovered"` {
		t.Errorf("got %v", err)
	}
}

func TestResults(t *testing.T) {
	long := strings.Repeat("x", turnrpc.MaxMCPResult-1) + "☂☂"
	r := newRig(t, at("svc", overHTTP(t, tracker(
		tool("long", anything, said(long)),
		tool("exact", anything, said(strings.Repeat("y", turnrpc.MaxMCPResult))),
		tool("hundred", anything, said(strings.Repeat("z", turnrpc.MaxMCPResult+100))),
		tool("mixed", anything, &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "a"}, &sdk.ImageContent{Data: []byte("img"), MIMEType: "image/png"}}}),
		tool("structured", anything, &sdk.CallToolResult{StructuredContent: json.RawMessage(`{"n":1}`)}),
		tool("failed", anything, &sdk.CallToolResult{IsError: true, Content: []sdk.Content{&sdk.TextContent{Text: "no"}}}),
	), nil)))
	r.list(t)
	for _, c := range []struct {
		tool      string
		size      int
		truncated bool
		isError   bool
		text      string
	}{
		{"long", turnrpc.MaxMCPResult - 1, true, false, ""},
		{"exact", turnrpc.MaxMCPResult, false, false, ""},
		{"hundred", 524288, true, false, ""},
		{"mixed", 0, false, false, "a\n" + `{"type":"image","mimeType":"image/png","data":"aW1n"}`},
		{"structured", 0, false, false, `{"n":1}`},
		{"failed", 0, false, true, "no"},
	} {
		res, err := r.call("svc", c.tool, "{}")
		if err != nil {
			t.Error(c.tool, err)
			continue
		}
		if !utf8.ValidString(res.Text) || res.Truncated != c.truncated || res.IsError != c.isError || c.size > 0 && len(res.Text) != c.size || c.text != "" && res.Text != c.text {
			t.Errorf("%s: %d bytes, %v, %v, %.100s", c.tool, len(res.Text), res.Truncated, res.IsError, res.Text)
		}
	}
}

func TestSchemas(t *testing.T) {
	// The SDK's server checks schemas; a server that lies speaks for itself.
	big := `{"type":"object","description":"` + strings.Repeat("x", turnrpc.MaxMCPSchema) + `"}`
	tools := []string{
		`{"name":"good","inputSchema":{"type":"object"}}`,
		`{"name":"none","inputSchema":null}`,
		`{"name":"untyped","inputSchema":{}}`,
		`{"name":"list","inputSchema":[]}`,
		`{"name":"text","inputSchema":"x"}`,
		`{"name":"wrong","inputSchema":{"type":"string"}}`,
		`{"name":"props","inputSchema":{"type":"object","properties":[]}}`,
		`{"name":"big","inputSchema":` + big + `}`,
		`{"name":"good","description":"again","inputSchema":{"type":"object"}}`,
		`{"name":"","inputSchema":{"type":"object"}}`,
		`{"name":"esc\u001b[2J","inputSchema":{"type":"object"}}`,
		`{"name":"long","description":"` + strings.Repeat("☂", 5000) + `","inputSchema":{"type":"object"}}`,
	}
	r := newRig(t, at("liar", raw(t, func(method string, _ json.RawMessage) string {
		return `{"tools":[` + strings.Join(tools, ",") + `]}`
	})))
	list := r.list(t)
	if got := names(list); got != "liar__good liar__none liar__untyped liar__long" {
		t.Errorf("tools %s", got)
	}
	for _, tool := range list {
		var object map[string]any
		if json.Unmarshal(tool.Parameters, &object) != nil || object == nil || len(tool.Description) > 4096 || !utf8.ValidString(tool.Description) {
			t.Errorf("%s: %s, %d bytes of description", tool.Name, tool.Parameters, len(tool.Description))
		}
	}
}

// raw serves a server made by hand; answer gives the result of each method but
// initialize, "" for no answer at all.
func raw(t *testing.T, answer func(method string, params json.RawMessage) string) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m struct {
			ID     json.RawMessage
			Method string
			Params json.RawMessage
		}
		if r.Method != http.MethodPost || json.NewDecoder(r.Body).Decode(&m) != nil {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		result := ""
		switch m.Method {
		case "initialize":
			result = `{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"raw","version":"1"}}`
		case "server/discover":
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no"}}`, m.ID)
			return
		default:
			if m.ID == nil {
				w.WriteHeader(http.StatusAccepted)
				return
			}
			result = answer(m.Method, m.Params)
		}
		if result == "" {
			<-r.Context().Done()
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":`, m.ID)
		io.WriteString(w, result)
		io.WriteString(w, "}")
	}))
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
	return srv.URL
}

func TestTooManyTools(t *testing.T) {
	many := func(prefix string, n int) string {
		s := tracker()
		for i := range n {
			tool(fmt.Sprintf("%s%03d", prefix, i), anything, said("x"))(s)
		}
		return overHTTP(t, s, nil)
	}
	r := newRig(t, at("a", many("t", 199)), at("b", many("t", 199)))
	if list := r.list(t); len(list) != 251 || list[199].Server != "a" || list[200].Server != "b" {
		t.Errorf("%d tools", len(list))
	}
}

func TestEndlessPages(t *testing.T) {
	r := newRig(t, at("a", raw(t, func(string, json.RawMessage) string { return `{"tools":[],"nextCursor":"same"}` })))
	if len(r.list(t)) != 0 {
		t.Error("tools")
	}
	if err := r.Status()[0].Err; err == nil || !strings.Contains(err.Error(), "does not end") {
		t.Errorf("status %v", err)
	}
}

func TestDeadServersCostOnlyTheirTools(t *testing.T) {
	gone := httptest.NewServer(nil)
	gone.Close()
	r := newRig(t,
		at("gone", gone.URL), at("svc", overHTTP(t, tracker(), nil)),
		config.Server{Name: "noprogram", Command: "/nonexistent/server"},
		stdio("dies", "die"), stdio("garbage", "garbage"),
	)
	if got := names(r.list(t)); got != "svc__echo" {
		t.Errorf("tools %s", got)
	}
	for _, s := range r.Status() {
		if (s.Err == nil) != (s.Server.Name == "svc") {
			t.Errorf("%s: %v", s.Server.Name, s.Err)
		}
		if s.Server.Name == "dies" && !strings.Contains(s.Err.Error(), "last words") {
			t.Errorf("its stderr is not told: %v", s.Err)
		}
	}
	if res, err := r.call("svc", "echo", `{"text":"x"}`); err != nil || res.Text != "echo:x" {
		t.Errorf("%v %v", res, err)
	}
	if _, err := r.call("gone", "x", "{}"); err == nil || err.Error() != `MCP server "gone" cannot be reached (connection refused)` {
		t.Errorf("got %v", err)
	}
}

func TestCallsUnderWay(t *testing.T) {
	hang := make(chan struct{})
	var began, ended sync.WaitGroup
	r := newRig(t, at("svc", overHTTP(t, tracker(func(s *sdk.Server) {
		s.AddTool(&sdk.Tool{Name: "hang", InputSchema: anything}, func(ctx context.Context, _ *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			began.Done()
			defer ended.Done()
			select {
			case <-ctx.Done():
			case <-hang:
			}
			return said("late"), nil
		})
	}), nil)))
	r.list(t)
	began.Add(turnrpc.MaxMCPCalls)
	ended.Add(turnrpc.MaxMCPCalls)
	errs := make(chan error, turnrpc.MaxMCPCalls)
	for i := range turnrpc.MaxMCPCalls {
		go func() {
			_, err := r.callCtx(context.Background(), fmt.Sprint("c", i), "svc", "hang", "{}")
			errs <- err
		}()
	}
	began.Wait()
	if _, err := r.call("svc", "echo", "{}"); err == nil || err.Error() != "too many concurrent MCP calls" {
		t.Errorf("got %v", err)
	}
	r.Cancel("c3")
	r.Cancel("unknown")
	if err := <-errs; !errors.Is(err, context.Canceled) {
		t.Errorf("canceled call: %v", err)
	}
	if _, err := r.callCtx(context.Background(), "c4", "svc", "echo", "{}"); err == nil || err.Error() != `MCP call id "c4" is in use` {
		t.Errorf("got %v", err)
	}
	if res, err := r.call("svc", "echo", `{"text":"room"}`); err != nil || res.Text != "echo:room" {
		t.Errorf("%v %v", res, err)
	}
	close(hang)
	for range turnrpc.MaxMCPCalls - 1 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	ended.Wait()
}

func TestListChanged(t *testing.T) {
	s := tracker()
	r := newRig(t, at("svc", overHTTP(t, s, nil)))
	r.list(t)
	tool("fresh", anything, said("new"))(s)
	deadline := time.Now().Add(time.Minute)
	for names(r.list(t)) != "svc__echo svc__fresh" {
		if time.Now().After(deadline) {
			t.Fatalf("tools %s", names(r.list(t)))
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestOffline(t *testing.T) {
	b := mcp.New(mcp.Options{Servers: func() ([]config.Server, error) { return []config.Server{at("svc", "http://127.0.0.1:1")}, nil }, Offline: func() bool { return true }})
	defer b.Close()
	if list, err := b.List(context.Background()); err != nil || list == nil || len(list) != 0 {
		t.Errorf("%v %v", list, err)
	}
	if _, err := b.Call(context.Background(), turnrpc.MCPCall{CallID: "1", Server: "svc"}); err == nil || err.Error() != "offline mode: MCP access is disabled" {
		t.Errorf("got %v", err)
	}
}

func TestChangedSettings(t *testing.T) {
	url := overHTTP(t, tracker(), nil)
	servers := []config.Server{at("a", url)}
	b := mcp.New(mcp.Options{Servers: func() ([]config.Server, error) {
		if servers == nil {
			return nil, errors.New("broken file")
		}
		return servers, nil
	}})
	defer b.Close()
	ctx := context.Background()
	for _, c := range []struct {
		servers []config.Server
		want    string
	}{
		{servers, "a__echo"}, {[]config.Server{at("a", url), at("b", url)}, "a__echo b__echo"}, {nil, "a__echo b__echo"}, {[]config.Server{at("b", url)}, "b__echo"},
	} {
		servers = c.servers
		if list, err := b.List(ctx); err != nil || names(list) != c.want {
			t.Errorf("%s %v, want %s", names(list), err, c.want)
		}
	}
	if _, err := b.Call(ctx, turnrpc.MCPCall{CallID: "1", Server: "a", Tool: "echo"}); err == nil {
		t.Error("a server that was taken out was called")
	}
	b.Close()
	if _, err := b.List(ctx); err == nil {
		t.Error("a closed broker lists")
	}
}

func overHandler(s *sdk.Server) http.Handler {
	return sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, nil)
}

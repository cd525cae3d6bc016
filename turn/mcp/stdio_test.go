package mcp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"msb/turn/config"
	"msb/turn/creds"
	"msb/turn/mcp"
)

// stdio is a server that this test's own program plays.
func stdio(name string, args ...string) config.Server {
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return config.Server{Name: name, Command: exe, Args: append([]string{"stdio"}, args...)}
}

func stdioServer(args []string) {
	ctx := context.Background()
	switch args[0] {
	case "die":
		fmt.Fprintln(os.Stderr, "last words of the server")
		os.Exit(3)
	case "garbage":
		fmt.Println("Welcome to this server!")
		time.Sleep(time.Minute)
	case "flood":
		for {
			if _, err := os.Stdout.WriteString(strings.Repeat("[", 1<<16)); err != nil {
				return
			}
		}
	case "stubborn": // ignores its stdin, SIGTERM, and has a child
		child := exec.Command("sleep", "1000")
		child.Start()
		os.WriteFile(args[1], []byte(fmt.Sprintf("%d %d", os.Getpid(), child.Process.Pid)), 0o600)
		go tracker().Run(ctx, &sdk.StdioTransport{})
		signal.Ignore(syscall.SIGTERM)
		select {}
	case "serve":
		s := tracker(func(s *sdk.Server) {
			s.AddTool(&sdk.Tool{Name: "env", InputSchema: anything}, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				wd, _ := os.Getwd()
				return said(strings.Join(os.Environ(), "\n") + "\n" + wd), nil
			})
			s.AddTool(&sdk.Tool{Name: "die", InputSchema: anything}, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				os.Exit(1)
				return nil, nil
			})
		})
		s.Run(ctx, &sdk.StdioTransport{})
	}
}

func TestStdio(t *testing.T) {
	t.Setenv("HOST_SECRET", "not for servers")
	dir := t.TempDir()
	s := stdio("svc", "serve")
	s.Env = map[string]string{"LEVEL": "7"}
	s.SecretEnv = map[string]creds.Ref{"TOKEN": {Source: "file", Name: "token"}}
	s.Dir = dir
	r := newRig(t, s)
	if _, err := r.store.Set(context.Background(), "file", "token", creds.NewSecret("tok-1")); err != nil {
		t.Fatal(err)
	}
	if got := names(r.list(t)); got != "svc__die svc__echo svc__env" {
		t.Fatalf("tools %s: %v", got, r.Status()[0].Err)
	}
	res, err := r.call("svc", "env", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"LEVEL=7", "TOKEN=tok-1", "PATH=", dir} {
		if !strings.Contains(res.Text, part) {
			t.Errorf("the server lacks %s", part)
		}
	}
	if strings.Contains(res.Text, "HOST_SECRET") || strings.Count(res.Text, "\n") != 4 {
		t.Errorf("the server has the environment\n%s", res.Text)
	}
}

func TestServerThatDiesIsStartedAgain(t *testing.T) {
	r := newRig(t, stdio("svc", "serve"))
	r.list(t)
	if _, err := r.call("svc", "die", "{}"); err == nil || err.Error() != `MCP server "svc" closed the connection` {
		t.Errorf("got %v", err)
	}
	if res, err := r.call("svc", "echo", `{"text":"again"}`); err != nil || res.Text != "echo:again" {
		t.Errorf("%v %v", res, err)
	}
}

func TestFloodOnStdout(t *testing.T) {
	r := newRig(t, stdio("svc", "flood"))
	if len(r.list(t)) != 0 || r.Status()[0].Err == nil {
		t.Errorf("status %+v", r.Status()[0])
	}
}

func TestProcessesEndWithTheBroker(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pids")
	r := newRig(t, stdio("svc", "stubborn", file))
	if got := names(r.list(t)); got != "svc__echo" {
		t.Fatalf("tools %s: %v", got, r.Status()[0].Err)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	for _, f := range strings.Fields(string(b)) {
		pid, _ := strconv.Atoi(f)
		deadline := time.Now().Add(time.Minute)
		for running(pid) {
			if time.Now().After(deadline) {
				t.Fatalf("process %d lives on", pid)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// running tells whether a process is there and not just waiting for its parent.
func running(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(rest, "Z")
}

func TestDemoServer(t *testing.T) {
	c, err := config.Parse("c", nil)
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t)
	b := mcp.New(mcp.Options{Servers: func() ([]config.Server, error) { return c.MCPServers, nil }, Offline: func() bool { return true }})
	r.Broker = b
	t.Cleanup(func() { b.Close() })
	if got := names(r.list(t)); got != "demo__add_note demo__get_issue demo__search_issues" {
		t.Fatalf("tools %s: %v", got, b.Status()[0].Err)
	}
	for _, c := range []struct{ tool, args, want string }{
		{"search_issues", `{"query":"demo flaky"}`, "#2 [open] Flaky test: TestExpiry"},
		{"search_issues", `{"query":"nothing like it"}`, "no issue matches"},
		{"add_note", `{"number":2,"text":"seen again"}`, "noted at #2"},
		{"get_issue", `{"number":2}`, "#2 [open] Flaky test: TestExpiry\n\nFails about once in fifty runs. The demo clock may tick between the two calls.\n\nnote: seen again"},
		{"get_issue", `{"number":99}`, "there is no issue 99"},
	} {
		res, err := r.call("demo", c.tool, c.args)
		if err != nil || res.Text != c.want || res.IsError != (c.want == "there is no issue 99") {
			t.Errorf("%s %s: %+v %v", c.tool, c.args, res, err)
		}
	}
	if _, err := json.Marshal(b.Status()); err != nil {
		t.Error(err)
	}
}

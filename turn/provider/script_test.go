package provider_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"msb/protocol/turnrpc"
)

var demoTools = []turnrpc.Tool{{Name: "list_files"}, {Name: "read_file"}, {Name: "search"}, {Name: "apply_patch"}, {Name: "run_command"}, {Name: "demo__search_issues"}, {Name: "demo__get_issue"}}

// job plays a whole turn: answer gives each call its result.
func job(t *testing.T, messages []turnrpc.Message, tools []turnrpc.Tool, answer func(tool, args string) string) (text string, calls []string, all []turnrpc.Message) {
	t.Helper()
	r := newRig(t, scripted())
	for range 12 {
		events := r.ask(turnrpc.ProviderRequest{Messages: messages, Tools: tools})
		said, called := "", false
		for _, e := range events {
			said += e.Text
		}
		messages = append(messages, turnrpc.Message{Role: "assistant", Content: said})
		for _, e := range events {
			if e.Type != turnrpc.ProviderTool {
				continue
			}
			called = true
			calls = append(calls, e.ToolName+" "+e.ToolArgs)
			messages = append(messages,
				turnrpc.Message{Role: "assistant", ToolID: e.ToolID, ToolName: e.ToolName, ToolArgs: e.ToolArgs},
				turnrpc.Message{Role: "tool", ToolID: e.ToolID, ToolResult: answer(e.ToolName, e.ToolArgs)})
		}
		text += said
		if !called {
			return text, calls, messages
		}
	}
	t.Fatal("the job does not end")
	return "", nil, nil
}

func usual(tool, _ string) string {
	switch tool {
	case "list_files":
		return `["README.md","main.go"]`
	case "read_file":
		return "# Hello\n\ntext\n"
	case "demo__search_issues":
		return "#1 demo"
	}
	return "exit=0\n"
}

func TestScriptedJob(t *testing.T) {
	start := []turnrpc.Message{{Role: "system", Content: "x"}, {Role: "user", Content: "Show me around"}}
	text, calls, _ := job(t, start, demoTools, usual)
	want := `list_files {"path":"."}
read_file {"path":"README.md"}
demo__search_issues {"query":"demo"}
run_command {"command":"uname -sr \u0026\u0026 ls -l"}
apply_patch`
	if got := strings.Join(calls, "\n"); !strings.HasPrefix(got, want) || len(calls) != 5 {
		t.Errorf("calls\n%s", got)
	}
	for _, part := range []string{"scripted", "not a language model", "The file has 3 lines", "The command ran", "That was the whole job: I looked around, asked an MCP server, asked for a command, edited a file."} {
		if !strings.Contains(text, part) {
			t.Errorf("it does not say %q: %s", part, text)
		}
	}
	again, _, _ := job(t, start, demoTools, usual)
	if again != text {
		t.Error("it says something else the second time")
	}
}

func TestScriptReactsToDenials(t *testing.T) {
	text, calls, _ := job(t, []turnrpc.Message{{Role: "user", Content: "x"}}, demoTools, func(tool, args string) string {
		switch tool {
		case "demo__search_issues":
			return "this call was denied by the user: not today"
		case "run_command":
			return "error: run_command was denied by a rule"
		case "apply_patch":
			return "error: disk full"
		}
		return usual(tool, args)
	})
	if len(calls) != 5 {
		t.Errorf("calls %q", calls)
	}
	for _, part := range []string{"denied by the user: not today", "run_command was denied by a rule", "The patch was not applied (disk full)"} {
		if !strings.Contains(text, part) {
			t.Errorf("it does not say %q: %s", part, text)
		}
	}
}

func TestScriptWithoutTools(t *testing.T) {
	text, calls, _ := job(t, []turnrpc.Message{{Role: "user", Content: "x"}}, nil, usual)
	if len(calls) != 0 || !strings.Contains(text, "scripted") || !strings.Contains(text, "There are no tools here") {
		t.Errorf("%q %s", calls, text)
	}
}

func TestScriptsPatchesApply(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is missing: apt-get install git")
	}
	dir := t.TempDir()
	tools := func(tool, args string) string {
		switch tool {
		case "list_files":
			entries, _ := filepath.Glob(filepath.Join(dir, "*"))
			for i := range entries {
				entries[i] = filepath.Base(entries[i])
			}
			return strings.Join(entries, "\n")
		case "read_file":
			b, err := os.ReadFile(filepath.Join(dir, "MSB-DEMO.md"))
			if err != nil {
				return "error: " + err.Error()
			}
			return string(b)
		case "apply_patch":
			cmd := exec.Command("git", "apply", "-")
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
			cmd.Stdin = strings.NewReader(patchOf(args))
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("git apply: %v: %s", err, out)
			}
		}
		return "ok"
	}
	messages := []turnrpc.Message{{Role: "user", Content: "x"}}
	for range 3 {
		_, _, messages = job(t, messages, demoTools, tools)
		messages = append(messages, turnrpc.Message{Role: "user", Content: "again"})
	}
	b, err := os.ReadFile(filepath.Join(dir, "MSB-DEMO.md"))
	if err != nil || strings.Count(string(b), "The demo was here.") != 3 {
		t.Errorf("%s %v", b, err)
	}
}

func patchOf(args string) string {
	var a struct{ Patch string }
	_ = json.Unmarshal([]byte(args), &a)
	return a.Patch
}

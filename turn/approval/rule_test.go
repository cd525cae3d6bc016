package approval

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func command(s string) Request {
	return Request{Kind: KindCommand, Session: "s", Turn: "1", Tool: "run_command", Command: s, Workdir: "/work/repo"}
}

func TestRuleMatch(t *testing.T) {
	allow := func(c string) Rule {
		r := ruleFor(command(c), Answer{Allow: true, Scope: ScopeSession}, time.Now())
		r.ID = "r"
		return r
	}
	for _, c := range []struct {
		name  string
		rule  Rule
		q     Request
		match bool
	}{
		{"same", allow("go test ./..."), command("go test ./..."), true},
		{"spacing of plain words", allow("go test ./..."), command("go  test\t./..."), true},
		{"longer", allow("go test ./..."), command("go test ./... -exec x"), false},
		{"shorter", allow("go test ./..."), command("go test"), false},
		{"second command", allow("go test ./..."), command("go test ./...; id"), false},
		{"second line", allow("go test ./..."), command("go test ./...\nid"), false},
		{"second line after blanks", allow("go test ./..."), command("go test ./..." + strings.Repeat(" ", 200) + "\nid"), false},
		{"background", allow("go test ./..."), command("go test ./...&"), false},
		{"look-alike letter", allow("go test"), command("go tеst"), false},
		{"invisible character", allow("go test"), command("go test\u200b"), false},
		{"shell text, same bytes", allow("a && b"), command("a && b"), true},
		{"shell text, other spacing", allow("a && b"), command("a  && b"), false},
		{"shell text, trailing blank", allow("a && b"), command("a && b "), false},
		{"other directory", allow("make"), Request{Kind: KindCommand, Session: "s", Command: "make", Workdir: "/"}, false},
		{"other session", allow("make"), Request{Kind: KindCommand, Session: "t", Command: "make", Workdir: "/work/repo"}, false},
		{"MCP call of that text", allow("make"), Request{Kind: KindMCP, Session: "s", Command: "make", Workdir: "/work/repo"}, false},
		{"empty rule", Rule{ID: "r", Kind: KindCommand, Allow: true}, Request{Kind: KindCommand}, false},
		{"empty MCP rule", Rule{ID: "r", Kind: KindMCP, Allow: true}, Request{Kind: KindMCP}, false},
		{"MCP tool", Rule{ID: "r", Kind: KindMCP, Server: "a", MCPTool: "b"}, Request{Kind: KindMCP, Server: "a", MCPTool: "b"}, true},
		{"MCP tool of another server", Rule{ID: "r", Kind: KindMCP, Server: "a", MCPTool: "b"}, Request{Kind: KindMCP, Server: "c", MCPTool: "b"}, false},
	} {
		if got := c.rule.Match(c.q); got != c.match {
			t.Errorf("%s: match %v", c.name, got)
		}
	}
}

func TestDescribe(t *testing.T) {
	for _, c := range []struct {
		rule Rule
		want string
	}{
		{Rule{Kind: KindCommand, Allow: true, Session: "s", Command: "go test", Workdir: "/w"},
			`allow the command of exactly 2 words in "/w": "go" "test", in this session`},
		{Rule{Kind: KindCommand, Allow: true, Command: "a &&\u202e b"},
			`allow this text alone, byte for byte (9 bytes): "a &&\u202e b", in every session of this workspace`},
		{Rule{Kind: KindMCP, Server: "tracker", MCPTool: "search"},
			`deny every call of the tool "search" of the MCP server "tracker", whatever its arguments, in every session of this workspace`},
	} {
		if got := c.rule.Describe(); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}

func TestRulesFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x", "rules.json")
	rules, err := OpenRules(path)
	if err != nil {
		t.Fatal(err)
	}
	saved, err := rules.Add(Rule{Kind: KindCommand, Allow: true, Command: "make", Workdir: "/work/repo"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := rules.Add(Rule{Kind: KindCommand, Allow: true, Session: "s", Command: "ls", Workdir: "/work/repo"}); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(path)
	if err != nil || st.Mode() != 0o600 {
		t.Fatalf("%v %v", st, err)
	}
	again, err := OpenRules(path)
	if err != nil {
		t.Fatal(err)
	}
	if list := again.List(); len(list) != 1 || list[0].ID != saved.ID {
		t.Errorf("after a restart: %+v", list)
	}
	if _, ok := again.Match(command("ls")); ok {
		t.Error("a rule of a session outlived the process")
	}
	if _, err := again.Add(Rule{Kind: KindCommand, Command: "make", Workdir: "/work/repo"}); err != nil {
		t.Fatal(err)
	}
	if r, _ := again.Match(command("make")); r.Allow {
		t.Error("a rule that denies does not go first")
	}
	for _, bad := range []string{"", "{", `{"version":2,"rules":[]}`, `{"version":1,"rules":[{"id":"x","kind":"command"}]}`,
		`{"version":1,"rules":[{"id":"x","kind":"command","command":"x","prefix":true}]}`,
		`{"version":1,"rules":[{"id":"x","kind":"any"}]}`} {
		os.WriteFile(path, []byte(bad), 0o600)
		if _, err := OpenRules(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

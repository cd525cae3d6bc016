package approval

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const policyText = `version: 1
default: deny
rules:
  - allow: {command: "go test ./..."}
  - allow: {words: [git, log, "*"]}
  - allow: {words: [go, vet, "..."], workdir: /work/repo}
  - deny: {words: [go, vet, -vettool, "..."]}
  - allow: {server: tracker, tool: search}
  - allow: {server: docs, tool: "*"}
`

func TestPolicyFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	os.WriteFile(path, []byte(policyText), 0o600)
	p, err := LoadPolicy(path)
	if err != nil {
		t.Fatal(err)
	}
	mcp := func(server, tool string) Request { return Request{Kind: KindMCP, Server: server, MCPTool: tool} }
	for _, c := range []struct {
		name  string
		q     Request
		allow bool
	}{
		{"whole command", command("go test ./..."), true},
		{"more than it", command("go test ./... ; id"), false},
		{"any word", command("git log HEAD"), true},
		{"two words for one", command("git log HEAD x"), false},
		{"no word for one", command("git log"), false},
		{"not a plain word", command("git log $(id)"), false},
		{"any number", command("go vet"), true},
		{"any number of plain words", command("go vet ./a ./b"), true},
		{"any number of what is not", command("go vet ./a && id"), false},
		{"deny goes first", command("go vet -vettool x"), false},
		{"other directory", Request{Kind: KindCommand, Command: "go vet", Workdir: "/"}, false},
		{"tool", mcp("tracker", "search"), true},
		{"other tool", mcp("tracker", "delete"), false},
		{"every tool", mcp("docs", "anything"), true},
		{"unknown server", mcp("x", "search"), false},
	} {
		out, ok := p.match(c.q)
		if !ok {
			out = p.rest()
		}
		if out.Allowed != c.allow || out.Cause != CauseRule {
			t.Errorf("%s: %+v", c.name, out)
		}
	}
}

func TestPolicyFileErrors(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", "1:1: the file is empty"},
		{"version: 2\n", "version must be 1"},
		{"version: 1\ndefault: allow\n", "default must be deny or ask"},
		{"version: 1\nrules: 3\n", "2:8: rules must be a list"},
		{"version: 1\nrule: []\n", `2:1: unknown key "rule"`},
		{"version: 1\nversion: 1\n", "2:1: key \"version\" is there twice"},
		{"version: 1\nrules:\n  - permit: {command: x}\n", `3:5: unknown key "permit"`},
		{"version: 1\nrules:\n  - allow: {command: 7}\n", "3:22: there must be text"},
		{"version: 1\nrules:\n  - allow: {}\n", "3:5: an entry needs one of"},
		{"version: 1\nrules:\n  - allow: {command: x, server: y, tool: z}\n", "an entry needs one of"},
		{"version: 1\nrules:\n  - allow: {words: [\"*\", x]}\n", "must name the program"},
		{"version: 1\nrules:\n  - allow: {words: [\"x;y\"]}\n", "is no plain word"},
		{"version: 1\nrules:\n  - allow: {words: [x, \"a b\"]}\n", "is no plain word"},
		{"version: 1\nrules:\n  - allow: {words: [x, \"...\", y]}\n", "can only be the last"},
		{"version: 1\nrules:\n  - allow: {server: x}\n", "needs server and tool"},
		{"version: 1\nrules:\n  - {allow: {command: x}, deny: {command: x}}\n", "either allow or deny"},
		{"version: 1\n---\nversion: 1\n", "second document"},
		{"version: 1\nrules: &a\n  - *a\n", ""},
		{"version: [\n", ""},
	} {
		_, err := ParsePolicy([]byte(c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v; want %q", c.text, err, c.want)
		}
	}
	if p, err := LoadPolicy("ask"); p != nil || err != nil {
		t.Error(p, err)
	}
	if _, err := LoadPolicy("/does/not/exist"); err == nil {
		t.Error("a file that does not exist is a policy")
	}
}

func FuzzPolicy(f *testing.F) {
	f.Add([]byte(policyText))
	f.Add([]byte("version: 1\nrules: [{allow: {words: [a]}}]"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ParsePolicy(b)
		if err != nil {
			return
		}
		if err := p.Check(); err != nil {
			t.Fatal(err)
		}
		for _, r := range p.Rules {
			r.Describe()
			if r.Match(command("a; b")) && r.Command != "a; b" {
				t.Fatalf("%+v matches shell syntax", r)
			}
		}
	})
}

package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"msb/protocol/turnrpc"
	"msb/turn/config"
	"msb/turn/creds"
)

const full = `# my settings
default_model: local

models:
  # the good one
  - name: claude
    provider: anthropic
    model: claude-opus   # newest
    credential: {source: keyring, name: anthropic}
    max_tokens: 16000
    price: {input: 3, output: 15.5}
    timeouts: {first_byte: 2m, total: 10m}

  - name: local
    provider: ollama
    model: qwen3
    base_url: http://localhost:11434/v1
    loopback: true
    retries: 0

mcp_servers:
  - name: tracker
    url: https://tracker.example/mcp
    oauth: {scopes: [read]}
    tools: [search, get, close]
    policy: {search: allow, close: deny}
  - name: files
    command: mcp-files
    args: [--root, /srv]
    env: {LEVEL: "1"}
    secret_env:
      TOKEN: {source: env, name: FILES_TOKEN}

approvals:
  timeout: 5m

screen:
  theme: dark
`

func TestFullFile(t *testing.T) {
	c, err := config.Parse("config.yaml", []byte(full))
	if err != nil {
		t.Fatal(err)
	}
	m, err := c.Model("")
	if err != nil || m.Name != "local" || *m.Retries != 0 || m.API != config.APIChat || m.Hosts[0] != "localhost:11434" {
		t.Errorf("default model: %+v, %v", m, err)
	}
	m, _ = c.Model("claude")
	if m.BaseURL != "https://api.anthropic.com" || m.API != config.APIMessages || m.Timeouts.Total != 10*time.Minute ||
		m.Timeouts.Idle != config.DefaultIdle || *m.Retries != config.DefaultRetries {
		t.Errorf("claude: %+v", m)
	}
	if g := m.Guest(); g != (turnrpc.GuestModel{Name: "claude", Provider: "anthropic", Model: "claude-opus"}) {
		t.Errorf("the guest is told %+v", g)
	}
	if cost := m.Price.Cost(turnrpc.Usage{InputTokens: 1e6, OutputTokens: 2e6}); cost != 34 {
		t.Errorf("cost %v", cost)
	}
	for _, p := range []struct{ server, tool, want string }{
		{"tracker", "search", "allow"}, {"tracker", "get", "ask"}, {"tracker", "close", "deny"}, {"nobody", "x", "ask"},
	} {
		if got := c.Policy(p.server, p.tool); got != p.want {
			t.Errorf("policy of %s/%s is %s", p.server, p.tool, got)
		}
	}
	s, _ := c.Server("tracker")
	if !s.Allows("search") || s.Allows("close") || s.Allows("other") {
		t.Error("wrong tools are allowed")
	}
	if got := strings.Join(c.ModelNames(), " "); got != "local claude demo" {
		t.Errorf("names %q", got)
	}
	if c.Approvals.Timeout != 5*time.Minute {
		t.Errorf("approvals: %+v", c.Approvals)
	}
	var screen struct {
		Theme string `yaml:"theme"`
	}
	if err := c.Section("screen", &screen); err != nil || screen.Theme != "dark" {
		t.Errorf("screen: %+v, %v", screen, err)
	}
	var wrong struct {
		Limit int `yaml:"limit"`
	}
	if err := c.Section("screen", &wrong); err == nil || err.Error() != `config.yaml:38:3: screen: unknown key "theme"; known are limit` {
		t.Errorf("strict section: %v", err)
	}
}

func TestWithoutFile(t *testing.T) {
	for name, text := range map[string]string{"none": "", "comments": "# nothing\n", "other keys": "offline: true\n"} {
		c, err := config.Parse("config.yaml", []byte(text))
		if err != nil {
			t.Fatal(name, err)
		}
		m, err := c.Model("")
		if err != nil || m.Name != "demo" || !m.Scripted() {
			t.Errorf("%s: model %+v, %v", name, m, err)
		}
		if len(c.MCPServers) != 1 || c.MCPServers[0].Name != "demo" || !c.MCPServers[0].Builtin() {
			t.Errorf("%s: servers %+v", name, c.MCPServers)
		}
	}
	if _, err := config.Load(filepath.Join(t.TempDir(), "config.yaml")); err != nil {
		t.Error(err)
	}
}

func TestMistakesNameTheirPlace(t *testing.T) {
	model := "models:\n  - name: a\n    provider: openai\n    model: m\n"
	server := "mcp_servers:\n  - name: a\n    url: https://a.example\n"
	for _, c := range []struct{ name, text, want string }{
		{"unknown key", "modles: []\n", `c:1:1: unknown key "modles"; did you mean "models"?`},
		{"unknown key deep", model + "    pice: {}\n", `c:5:5: models[0]: unknown key "pice"; did you mean "price"?`},
		{"wrong type", "models: 3\n", `c:1:9: models: a list is wanted here, not the number 3 (put it in quotes if it is meant as text)`},
		{"number as text", "models:\n  - name: 4\n", `c:2:11: models[0].name: text is wanted here, not the number 4 (put it in quotes if it is meant as text)`},
		{"text as bool", "offline: maybe\n", `c:1:10: offline: true or false is wanted here, not the text "maybe"`},
		{"no value", "models:\n", `c:1:8: models: there is no value; leave the key out or give it a list`},
		{"time", model + "    timeouts: {idle: 5}\n", `c:5:22: models[0].timeouts.idle: a time such as 30s or 5m is wanted here, not the number 5 (put it in quotes if it is meant as text)`},
		{"key twice", "offline: true\noffline: true\n", `c:2:1: the key "offline" is here twice, first on line 1`},
		{"name twice", model + "  - name: a\n    provider: demo\n", `c:5:11: models[1]: there is another model profile "a"`},
		{"server twice", server + "  - name: a\n    command: x\n", `c:4:11: mcp_servers[1]: there is another MCP server "a"`},
		{"server name", "mcp_servers:\n  - name: SVC\n    url: https://a.example\n", `c:2:11: mcp_servers[0]: "SVC" cannot name an MCP server: use a-z, 0-9 and -, at most 64`},
		{"two transports", server + "    command: x\n", `c:3:10: mcp_servers[0]: an MCP server needs either a url or a command`},
		{"policy", server + "    policy: {x: maybe}\n", `c:4:13: mcp_servers[0]: unknown policy "maybe" for x: use ask, allow or deny`},
		{"default model", "default_model: x\n", `c:1:16: default_model: there is no model profile "x"`},
		{"plain http", model + "    base_url: http://a.example\n", `c:5:15: models[0]: a.example must be reached with https; http is for this machine only`},
		{"loopback not said", model + "    base_url: http://127.0.0.1:8000/v1\n", `c:5:15: models[0]: 127.0.0.1:8000 is on this machine: set loopback: true if that is meant`},
		{"userinfo", model + "    base_url: https://u:p@a.example\n", `c:5:15: models[0]: an address must not hold a user or password: use a credential`},
		{"other host", model + "    hosts: [b.example]\n", `c:5:12: models[0]: hosts does not contain api.openai.com, the host of base_url`},
		{"no base_url", "models:\n  - name: a\n    provider: vllm\n    model: m\n", `c:2:5: models[0]: unsupported provider "vllm": give its base_url`},
		{"source", model + "    credential: {source: vault, name: x}\n", `c:5:17: models[0]: unknown source "vault": use env, keyring, file, command or sandbox`},
		{"anchor", "models: &a []\n", `c:1:9: models: anchors and aliases are not supported`},
		{"second document", "offline: true\n---\noffline: true\n", `c:2:1: a second document begins here; only one is allowed`},
		{"syntax", "models: [\n  - x\n", `c:2:3: `},
		{"tab", "\tmodels: []\n", `c:1:1: `},
		{"no mapping", "- a\n", `c:1:1: a group of keys is wanted here, not a list`},
		{"binary", "\x00\xff\n", `c:`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := config.Parse("c", []byte(c.text))
			var place *config.Error
			if !errors.As(err, &place) || !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
}

func TestEditKeepsWhatTheUserWrote(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(full), 0o644); err != nil {
		t.Fatal(err)
	}
	content := func() string {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	zero := 0
	must(config.AddModel(path, config.Model{Name: "gpt", Provider: "openai", Model: "gpt-5", Retries: &zero,
		Credential: &creds.Ref{Source: "env", Name: "OPENAI_API_KEY"}, Timeouts: config.Timeouts{Idle: time.Minute}}))
	added := `  - name: gpt
    provider: openai
    model: gpt-5
    credential:
      source: env
      name: OPENAI_API_KEY
    retries: 0
    timeouts:
      idle: 1m0s
`
	if want := strings.Replace(full, "    retries: 0\n", "    retries: 0\n"+added, 1); content() != want {
		t.Errorf("after add:\n%s", content())
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	if err := config.AddModel(path, config.Model{Name: "gpt", Provider: "demo"}); err == nil {
		t.Error("a second gpt was added")
	}
	must(config.RemoveModel(path, "gpt"))
	if content() != full {
		t.Errorf("after add and remove:\n%s", content())
	}
	if err := config.RemoveModel(path, "local"); err == nil || !strings.Contains(err.Error(), "default_model") {
		t.Errorf("default model removed: %v", err)
	}
	must(config.RemoveModel(path, "claude"))
	if c := content(); strings.Contains(c, "good one") || !strings.Contains(c, "# my settings") || !strings.Contains(c, "qwen3") {
		t.Errorf("after removing claude:\n%s", c)
	}
	must(config.RemoveServer(path, "files"))
	must(config.RemoveServer(path, "tracker"))
	if c := content(); !strings.Contains(c, "mcp_servers: []\n") || !strings.Contains(c, "approvals:\n  timeout: 5m\n") {
		t.Errorf("after removing all servers:\n%s", c)
	}
	must(config.AddServer(path, config.Server{Name: "s", Command: "prog", Env: map[string]string{"EMPTY": ""}}))
	c, err := config.Load(path)
	must(err)
	if s, err := c.Server("s"); err != nil || s.Command != "prog" || len(s.Env) != 1 {
		t.Errorf("%+v %v", s, err)
	}
}

func TestEditOddFiles(t *testing.T) {
	for name, text := range map[string]string{
		"no file":      "",
		"flow":         "models: [{name: a, provider: demo}] # mine\n# end\n",
		"no indent":    "models:\n- name: a\n  provider: demo\n# end\noffline: false",
		"long strings": "models:\n  - name: a\n    provider: x\n    base_url: https://a.example\n    model: >-\n      some\n      long\n# end\noffline: false\n",
		"empty":        "models: [] # none yet\n# end\n",
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "sub", "config.yaml")
			if text != "" {
				os.Mkdir(filepath.Dir(path), 0o700)
				os.WriteFile(path, []byte(text), 0o600)
			}
			if err := config.AddModel(path, config.Model{Name: "b", Provider: "demo"}); err != nil {
				t.Fatal(err)
			}
			c, err := config.Load(path)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.Model("b"); err != nil {
				t.Error(err)
			}
			b, _ := os.ReadFile(path)
			if strings.Contains(text, "# end") && !strings.Contains(string(b), "# end") {
				t.Errorf("a comment is gone:\n%s", b)
			}
			if strings.Contains(text, "name: a") {
				if _, err := c.Model("a"); err != nil {
					t.Errorf("%v in\n%s", err, b)
				}
				if err := config.RemoveModel(path, "a"); err != nil {
					t.Error(err)
				}
			}
			if err := config.RemoveModel(path, "b"); err != nil {
				t.Error(err)
			}
			b, _ = os.ReadFile(path)
			if _, err := config.Parse("c", b); err != nil || strings.Contains(string(b), "name:") {
				t.Errorf("%v\n%s", err, b)
			}
		})
	}
}

func TestFileThatOthersCanChange(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	os.WriteFile(path, nil, 0o600)
	os.Chmod(path, 0o666)
	if _, err := config.Load(path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("got %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(full))
	f.Add([]byte("models: [{name: a}]\n---\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, err := config.Parse("c", b); err == nil && len(c.Models) == 0 {
			t.Error("no models")
		}
	})
}

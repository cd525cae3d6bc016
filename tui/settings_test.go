package tui

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"msb/turn/config"
	"msb/turn/creds"
	"msb/vmm/store"
)

// ledger is settings in memory.
type ledger struct {
	mu    sync.Mutex
	state SettingsState
	keys  map[string]string
}

func newLedger() *ledger {
	return &ledger{keys: make(map[string]string), state: SettingsState{Path: "~/.config/msb/config.yaml",
		Models:  []config.Model{{Name: "demo", Provider: "demo"}},
		Servers: []config.Server{{Name: "tracker", URL: "https://mcp.example.com/mcp"}}}}
}

func (l *ledger) Load(context.Context) (SettingsState, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.state
	s.Models, s.Servers, s.Keys = slices.Clone(s.Models), slices.Clone(s.Servers), nil
	for name := range l.keys {
		s.Keys = append(s.Keys, creds.Stored{Name: name, Source: creds.SourceFile})
	}
	return s, nil
}

func (l *ledger) AddModel(m config.Model) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.Models = append(l.state.Models, m)
	return nil
}

func (l *ledger) RemoveModel(name string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.Models = slices.DeleteFunc(l.state.Models, func(m config.Model) bool { return m.Name == name })
	return nil
}

func (l *ledger) TestModel(_ context.Context, name string) (string, error) {
	if name != "demo" {
		return "", errors.New("dial tcp 127.0.0.1:9: connection refused\x1b[2J\u202e evil")
	}
	return "demo answers \"ok\" after 0.1 s", nil
}

func (l *ledger) AddServer(s config.Server) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.Servers = append(l.state.Servers, s)
	return nil
}

func (l *ledger) RemoveServer(name string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.Servers = slices.DeleteFunc(l.state.Servers, func(m config.Server) bool { return m.Name == name })
	return nil
}

func (l *ledger) TestServer(context.Context, string) (string, error) {
	return "search_issues  ask  finds \x1b]0;evil\x07 issues\n", nil
}

func (l *ledger) Login(_ context.Context, _ string, show func(string)) error {
	show("https://login.example.com/authorize?x=1")
	return nil
}

func (l *ledger) SetKey(_ context.Context, name string, key creds.Secret) (creds.Ref, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keys[name] = key.Reveal()
	return creds.Ref{Source: creds.SourceFile, Name: name}, nil
}

func (l *ledger) RemoveKey(_ context.Context, name string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.keys, name)
	return nil
}

// Models, servers, keys and rules on the screen; a key is typed unseen.
func TestSettings(t *testing.T) {
	l := newLedger()
	s := openWith(t, 100, 30, func(o *Options) { o.Settings = l })
	s.until("Show me around")
	s.press("\x1b6")
	s.until("models", "tracker")
	s.golden("settings-100x30")
	s.press("\x1b1", "ctrl+u", "run make", "enter")
	s.allowable()
	s.press("s")
	s.until("It passed.")
	s.press("\x1b6")
	s.until("models", "MCP servers", "tracker", "rules of demo", "the command of exactly 1 word")
	s.press("t")
	s.until("demo answers")

	// A model with a key.
	s.press("n")
	s.until("Add a model")
	s.press("local", "enter", "ctrl+u", "ollama", "enter", "qwen3", "enter", "enter")
	s.until("this machine")
	s.press("enter", "hunter2-hunter2")
	s.until("•••••••••••••••")
	s.press("enter")
	s.until("address", "Add a model", "base_url") // what is missing is said, and what was typed stays
	s.press("\x1b[Z", "\x1b[Z", "http://localhost:11434/v1", "enter", " ", "enter", "enter")
	s.until("local is added", "ollama · qwen3", "key in the file")
	l.mu.Lock()
	if len(l.state.Models) != 2 || l.keys["local"] != "hunter2-hunter2" || l.state.Models[1].Credential == nil || !l.state.Models[1].Loopback {
		t.Errorf("%+v %v", l.state.Models, l.keys)
	}
	l.mu.Unlock()
	s.press("down", "t")
	s.until("connection refused")
	s.press("q")
	s.press("e")
	s.until("Keep a key", "local")
	s.press("second-secret", "enter")
	s.until("kept as file local")
	s.press("d")
	s.until("Take the model local out")
	s.press("y")
	s.until("local is removed")

	// A server, its tools, and a rule.
	s.press("enter")
	s.until("tools of tracker", "search_issues")
	s.press("q", "o")
	s.until("https://login.example.com/authorize")
	s.press("q", "G", "d")
	s.until("Forget the rule?")
	s.press("y")
	s.until("rules of demo", "none")
	s.shape()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, secret := range []string{"hunter2", "second-secret", "\x1b]0;evil", "\u202e"} {
		if strings.Contains(s.raw.String(), secret) {
			t.Errorf("the terminal was sent %q", secret)
		}
	}
}

// A sandbox is made on the screen.
func TestNewBox(t *testing.T) {
	var made NewBox
	var s *screenTest
	s = openWith(t, 100, 24, func(o *Options) {
		o.Images = func() []string { return []string{"tiny", "debian"} }
		o.Create = func(_ context.Context, b NewBox, report func(string)) error {
			report("making it")
			made = b
			s.rig.set(b.Name, store.Running)
			return nil
		}
	})
	s.until("Show me around")
	s.press("\x1b5")
	s.until("● stopped")
	s.press("n")
	s.until("A new sandbox")
	s.press("demo", "enter", " ", "enter", "ctrl+u", "3", "enter", "ctrl+u", "1024", "enter", "enter")
	s.until("there is a sandbox demo already")
	s.press("\x1b[Z", "\x1b[Z", "\x1b[Z", "\x1b[Z", "ctrl+u", "fresh", "\x13")
	s.until("fresh is made and runs")
	if (made != NewBox{Name: "fresh", Image: "tiny", CPUs: 3, MemoryMiB: 1024}) {
		t.Errorf("%+v", made)
	}
}

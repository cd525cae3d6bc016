package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestModelWithASecretOfTheSandbox: a key that modify gave is used by the next request, a rotated one by the one after
// it, and none goes to a host that may not get it.
func TestModelWithASecretOfTheSandbox(t *testing.T) {
	engine := anyEngine(t)
	s := serveModel(t, canary)
	home := preparedHome(t)
	settings := fmt.Sprintf(`models:
  - {name: gpt, provider: openai, model: gpt-test, base_url: %s/v1, loopback: true, retries: 0, credential: {source: sandbox, name: MODEL_KEY}}
`, s.URL)
	for name, text := range map[string]string{"config.yaml": settings, "project/README": "hello\n"} {
		path := filepath.Join(home, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	mustMSB(t, home, "up", "x", "--image", "tiny", "-m", "256M", "--engine", engine, "--workspace", filepath.Join(home, "project"), "--no-mount", "--no-shell")
	give := func(value, host string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), filepath.Join(suite.bin, "msb"), "modify", "x", "--secret", "MODEL_KEY@"+host, "--secret-from", "stdin")
		cmd.Env, cmd.Stdin = testEnv(home), strings.NewReader(value)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		s.mu.Lock()
		s.key = value
		s.mu.Unlock()
	}
	turn := func(works bool) {
		t.Helper()
		s.plays(modelStep{text: "Done."})
		r := takeTurn(t, home, "--model", "gpt")
		s.mu.Lock()
		asked := s.asked
		s.mu.Unlock()
		if (r.code == 0) != works || (asked > 0) != works {
			t.Errorf("the model was asked %d times: %v", asked, r)
		}
	}
	turn(false) // there is no such secret yet
	give(canary, "127.0.0.1")
	turn(true)
	give(canary+"-rotated", "127.0.0.1")
	turn(true)
	give(canary, "models.example")
	turn(false)
	if found := filesWith(t, home, canary); len(found) > 0 {
		t.Errorf("the key is in %v", found)
	}
}

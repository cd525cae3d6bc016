package creds_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"msb/turn/creds"
)

// TestSecretsOfASandbox: one is asked for anew each time, for the host of the request, and only in a sandbox's process.
func TestSecretsOfASandbox(t *testing.T) {
	value := canary
	refused := errors.New("this host may not get the secret")
	store := creds.Open(t.TempDir()).ForSandbox(func(name, host string) (string, error) {
		if name != "API_KEY" || host != "api.example.com" {
			return "", refused
		}
		return value, nil
	})
	ref := creds.Ref{Source: creds.SourceSandbox, Name: "API_KEY"}
	for _, want := range []string{canary, "sk-rotated"} {
		value = want
		if s, err := store.Resolve(t.Context(), ref.For("api.example.com")); err != nil || s.Reveal() != want {
			t.Errorf("got %q, %v", s.Reveal(), err)
		}
	}
	if _, err := store.Resolve(t.Context(), ref.For("evil.example.com")); !errors.Is(err, refused) {
		t.Errorf("another host: %v", err)
	}
	if _, err := store.Resolve(t.Context(), ref); err == nil || !strings.Contains(err.Error(), "no program of this machine") {
		t.Errorf("no host: %v", err)
	}
	if err := (creds.Ref{Source: creds.SourceSandbox, Name: "not a name"}).Check(); err == nil {
		t.Error("a name that none can have is accepted")
	}
	if b, err := json.Marshal(ref.For("api.example.com")); err != nil || string(b) != `{"source":"sandbox","name":"API_KEY"}` {
		t.Errorf("%s, %v", b, err)
	}
	value = "two\nlines"
	if _, err := store.Resolve(t.Context(), ref.For("api.example.com")); err == nil || strings.Contains(err.Error(), "lines") && !strings.Contains(err.Error(), "printable") {
		t.Errorf("a value that fits in no header: %v", err)
	}
}

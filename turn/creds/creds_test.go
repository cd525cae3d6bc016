package creds_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zalando/go-keyring"

	"msb/turn/creds"
)

const canary = "sk-canary-0123456789"

func TestSecretIsNeverPrinted(t *testing.T) {
	s := creds.NewSecret(canary)
	login := creds.Login{Access: s, Refresh: s, ClientSecret: s}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "key", s, "login", login)
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "key", s, "login", login)
	j, err := json.Marshal(map[string]any{"s": s, "p": &s, "l": login})
	if err != nil {
		t.Fatal(err)
	}
	out := log.String() + string(j)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%10s"} {
		out += fmt.Sprintf(verb+verb+verb, s, &s, login)
	}
	out += fmt.Errorf("failed with %w and %v", errors.New("x"), s).Error()
	if strings.Contains(out, canary) || strings.Contains(out, fmt.Sprintf("%x", canary)) {
		t.Errorf("the secret is in %s", out)
	}
	if s.Reveal() != canary || s.Redact("a "+canary+" b") != "a [redacted] b" {
		t.Error("Reveal or Redact is wrong")
	}
}

func TestSources(t *testing.T) {
	keyring.MockInit()
	dir := t.TempDir()
	store := creds.Open(filepath.Join(dir, "credentials"))
	ctx := context.Background()
	t.Setenv("TEST_KEY", canary)
	file := filepath.Join(dir, "key")
	os.WriteFile(file, []byte(canary+"\n"), 0o600)
	loose := filepath.Join(dir, "loose")
	os.WriteFile(loose, []byte(canary), 0o600)
	os.Chmod(loose, 0o640)
	two := filepath.Join(dir, "two")
	os.WriteFile(two, []byte(canary+"\nX-Evil: 1\n"), 0o600)
	big := filepath.Join(dir, "big")
	os.WriteFile(big, bytes.Repeat([]byte("x"), creds.MaxSize+10), 0o600)
	fifo := filepath.Join(dir, "fifo")
	syscall.Mkfifo(fifo, 0o600)
	for _, c := range []struct {
		name    string
		ref     creds.Ref
		problem string // "": it works
	}{
		{"variable", creds.Ref{Source: "env", Name: "TEST_KEY"}, ""},
		{"no variable", creds.Ref{Source: "env", Name: "TEST_NO_KEY"}, "not set"},
		{"file", creds.Ref{Source: "file", Name: file}, ""},
		{"no file", creds.Ref{Source: "file", Name: "nothere"}, "msb creds set nothere"},
		{"loose file", creds.Ref{Source: "file", Name: loose}, "chmod 600"},
		{"two lines", creds.Ref{Source: "file", Name: two}, "not one line"},
		{"big file", creds.Ref{Source: "file", Name: big}, "more than"},
		{"FIFO", creds.Ref{Source: "file", Name: fifo}, "not a regular file"},
		{"relative file", creds.Ref{Source: "file", Name: "a/b"}, "absolute"},
		{"up and out", creds.Ref{Source: "file", Name: ".."}, "cannot name"},
		{"command", creds.Ref{Source: "command", Command: []string{"printf", canary}}, ""},
		{"command with a lingering child", creds.Ref{Source: "command", Command: []string{"sh", "-c", "sleep 100 & echo " + canary}}, ""},
		{"failing command", creds.Ref{Source: "command", Command: []string{"sh", "-c", "echo " + canary + "; echo " + canary + " >&2; exit 3"}}, "exit status 3"},
		{"silent command", creds.Ref{Source: "command", Command: []string{"true"}}, "empty"},
		{"chatty command", creds.Ref{Source: "command", Command: []string{"yes", canary}}, "more than"},
		{"no command", creds.Ref{Source: "command", Command: []string{"/no-such-directory/x"}}, "no such file"},
		{"keyring", creds.Ref{Source: "keyring", Name: "nothere"}, "msb creds set nothere"},
		{"sandbox without one", creds.Ref{Source: "sandbox", Name: "API_KEY"}.For("api.example.com"), "only a running sandbox"},
		{"unknown", creds.Ref{Source: "vault", Name: "x"}, "unknown source"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := store.Resolve(ctx, c.ref)
			if c.problem == "" {
				if err != nil || s.Reveal() != canary {
					t.Errorf("got %q, %v", s.Reveal(), err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.problem) || strings.Contains(err.Error(), canary) && c.ref.Command == nil {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestCommandIsBounded(t *testing.T) {
	store := creds.Open(t.TempDir())
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := store.Resolve(ctx, creds.Ref{Source: "command", Command: []string{"sh", "-c", "sleep 1000; echo x"}})
	if err == nil || time.Since(began) > 2*time.Minute {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}

func TestResolvedAnewEveryTime(t *testing.T) {
	store := creds.Open(t.TempDir())
	for _, want := range []string{"first", "second"} {
		t.Setenv("TEST_KEY", want)
		if s, err := store.Resolve(context.Background(), creds.Ref{Source: "env", Name: "TEST_KEY"}); err != nil || s.Reveal() != want {
			t.Errorf("got %q, %v", s.Reveal(), err)
		}
	}
}

func TestStore(t *testing.T) {
	keyring.MockInit()
	dir := filepath.Join(t.TempDir(), "credentials")
	store := creds.Open(dir)
	ctx := context.Background()
	if list, err := store.List(); err != nil || len(list) != 0 {
		t.Fatalf("%v %v", list, err)
	}
	source, err := store.Set(ctx, "", "openai", creds.NewSecret(canary+"\n"))
	if err != nil || source != "keyring" {
		t.Fatalf("%q %v", source, err)
	}
	if source, err := store.Set(ctx, "file", "claude", creds.NewSecret(canary)); err != nil || source != "file" {
		t.Fatalf("%q %v", source, err)
	}
	if err := store.SetLogin("tracker", creds.Login{Server: "https://x.example", Access: creds.NewSecret(canary), Refresh: creds.NewSecret("r")}); err != nil {
		t.Fatal(err)
	}
	list, err := store.List()
	if err != nil || fmt.Sprint(list) != "[{claude file false} {openai keyring false} {tracker file true}]" {
		t.Errorf("list %v, %v", list, err)
	}
	for _, ref := range []creds.Ref{{Source: "keyring", Name: "openai"}, {Source: "file", Name: "claude"}} {
		if s, err := store.Resolve(ctx, ref); err != nil || s.Reveal() != canary {
			t.Errorf("%v: %q %v", ref, s.Reveal(), err)
		}
	}
	if l, err := store.Login("tracker"); err != nil || l.Access.Reveal() != canary || l.Refresh.Reveal() != "r" {
		t.Errorf("%v %v", l, err)
	}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if st, err := e.Info(); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, %v", e.Name(), st.Mode(), err)
		}
	}
	for _, name := range []string{"openai", "claude", "tracker"} {
		if err := store.Remove(ctx, name); err != nil {
			t.Error(err)
		}
		if err := store.Remove(ctx, name); !errors.Is(err, creds.ErrNotFound) {
			t.Errorf("removed twice: %v", err)
		}
	}
	for _, bad := range []string{"", "../x", "a/b", "a\nb", ".keyring.json", "x.oauth"} {
		if _, err := store.Set(ctx, "file", bad, creds.NewSecret("x")); err == nil {
			t.Errorf("%q was stored", bad)
		}
	}
	if _, err := store.Set(ctx, "env", "x", creds.NewSecret("x")); err == nil {
		t.Error("stored in the environment")
	}
}

func TestWithoutKeyring(t *testing.T) {
	keyring.MockInitWithError(errors.New("no bus"))
	store := creds.Open(t.TempDir())
	ctx := context.Background()
	if source, err := store.Set(ctx, "", "k", creds.NewSecret(canary)); err != nil || source != "file" {
		t.Errorf("%q %v", source, err)
	}
	if _, err := store.Resolve(ctx, creds.Ref{Source: "keyring", Name: "k"}); !errors.Is(err, creds.ErrNoKeyring) || !strings.Contains(err.Error(), "msb creds set NAME --source file") {
		t.Errorf("got %v", err)
	}
	// What could not be stored is not listed.
	if _, err := store.Set(ctx, "keyring", "k", creds.NewSecret(canary)); !errors.Is(err, creds.ErrNoKeyring) || strings.Contains(err.Error(), canary) {
		t.Errorf("got %v", err)
	}
	if list, err := store.List(); err != nil || fmt.Sprint(list) != "[{k file false}]" {
		t.Errorf("list %v, %v", list, err)
	}
	if err := store.Remove(ctx, "k"); err != nil {
		t.Error(err)
	}
}

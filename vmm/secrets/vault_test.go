package secrets

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"msb/protocol/control"
)

const canary = "canary-5e1f0c7a"

func vault(t *testing.T, all ...Declaration) *Vault {
	t.Helper()
	v := New(func() ([]Declaration, error) { return all, nil })
	return v
}

func text(s string) *string { return &s }

func TestUse(t *testing.T) {
	t.Setenv("VAULT_TEST_KEY", canary)
	v := vault(t, Declaration{Name: "KEY", Hosts: []string{"API.example.com.", "*.models.example", "10.0.0.1", "[::1]"}, From: Source{Env: "VAULT_TEST_KEY"}},
		Declaration{Name: "LATER", Hosts: []string{"a.example"}})
	if err := v.Load(t.Context()); !errors.Is(err, ErrNoValue) {
		t.Errorf("load: %v", err)
	}
	for _, tt := range []struct {
		name, host string
		err        error
	}{
		{"KEY", "api.example.com", nil},
		{"KEY", "API.Example.Com.", nil},
		{"KEY", "eu.models.example", nil},
		{"KEY", "10.0.0.1", nil},
		{"KEY", "::1", nil},
		{"KEY", "0:0:0:0:0:0:0:1", nil},
		{"KEY", "models.example", ErrHost},
		{"KEY", "evilmodels.example", ErrHost},
		{"KEY", "api.example.com.evil.test", ErrHost},
		{"KEY", "api.example.com:443", ErrHost},
		{"KEY", "api.example.com\x00.evil.test", ErrHost},
		{"KEY", "example.com", ErrHost},
		{"KEY", "", ErrHost},
		{"LATER", "a.example", ErrNoValue},
		{"LATER", "b.example", ErrHost},
		{"OTHER", "api.example.com", ErrUnknown},
	} {
		value, err := v.Use(tt.name, tt.host)
		if !errors.Is(err, tt.err) || (err == nil) != (value == canary) || err != nil && value != "" {
			t.Errorf("%s for %q: %v", tt.name, tt.host, err)
		}
	}
}

func TestApplyStopsAtTheFirstFailure(t *testing.T) {
	v := vault(t, Declaration{Name: "A", Hosts: []string{"a.example"}}, Declaration{Name: "B", Hosts: []string{"b.example"}})
	_ = v.Load(t.Context())
	rotate := func(name, value string) control.Change {
		return control.Change{Change: control.ChangeRotate, Name: name, Value: &value}
	}
	hosts := func(name string, hosts ...string) control.Change {
		return control.Change{Change: control.ChangeSetAllowedHosts, Name: name, Hosts: append([]string{}, hosts...)}
	}
	remove := func(name string) control.Change { return control.Change{Change: control.ChangeRemove, Name: name} }
	for _, tt := range []struct {
		name    string
		changes []control.Change
		applied uint32
		code    string
	}{
		{"nothing", nil, 0, ""},
		{"all", []control.Change{rotate("A", "1"), rotate("B", "2"), hosts("A", "c.example")}, 3, ""},
		{"unknown", []control.Change{rotate("A", "3"), rotate("NO", "4"), rotate("B", "5")}, 1, control.CodeUnknownSecret},
		{"bad hosts", []control.Change{hosts("A", "https://c.example/")}, 0, control.CodeInvalidSecretHosts},
		{"no hosts", []control.Change{hosts("A")}, 0, control.CodeInvalidSecretHosts},
		{"every host", []control.Change{hosts("A", "*")}, 0, control.CodeInvalidSecretHosts},
		{"hosts of nobody", []control.Change{hosts("NO", "c.example")}, 0, control.CodeUnknownSecret},
		{"too long", []control.Change{rotate("A", strings.Repeat("x", 10<<20))}, 0, control.CodeInvalidRequest},
		{"empty", []control.Change{rotate("A", "")}, 0, control.CodeInvalidRequest},
		{"remove", []control.Change{remove("B"), remove("B")}, 1, control.CodeUnknownSecret},
	} {
		r := v.Apply(tt.changes)
		if err := r.Check(); err != nil || r.AppliedCount != tt.applied {
			t.Errorf("%s: %+v, %v", tt.name, r, err)
		}
		if code := ""; r.Error != nil {
			code = r.Error.Code
			if code != tt.code || r.Error.Effect != control.EffectNone {
				t.Errorf("%s: %+v", tt.name, r.Error)
			}
		} else if tt.code != code {
			t.Errorf("%s: no failure", tt.name)
		}
	}
	if value, err := v.Use("A", "c.example"); value != "3" {
		t.Errorf("the change before the failure is gone: %q, %v", value, err)
	}
}

func TestSecretDeclaredWhileItRuns(t *testing.T) {
	var all []Declaration
	v := New(func() ([]Declaration, error) { return all, nil })
	change := []control.Change{{Change: control.ChangeRotate, Name: "NEW", Value: text(canary)}}
	if r := v.Apply(change); r.Error == nil || r.Error.Code != control.CodeUnknownSecret {
		t.Errorf("%+v", r)
	}
	all = []Declaration{{Name: "NEW", Hosts: []string{"n.example"}}}
	if r := v.Apply(change); r.Error != nil {
		t.Errorf("%+v", r.Error)
	}
	if value, _ := v.Use("NEW", "n.example"); value != canary {
		t.Error("it has no value")
	}
}

func TestNothingPrintsAValue(t *testing.T) {
	v := vault(t, Declaration{Name: "A", Hosts: []string{"a.example"}})
	_ = v.Load(t.Context())
	c := control.Change{Change: control.ChangeRotate, Name: "A", Value: text(canary)}
	r := v.Apply([]control.Change{c})
	_, err := v.Use("A", "b.example")
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		for _, x := range []any{v, *v.held["A"], v.held["A"], c, &c, r, err, control.Request{Op: "x", Changes: []control.Change{c}}, v.List()} {
			s := fmt.Sprintf(verb, x)
			if strings.Contains(s, canary) || strings.Contains(s, fmt.Sprintf("%x", canary)) {
				t.Errorf("%s of %T: %s", verb, x, s)
			}
		}
	}
	if got := v.Redact("bad key " + canary + "!"); got != "bad key [A]!" {
		t.Errorf("redact: %q", got)
	}
}

func TestSources(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "key")
	if err := os.WriteFile(file, []byte(canary+"\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	big := filepath.Join(dir, "big")
	if err := os.WriteFile(big, make([]byte, MaxValue+10), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("VAULT_TEST_KEY", canary)
	for _, tt := range []struct {
		from Source
		ok   bool
	}{
		{Source{Env: "VAULT_TEST_KEY"}, true},
		{Source{Env: "VAULT_TEST_NO_SUCH"}, false},
		{Source{File: file}, true},
		{Source{File: "key"}, false},
		{Source{File: filepath.Join(dir, "none")}, false},
		{Source{File: big}, false},
		{Source{Command: []string{"/bin/sh", "-c", "cat " + file}}, true},
		{Source{Command: []string{"/bin/sh", "-c", "echo " + canary + "; exit 3"}}, false},
		{Source{Command: []string{"/bin/sh", "-c", "yes " + canary + " | head -c 3000000"}}, false},
		{Source{Command: []string{"/no/such/program"}}, false},
		{Source{}, false},
	} {
		value, err := tt.from.Read(t.Context())
		if (err == nil) != tt.ok || tt.ok && value != canary {
			t.Errorf("%+v: %d bytes, %v", tt.from, len(value), err)
		}
		if err != nil && strings.Contains(err.Error(), canary) {
			t.Errorf("%+v: the error quotes the value", tt.from)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (Source{Command: []string{"sleep", "60"}}).Read(ctx); err == nil {
		t.Error("a cancelled command succeeds")
	}
}

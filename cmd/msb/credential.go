package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"msb/vmm/secrets"
)

// credential is one --secret: what the config keeps of it, and its value for the runtime.
type credential struct {
	secrets.Declaration
	value string // in memory only
}

// String hides the value.
func (c credential) String() string { return "secret " + c.Name }

// GoString hides the value from %#v.
func (c credential) GoString() string { return c.String() }

// parseCredentials reads NAME@HOST[,HOST...] entries and their one source.
func parseCredentials(specs []string, from string) ([]credential, error) {
	var all []credential
	seen := map[string]bool{}
	for _, s := range specs {
		name, list, ok := strings.Cut(s, "@")
		if strings.Contains(name, "=") {
			return nil, errors.New("--secret takes no value, where everybody on this host could read it: use NAME@HOST, and --secret-from env:NAME, file:PATH or stdin")
		}
		if !ok {
			return nil, fmt.Errorf("--secret %q is not understood: use NAME@HOST[,HOST], such as API_KEY@api.example.com", s)
		}
		if err := secrets.CheckName(name); err != nil {
			return nil, fmt.Errorf("--secret: %w", err)
		}
		if seen[name] {
			return nil, fmt.Errorf("--secret: %s is there twice", name)
		}
		seen[name] = true
		hosts, err := secrets.CheckHosts(strings.Split(list, ","))
		if err != nil {
			return nil, fmt.Errorf("--secret %s: %w", name, err)
		}
		c := credential{Declaration: secrets.Declaration{Name: name, Hosts: hosts}}
		if c.From, err = parseSource(name, from); err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	if len(all) != 1 && from != "" {
		return nil, errors.New("--secret-from is for one --secret at a time")
	}
	return all, nil
}

// parseSource reads --secret-from; without it a value comes from the variable of the secret's name.
func parseSource(name, from string) (secrets.Source, error) {
	kind, rest, _ := strings.Cut(from, ":")
	switch {
	case from == "":
		return secrets.Source{Env: name}, nil
	case from == "stdin":
		return secrets.Source{}, nil
	case kind == "env" && rest != "":
		return secrets.Source{Env: rest}, nil
	case kind == "file" && rest != "":
		abs, err := filepath.Abs(rest)
		return secrets.Source{File: abs}, err
	case kind == "command" && rest != "":
		return secrets.Source{Command: []string{"/bin/sh", "-c", rest}}, nil
	}
	return secrets.Source{}, fmt.Errorf("--secret-from %q is not understood: use env:VARIABLE, file:PATH, command:COMMAND or stdin", from)
}

// read takes the value from its source now, so that a mistake shows before anything is changed.
func (c *credential) read(ctx context.Context, app *app) error {
	var err error
	if c.From.IsZero() {
		if app.io.InTTY() {
			return fmt.Errorf("secret %s: its value is read from standard input, which is a terminal and would show it: use a pipe, file:PATH or env:VARIABLE", c.Name)
		}
		c.value, err = secrets.ReadValue(app.io.In)
	} else {
		c.value, err = c.From.Read(ctx)
	}
	if err != nil {
		return fmt.Errorf("secret %s from %s: %w", c.Name, sourceText(c.From), err)
	}
	return nil
}

func sourceText(s secrets.Source) string {
	if s.IsZero() {
		return "standard input"
	}
	return s.String()
}

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"msb/cmd/msb/progress"
	"msb/tui"
	"msb/turn/config"
	"msb/turn/creds"
	"msb/turn/mcp"
	"msb/turn/provider"
	"msb/turn/visible"
)

// screenBackend is the settings as the screen works on them; the commands model, mcp and creds do the same.
type screenBackend struct{ path string }

const (
	trialTime  = time.Minute
	serverTime = time.Minute
)

func (b screenBackend) store() *creds.Store { return creds.Open(config.CredentialsDir(b.path)) }

func (b screenBackend) Load(context.Context) (tui.SettingsState, error) {
	st := tui.SettingsState{Path: tilde(b.path)}
	c, err := config.Load(b.path)
	if err != nil {
		return st, err
	}
	st.Offline, st.Servers = c.Offline, c.MCPServers
	for _, name := range c.ModelNames() {
		m, err := c.Model(name)
		if err != nil {
			return st, err
		}
		st.Models = append(st.Models, m)
	}
	st.Keys, err = b.store().List()
	return st, err
}

func (b screenBackend) AddModel(m config.Model) error   { return config.AddModel(b.path, m) }
func (b screenBackend) RemoveModel(name string) error   { return config.RemoveModel(b.path, name) }
func (b screenBackend) AddServer(s config.Server) error { return config.AddServer(b.path, s) }
func (b screenBackend) RemoveServer(name string) error  { return config.RemoveServer(b.path, name) }

func (b screenBackend) TestModel(ctx context.Context, name string) (string, error) {
	c, err := config.Load(b.path)
	if err != nil {
		return "", err
	}
	m, err := c.Model(name)
	if err != nil {
		return "", err
	}
	if c.Offline && !m.Scripted() {
		return "", fmt.Errorf("%s says offline: true", tilde(b.path))
	}
	ctx, cancel := context.WithTimeout(ctx, trialTime)
	defer cancel()
	r, err := provider.Test(ctx, m, b.store())
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s answers %q after %s", name, strings.TrimSpace(r.Text), progress.Seconds(r.First)), nil
}

func (b screenBackend) TestServer(ctx context.Context, name string) (string, error) {
	c, err := config.Load(b.path)
	if err != nil {
		return "", err
	}
	s, err := c.Server(name)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, serverTime)
	defer cancel()
	broker := mcp.New(mcp.Options{
		Servers:     func() ([]config.Server, error) { return []config.Server{s}, nil },
		Offline:     func() bool { return c.Offline },
		Credentials: b.store(), Log: slog.New(slog.DiscardHandler),
	})
	defer broker.Close()
	if _, err := broker.List(ctx); err != nil {
		return "", err
	}
	var text strings.Builder
	for _, st := range broker.Status() {
		if st.Err != nil {
			return "", fmt.Errorf("MCP server %s: %w", name, st.Err)
		}
		for _, t := range st.Tools {
			what, _, _ := strings.Cut(t.Description, "\n")
			fmt.Fprintf(&text, "%-24s %-6s %s\n", visible.Text(t.Name), st.Server.PolicyOf(t.Name), visible.Text(what))
		}
		if st.Hidden > 0 {
			fmt.Fprintf(&text, "%d more are left out by the settings, or cannot be used\n", st.Hidden)
		}
	}
	if text.Len() == 0 {
		return "it has no tools", nil
	}
	return text.String(), nil
}

func (b screenBackend) Login(ctx context.Context, name string, show func(url string)) error {
	c, err := config.Load(b.path)
	if err != nil {
		return err
	}
	s, err := c.Server(name)
	if err != nil {
		return err
	}
	return mcp.Login(ctx, s, b.store(), func(url string) error {
		show(url)
		startBrowser(url)
		return nil
	})
}

func (b screenBackend) SetKey(ctx context.Context, name string, key creds.Secret) (creds.Ref, error) {
	source, err := b.store().Set(ctx, "", name, key)
	return creds.Ref{Source: source, Name: name}, err
}

func (b screenBackend) RemoveKey(ctx context.Context, name string) error {
	if name == "" {
		return errors.New("no key is named")
	}
	return b.store().Remove(ctx, name)
}

package tui

import (
	"context"
	"errors"
	"strings"

	tea "charm.land/bubbletea/v2"

	"msb/turn/config"
	"msb/turn/creds"
)

// addSetting asks for what is to be added.
func (a *App) addSetting(k kind) {
	switch k {
	case kindServer:
		a.dialog = a.serverForm()
	case kindKey:
		a.typeKey(settingsRow{kind: kindKey})
	case kindRule:
		a.say("", errors.New("rules come from answers to approvals"))
	default:
		a.dialog = a.modelForm()
	}
}

const keyHint = "kept in the keyring, or in a file of mode 0600; never shown. Or where it is: env:VARIABLE, keyring:NAME, file:PATH"

// modelForm adds a model.
func (a *App) modelForm() *dialog {
	s := a.o.Settings
	return form("Add a model", []*field{
		{name: "name", hint: "what it is called here"},
		{name: "provider", value: "openai", hint: "openai, anthropic, xai, or a name of your own for a server that speaks OpenAI's chat completions"},
		{name: "model", hint: "its name at the provider"},
		{name: "address", hint: "for a provider of your own, such as http://localhost:11434/v1"},
		{name: "this machine", value: "no", choices: []string{"no", "yes"}, hint: "allow an address on this machine, also with http"},
		{name: "key", masked: true, hint: keyHint},
	}, func(v map[string]string) (tea.Cmd, error) {
		m := config.Model{Name: v["name"], Provider: v["provider"], Model: v["model"], BaseURL: v["address"], Loopback: v["this machine"] == "yes"}
		if err := m.Check(); err != nil {
			return nil, err
		}
		return a.settingsWork("adding "+m.Name, func(ctx context.Context) settingsDoneMsg {
			var err error
			if m.Credential, err = keep(ctx, s, m.Name, v["key"]); err == nil {
				err = s.AddModel(m)
			}
			return settingsDoneMsg{text: m.Name + " is added; t tests it", err: err}
		}), nil
	})
}

// serverForm adds an MCP server.
func (a *App) serverForm() *dialog {
	s := a.o.Settings
	return form("Add an MCP server", []*field{
		{name: "name", hint: "what it is called here"},
		{name: "address", hint: "of a server, such as https://mcp.example.com/mcp; or a program of this machine with its arguments"},
		{name: "this machine", value: "no", choices: []string{"no", "yes"}, hint: "allow an address on this machine, also with http"},
		{name: "tools", value: config.PolicyAsk, choices: []string{config.PolicyAsk, config.PolicyDeny, config.PolicyAllow}, hint: "ask before every call, or deny or allow all of its tools"},
		{name: "key", masked: true, hint: keyHint},
	}, func(v map[string]string) (tea.Cmd, error) {
		m := config.Server{Name: v["name"], Loopback: v["this machine"] == "yes"}
		if strings.Contains(v["address"], "://") {
			m.URL = v["address"]
		} else if words := strings.Fields(v["address"]); len(words) > 0 {
			m.Command, m.Args = words[0], words[1:]
		}
		if p := v["tools"]; p != config.PolicyAsk {
			m.Policy = map[string]string{config.EveryTool: p}
		}
		if err := m.Check(); err != nil {
			return nil, err
		}
		return a.settingsWork("adding "+m.Name, func(ctx context.Context) settingsDoneMsg {
			var err error
			if m.Credential, err = keep(ctx, s, m.Name, v["key"]); err == nil {
				err = s.AddServer(m)
			}
			return settingsDoneMsg{text: m.Name + " is added; t lists its tools", err: err}
		}), nil
	})
}

// keep puts a key that was typed into the credential store; a place is only named.
func keep(ctx context.Context, s Settings, name, key string) (*creds.Ref, error) {
	if key == "" {
		return nil, nil
	}
	if source, place, ok := strings.Cut(key, ":"); ok {
		switch source {
		case creds.SourceEnv, creds.SourceKeyring, creds.SourceFile:
			r := creds.Ref{Source: source, Name: place}
			return &r, r.Check()
		}
	}
	r, err := s.SetKey(ctx, name, creds.NewSecret(key))
	return &r, err
}

// typeKey asks for a key, for what is under the cursor or by a name of its own.
func (a *App) typeKey(row settingsRow) {
	s := a.o.Settings
	name := ""
	switch row.kind {
	case kindRule:
		a.say("", errors.New("a rule has no key"))
		return
	case kindKey:
		name = row.name
	default:
		ref := a.credentialOf(row)
		if ref == nil {
			a.say("", errors.New("its entry names no key; remove it and add it anew with one"))
			return
		}
		if ref.Source != creds.SourceKeyring && (ref.Source != creds.SourceFile || strings.Contains(ref.Name, "/")) {
			a.say("", errors.New("its key is at "+ref.String()+", which is not ours to write"))
			return
		}
		name = ref.Name
	}
	fields := []*field{{name: "name", value: name, hint: "entries name it as keyring:NAME or file:NAME"}, {name: "key", masked: true, hint: "kept in the keyring, or in a file of mode 0600; never shown"}}
	a.dialog = form("Keep a key", fields, func(v map[string]string) (tea.Cmd, error) {
		if err := creds.CheckName(v["name"]); err != nil {
			return nil, err
		}
		if v["key"] == "" {
			return nil, errors.New("the key is empty")
		}
		return a.settingsWork("keeping the key", func(ctx context.Context) settingsDoneMsg {
			ref, err := s.SetKey(ctx, v["name"], creds.NewSecret(v["key"]))
			return settingsDoneMsg{text: "kept as " + ref.String(), err: err}
		}), nil
	})
	if name != "" {
		a.dialog.at = 1
	}
}

func (a *App) credentialOf(row settingsRow) *creds.Ref {
	for _, m := range a.settings.state.Models {
		if row.kind == kindModel && m.Name == row.name {
			return m.Credential
		}
	}
	for _, m := range a.settings.state.Servers {
		if row.kind == kindServer && m.Name == row.name {
			return m.Credential
		}
	}
	return nil
}

package tui

import (
	"context"

	"msb/turn/config"
	"msb/turn/creds"
)

// Settings is the user's settings file with its credential store. Every method
// may take its time; errors are for people.
type Settings interface {
	// Load reads everything there is to show.
	Load(ctx context.Context) (SettingsState, error)
	AddModel(m config.Model) error
	RemoveModel(name string) error
	// TestModel asks a model for a word and says what came.
	TestModel(ctx context.Context, name string) (string, error)
	AddServer(s config.Server) error
	RemoveServer(name string) error
	// TestServer connects to a server and lists its tools.
	TestServer(ctx context.Context, name string) (string, error)
	// Login logs in at a server; show gets the address to open.
	Login(ctx context.Context, name string, show func(url string)) error
	// SetKey keeps a key and says where.
	SetKey(ctx context.Context, name string, key creds.Secret) (creds.Ref, error)
	RemoveKey(ctx context.Context, name string) error
}

// SettingsState is what the settings say. Texts come from the user's own files.
type SettingsState struct {
	Path    string
	Offline bool
	Models  []config.Model // the default one first
	Servers []config.Server
	Keys    []creds.Stored
}

// Package config reads and edits the user's settings file: model profiles, MCP
// servers and what may be done without asking. It is strict, and every mistake
// is reported with line and column.
package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"syscall"
	"time"

	"go.yaml.in/yaml/v4"
)

// Config is the settings file.
type Config struct {
	// DefaultModel names the profile of new sessions; "": the first one.
	DefaultModel string `yaml:"default_model"`
	// Offline turns off all models and MCP servers but the scripted model and
	// the server built into msb.
	Offline    bool     `yaml:"offline"`
	Models     []Model  `yaml:"models"`
	MCPServers []Server `yaml:"mcp_servers"`

	Approvals Approvals `yaml:"approvals"`

	// Screen is decoded by the screen, with Section.
	Screen any `yaml:"screen"`

	source string
}

// Approvals says how people are asked.
type Approvals struct {
	// Timeout is how long a request waits for an answer before it is denied; 0:
	// until its turn ends.
	Timeout time.Duration `yaml:"timeout,omitempty"`
}

// Demo is the name of the profile and of the MCP server that are built in.
const Demo = "demo"

// CredentialsDir is the folder of stored credentials that belongs to a
// settings file.
func CredentialsDir(path string) string { return filepath.Join(filepath.Dir(path), "credentials") }

// Load reads the settings file. Without one, or with one that says nothing
// about models or servers, those are the built-in demo.
func Load(path string) (*Config, error) {
	data, err := read(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, data)
}

// read returns the content of the settings file, nothing if there is none.
func read(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("settings: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("settings: %w", err)
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("settings: %s is not a regular file", path)
	}
	// It names commands that run on the host.
	if perm := st.Mode().Perm(); perm&0o002 != 0 {
		return nil, fmt.Errorf("settings: %s has mode %04o and everybody can change it: run chmod 600 %s", path, perm, path)
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	if err != nil {
		return nil, fmt.Errorf("settings: %w", err)
	}
	return data, nil
}

// Parse is Load of a file's content.
func Parse(source string, data []byte) (*Config, error) {
	c := &Config{source: source}
	top, err := parse(source, data)
	if err != nil {
		return nil, err
	}
	if top != nil {
		if err := Decode(source, data, c); err != nil {
			return nil, err
		}
		if err := (checker{source, top}).config(c); err != nil {
			return nil, err
		}
	}
	for i := range c.Models {
		c.Models[i].complete()
	}
	if !slices.ContainsFunc(c.Models, func(m Model) bool { return m.Name == Demo }) {
		c.Models = append(c.Models, demoModel())
	}
	if child(top, "mcp_servers") == nil {
		c.MCPServers = []Server{demoServer()}
	}
	return c, nil
}

// Section decodes a section of someone else's, strictly; name is its key. A
// section that is not there sets nothing.
func (c *Config) Section(name string, v any) error {
	section, ok := map[string]any{"screen": c.Screen}[name]
	if !ok {
		return fmt.Errorf("there is no section %q", name)
	}
	node, ok := section.(*yaml.Node)
	if !ok {
		return nil
	}
	return decoder{c.source}.value(node, reflect.ValueOf(v).Elem(), name, 1)
}

// Model returns a profile; "" is the default one.
func (c *Config) Model(name string) (Model, error) {
	if name == "" {
		name = c.DefaultModel
	}
	if name == "" {
		return c.Models[0], nil
	}
	for _, m := range c.Models {
		if m.Name == name {
			return m, nil
		}
	}
	return Model{}, fmt.Errorf("there is no model profile %q: see `msb model ls`", name)
}

// ModelNames lists the profiles, the default one first.
func (c *Config) ModelNames() []string {
	var names []string
	for _, m := range c.Models {
		if m.Name == c.DefaultModel {
			names = slices.Insert(names, 0, m.Name)
		} else {
			names = append(names, m.Name)
		}
	}
	return names
}

// Server returns an MCP server.
func (c *Config) Server(name string) (Server, error) {
	for _, s := range c.MCPServers {
		if s.Name == name {
			return s, nil
		}
	}
	return Server{}, fmt.Errorf("there is no MCP server %q: see `msb mcp ls`", name)
}

// Policy is what to do when a tool of an MCP server is called: PolicyAsk,
// PolicyAllow or PolicyDeny. What the file does not know is PolicyAsk.
func (c *Config) Policy(server, tool string) string {
	s, err := c.Server(server)
	if err != nil {
		return PolicyAsk
	}
	return s.PolicyOf(tool)
}

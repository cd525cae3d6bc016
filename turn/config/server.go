package config

import (
	"msb/turn/creds"
)

// What to do when a tool of an MCP server is called.
const (
	PolicyAsk   = "ask"
	PolicyAllow = "allow"
	PolicyDeny  = "deny" // the tool is not shown to the model either
)

// Server is an MCP server: one at a URL (Streamable HTTP), or a program of the
// host that speaks on its stdin and stdout.
type Server struct {
	Name string `yaml:"name,omitempty"` // a-z, 0-9 and -

	URL string `yaml:"url,omitempty"`
	// Loopback allows a URL on this machine, also with http.
	Loopback bool `yaml:"loopback,omitempty"`
	// Credential is sent as a bearer token.
	Credential *creds.Ref `yaml:"credential,omitempty"`
	// OAuth configures `msb mcp login`; nil: everything is discovered.
	OAuth *OAuth `yaml:"oauth,omitempty"`

	Command string   `yaml:"command,omitempty"`
	Args    []string `yaml:"args,omitempty"`
	// Env is the program's whole environment, apart from PATH and HOME.
	Env map[string]string `yaml:"env,omitempty"`
	// SecretEnv are variables whose values are credentials.
	SecretEnv map[string]creds.Ref `yaml:"secret_env,omitempty"`
	Dir       string               `yaml:"dir,omitempty"` // working directory; "": the home directory

	// Tools are the only ones to use; empty: all.
	Tools []string `yaml:"tools,omitempty"`
	// Policy is by tool; "*" is for all that are not named. Default: ask.
	Policy map[string]string `yaml:"policy,omitempty"`

	builtin bool
}

// OAuth is how to log in at an MCP server.
type OAuth struct {
	ClientID     string     `yaml:"client_id,omitempty"` // "": register one
	ClientSecret *creds.Ref `yaml:"client_secret,omitempty"`
	Scopes       []string   `yaml:"scopes,omitempty"`
}

// EveryTool is the key of Policy for all tools that are not named.
const EveryTool = "*"

// Host is where requests to a server at a URL go, without a port; "" for a
// program.
func (s Server) Host() string { return hostOf(s.URL) }

// PolicyOf is what to do when a tool is called.
func (s Server) PolicyOf(tool string) string {
	if p, ok := s.Policy[tool]; ok {
		return p
	}
	if p, ok := s.Policy[EveryTool]; ok {
		return p
	}
	return PolicyAsk
}

// Allows tells whether a tool may be used at all: it is in Tools, if there is
// such a list, and its policy is not to deny it.
func (s Server) Allows(tool string) bool {
	if s.PolicyOf(tool) == PolicyDeny {
		return false
	}
	if len(s.Tools) == 0 {
		return true
	}
	for _, t := range s.Tools {
		if t == tool {
			return true
		}
	}
	return false
}

// Builtin tells whether the server is the one in msb itself.
func (s Server) Builtin() bool { return s.builtin }

// demoServer is msb itself; Command is empty, the broker knows its own program.
func demoServer() Server {
	return Server{Name: Demo, Args: []string{"mcp-demo"}, builtin: true}
}

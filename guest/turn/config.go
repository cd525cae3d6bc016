package turn

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"regexp"

	"msb/guest/turn/tree"
	"msb/protocol/turnrpc"
)

// MaxConfig is the largest encoded GuestConfig in bytes.
const MaxConfig = 64 << 10

// Config is what an agent needs. All but Log is needed.
type Config struct {
	Guest   turnrpc.GuestConfig
	ImageID string // of the image or guest program, never empty
	Tree    *tree.Tree
	Runner  Runner
	Machine Machine
	State   string // folder for the conversation, the agent's own
	Log     *slog.Logger
}

// ErrSecrets reports a configuration that holds what a guest must not have.
var ErrSecrets = errors.New("the configuration holds secrets or MCP servers, which belong on the host: start the session from a host that speaks protocol 4, and take secrets and mcp_servers out of the configuration")

var sessionID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// ParseConfig reads a GuestConfig, gives it its defaults and refuses one that a version 4 guest must not take.
func ParseConfig(b []byte) (turnrpc.GuestConfig, error) {
	var c turnrpc.GuestConfig
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(b, &raw); err != nil {
		return c, fmt.Errorf("the configuration is no JSON object: %w", err)
	}
	for _, key := range []string{"secrets", "mcp_servers"} {
		switch string(raw[key]) {
		case "", "null", "{}", "[]":
		default:
			return c, ErrSecrets
		}
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return c, fmt.Errorf("read the configuration: %w", err)
	}
	if len(c.Secrets) > 0 || len(c.MCPServers) > 0 {
		return c, ErrSecrets
	}
	if !sessionID.MatchString(c.SessionID) {
		return c, fmt.Errorf("the configuration's session_id %.80q is not one", c.SessionID)
	}
	if c.Capability == "" {
		return c, errors.New("the configuration has no capability")
	}
	if c.RepoDir == "" {
		c.RepoDir = turnrpc.DefaultRepoDir
	}
	if c.RepoDir[0] != '/' {
		return c, fmt.Errorf("the configuration's repo_dir %.80q is no absolute path", c.RepoDir)
	}
	if c.VsockPort == 0 {
		c.VsockPort = turnrpc.DefaultPort
	}
	return c, nil
}

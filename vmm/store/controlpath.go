package store

import (
	"path/filepath"
	"strings"
)

// ControlSocketOf is the control socket that goes with an agent socket, whoever made the sandbox: control.sock beside
// agent.sock, and beside one of another name that name with control.sock in place of its extension.
func ControlSocketOf(agent string) string {
	dir, base := filepath.Split(agent)
	if base == "agent.sock" {
		return filepath.Join(dir, "control.sock")
	}
	return filepath.Join(dir, strings.TrimSuffix(base, filepath.Ext(base))+".control.sock")
}

// AgentSocketOf is the agent socket that goes with a control socket.
func AgentSocketOf(control string) string {
	dir, base := filepath.Split(control)
	if base == "control.sock" {
		return filepath.Join(dir, "agent.sock")
	}
	return filepath.Join(dir, strings.TrimSuffix(base, ".control.sock")+".sock")
}

package store

import "testing"

func TestControlSocketsLieBesideAgentSockets(t *testing.T) {
	for agent, control := range map[string]string{
		"/run/x/agent.sock": "/run/x/control.sock",
		"/run/ab12.sock":    "/run/ab12.control.sock",
		"/run/a.b.sock":     "/run/a.b.control.sock",
	} {
		if got := ControlSocketOf(agent); got != control {
			t.Errorf("%s: %s", agent, got)
		}
		if got := AgentSocketOf(control); got != agent {
			t.Errorf("%s: %s", control, got)
		}
	}
}

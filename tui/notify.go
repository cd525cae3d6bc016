package tui

import (
	"fmt"
	"strings"

	tea "charm.land/bubbletea/v2"

	"msb/vmm/store"
)

// notify tells a user who looks elsewhere. The text is ours, with at most a
// sandbox's name in it.
func (a *App) notify(text string) tea.Cmd {
	if !a.blurred {
		return nil
	}
	if store.ValidateName(a.box.Name) != nil {
		text = "something waits"
	}
	if a.env("TMUX") != "" || strings.HasPrefix(a.env("TERM"), "screen") {
		return tea.Raw("\a")
	}
	return tea.Raw(fmt.Sprintf("\a\x1b]9;msb: %s\x1b\\\x1b]777;notify;msb;%s\x1b\\", text, text))
}

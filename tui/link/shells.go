package link

import (
	"context"

	tea "charm.land/bubbletea/v2"

	"msb/vmm/shells"
)

// ShellsMsg is the list of shells that a sandbox keeps. It is pushed.
type ShellsMsg struct {
	Box  string
	List []shells.Info
}

// Shells tells of the shells of a sandbox until ctx ends or its runtime does. Older
// runtimes keep none, and there is nothing to tell then.
func Shells(ctx context.Context, box, path string, send func(tea.Msg)) {
	_ = shells.Watch(ctx, path, func(list []shells.Info) { send(ShellsMsg{box, list}) })
}

package link

import (
	"context"

	tea "charm.land/bubbletea/v2"

	"msb/vmm/traffic"
)

// TrafficMsg is what has crossed the protocols of a sandbox. It is pushed.
type TrafficMsg struct {
	Box   string
	Piece traffic.Piece
}

// Traffic tells what crosses until ctx ends or the sandbox's runtime does. Older
// runtimes do not tell.
func Traffic(ctx context.Context, box, path string, send func(tea.Msg)) {
	_ = traffic.Watch(ctx, path, func(p traffic.Piece) { send(TrafficMsg{box, p}) })
}

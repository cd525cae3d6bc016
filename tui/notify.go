package tui

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"msb/vmm/store"
)

// notifyTime is how long the user's notification command may take.
const notifyTime = 10 * time.Second

// notifiedMsg says that the notification command has ended.
type notifiedMsg struct{ err error }

// notify tells a user who looks elsewhere. The text is ours, with at most a
// sandbox's name in it.
func (a *App) notify(text string) tea.Cmd {
	if !a.blurred {
		return nil
	}
	if store.ValidateName(a.box.Name) != nil {
		text = "something waits"
	}
	var desktop tea.Cmd
	if len(a.o.Notify) > 0 && !a.notifying { // one at a time: a command that hangs does not pile up
		a.notifying = true
		ctx, argv := a.ctx, append(a.o.Notify[:len(a.o.Notify):len(a.o.Notify)], text)
		desktop = func() tea.Msg { return notifiedMsg{runQuietly(ctx, argv)} }
	}
	if a.env("TMUX") != "" || strings.HasPrefix(a.env("TERM"), "screen") {
		return tea.Batch(tea.Raw("\a"), desktop)
	}
	return tea.Batch(tea.Raw(fmt.Sprintf("\a\x1b]9;msb: %s\x1b\\\x1b]777;notify;msb;%s\x1b\\", text, text)), desktop)
}

// runQuietly runs a command that has no terminal.
func runQuietly(ctx context.Context, argv []string) error {
	ctx, cancel := context.WithTimeout(ctx, notifyTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("notify with %s: %w", argv[0], err)
	}
	return nil
}

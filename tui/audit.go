package tui

import (
	"errors"
	"fmt"
	"io"
	"os"

	tea "charm.land/bubbletea/v2"
)

// audit shows the end of the audit log.
func (a *App) audit() tea.Cmd {
	if a.o.Audit == nil || a.box.Name == "" {
		a.say("", errors.New("there is no audit log here"))
		return nil
	}
	path := a.o.Audit(a.box)
	return func() tea.Msg {
		text, err := tail(path, 256<<10)
		if err != nil {
			err = fmt.Errorf("audit log: %w", err)
		}
		return pageMsg{title: "audit log " + path, text: text, err: err}
	}
}

// tail is the end of a file.
func tail(path string, n int64) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return "", err
	}
	from := max(st.Size()-n, 0)
	b, err := io.ReadAll(io.NewSectionReader(f, from, n))
	return string(b), err
}

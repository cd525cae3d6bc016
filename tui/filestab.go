package tui

import (
	"fmt"
	"os"
	"os/exec"
	"strings"

	tea "charm.land/bubbletea/v2"

	"msb/protocol/agent"
	"msb/tui/files"
	"msb/vmm/store"
)

// editedMsg says that the editor has ended.
type editedMsg struct{ err error }

func isDir(e agent.Entry) bool { return e.Kind == agent.KindDir }

// filesStart reads the tree when it is looked at for the first time.
func (a *App) filesStart() tea.Cmd {
	if a.tab != tabFiles || a.files.Ready() || a.box.State != store.Running {
		return nil
	}
	return a.files.Start(a.ctx, files.InSandbox(a.box.AgentSocket))
}

func (a *App) filesRefresh() tea.Cmd { return a.files.Refresh(a.ctx) }

func (a *App) filesMsg(m files.Msg) tea.Cmd { return a.files.Got(a.ctx, m) }

func (a *App) filesKey(k tea.KeyPressMsg) tea.Cmd {
	switch k.String() {
	case "e":
		return a.edit()
	case "d":
		return a.diff()
	}
	return a.files.Key(a.ctx, k)
}

// edit opens the file under the cursor in the user's editor.
func (a *App) edit() tea.Cmd {
	mounts, tree := a.box.Mounts, a.files
	file, err := tree.OnHost(mounts)
	if err != nil {
		a.say("", err)
		return nil
	}
	editor := strings.Fields(a.env("VISUAL"))
	if len(editor) == 0 {
		editor = strings.Fields(a.env("EDITOR"))
	}
	if len(editor) == 0 {
		editor = []string{"vi"}
	}
	cmd := exec.Command(editor[0], append(editor[1:], file)...)
	return tea.ExecProcess(cmd, func(err error) tea.Msg {
		if err != nil {
			err = fmt.Errorf("%s: %w", editor[0], err)
		}
		return editedMsg{err}
	})
}

// env is a variable of the terminal's environment.
func (a *App) env(key string) string {
	if a.o.Env == nil {
		return os.Getenv(key)
	}
	for _, e := range a.o.Env {
		if v, ok := strings.CutPrefix(e, key+"="); ok {
			return v
		}
	}
	return ""
}

package tui

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	tea "charm.land/bubbletea/v2"

	"msb/protocol/agent"
	"msb/tui/files"
	"msb/tui/foreign"
	"msb/turn/visible"
	"msb/vmm"
	"msb/vmm/store"
)

// copiedMsg says that a copy has ended.
type copiedMsg struct {
	text string
	err  error
}

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
	case "u":
		a.upload()
		return nil
	case "s":
		a.download()
		return nil
	}
	return a.files.Key(a.ctx, k)
}

// upload asks what of this machine is to be copied into the folder on the screen.
func (a *App) upload() {
	if a.o.Copy == nil {
		a.say("", errors.New("`msb cp` copies files"))
		return
	}
	sb := a.box
	a.dialog = form("Copy into "+foreign.Text(sb.Name), []*field{
		{name: "from", hint: "a file of this machine, or a folder with all in it"},
		{name: "into", value: a.files.Folder(), hint: "a folder of the sandbox"},
	}, func(v map[string]string) (tea.Cmd, error) {
		from, err := a.hostPath(v["from"])
		if err != nil {
			return nil, err
		}
		if _, err := os.Lstat(from); err != nil {
			return nil, err
		}
		if !path.IsAbs(v["into"]) {
			return nil, errors.New("into: a path in the sandbox begins with a slash")
		}
		return a.copyFiles(sb, true, from, strings.TrimSuffix(v["into"], "/")+"/"), nil
	})
}

// download asks where on this machine what is under the cursor is to be saved.
// Nothing that is there is written over.
func (a *App) download() {
	from, ok := a.files.Current()
	if a.o.Copy == nil || !ok {
		a.say("", errors.New("nothing is chosen"))
		return
	}
	sb := a.box
	name := path.Base(from)
	if !visible.Plain(name) {
		name = "file"
	}
	a.dialog = form("Save "+foreign.Text(path.Base(from)), []*field{
		{name: "as", value: "./" + name, hint: "a path on this machine where nothing is yet"},
	}, func(v map[string]string) (tea.Cmd, error) {
		to, err := a.hostPath(v["as"])
		if err != nil {
			return nil, err
		}
		if _, err := os.Lstat(to); err == nil {
			return nil, fmt.Errorf("%s is there already", to)
		}
		return a.copyFiles(sb, false, from, to), nil
	})
}

func (a *App) copyFiles(sb vmm.Sandbox, up bool, from, to string) tea.Cmd {
	do, ctx := a.o.Copy, a.ctx
	a.say("copying "+path.Base(from), nil)
	return func() tea.Msg {
		err := do(ctx, sb, up, from, to)
		return copiedMsg{text: "copied to " + to, err: err}
	}
}

// hostPath is a path of this machine as it was typed.
func (a *App) hostPath(p string) (string, error) {
	if p == "" {
		return "", errors.New("no path is given")
	}
	if rest, ok := strings.CutPrefix(p, "~/"); ok {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", err
		}
		p = filepath.Join(home, rest)
	}
	return filepath.Abs(p)
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

package tui

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"msb/tui/foreign"
	"msb/tui/pane"
	"msb/turn/approval"
	"msb/turn/creds"
	"msb/vmm/store"
)

// kind is what a row of the settings is about.
type kind int

const (
	kindModel kind = iota
	kindServer
	kindKey
	kindRule
)

// settingsRow is a line under the cursor.
type settingsRow struct {
	kind kind
	name string // of a rule: its id
	text string // safe
}

// settingsList is the tab of models, servers, keys and rules.
type settingsList struct {
	state SettingsState
	rules []approval.Rule
	rows  []settingsRow
	at    int
	err   string // safe
	ready bool
	doing string
}

// Messages of the tab.
type (
	settingsMsg struct {
		box      string
		state    SettingsState
		rules    []approval.Rule
		err      error
		rulesErr error
	}
	settingsDoneMsg struct {
		text  string
		page  string // shown as a page when it has lines
		title string
		err   error
	}
	loginMsg struct{ name, text string }
)

// loadSettings reads the settings, and the rules of the sandbox on the screen.
func (a *App) loadSettings() tea.Cmd {
	if a.o.Settings == nil {
		return nil
	}
	s, t, ctx, box := a.o.Settings, a.turns, a.ctx, a.box
	return func() tea.Msg {
		m := settingsMsg{box: box.Name}
		m.state, m.err = s.Load(ctx)
		if t != nil && box.State == store.Running {
			m.rules, m.rulesErr = t.Rules()
		}
		return m
	}
}

func (a *App) gotSettings(m settingsMsg) {
	l := &a.settings
	l.ready, l.err = true, ""
	if m.err != nil {
		l.err = foreign.Text(m.err.Error())
	} else {
		l.state = m.state
	}
	if m.box == a.box.Name {
		l.rules = m.rules
	}
	l.rows = nil
	for i, p := range l.state.Models {
		about := p.Provider
		if p.Model != "" {
			about += " · " + p.Model
		}
		if p.BaseURL != "" {
			about += " · " + p.BaseURL
		}
		if i == 0 {
			about += " · default"
		}
		l.rows = append(l.rows, settingsRow{kindModel, p.Name, foreign.Text(about + keyOf(p.Credential))})
	}
	for _, s := range l.state.Servers {
		where := s.URL
		switch {
		case s.Builtin():
			where = "built in"
		case s.URL == "":
			where = strings.Join(append([]string{s.Command}, s.Args...), " ")
		}
		l.rows = append(l.rows, settingsRow{kindServer, s.Name, foreign.Text(where + keyOf(s.Credential))})
	}
	for _, k := range l.state.Keys {
		what := "key"
		if k.OAuth {
			what = "login"
		}
		l.rows = append(l.rows, settingsRow{kindKey, k.Name, foreign.Text(what + " in the " + k.Source)})
	}
	for _, r := range l.rules {
		l.rows = append(l.rows, settingsRow{kindRule, r.ID, foreign.Text(r.Describe())})
	}
	l.at = max(0, min(l.at, len(l.rows)-1))
}

func keyOf(r *creds.Ref) string {
	if r == nil {
		return ""
	}
	return " · key " + r.String()
}

// settingsWork does something with the settings and reads them again.
func (a *App) settingsWork(doing string, f func(ctx context.Context) settingsDoneMsg) tea.Cmd {
	l := &a.settings
	if l.doing != "" {
		a.say("", errors.New("still "+l.doing))
		return nil
	}
	l.doing = doing
	ctx := a.ctx
	return func() tea.Msg {
		ctx, cancel := context.WithTimeout(ctx, 6*time.Minute) // a login takes a person's time
		defer cancel()
		return f(ctx)
	}
}

func (a *App) settingsDone(m settingsDoneMsg) tea.Cmd {
	a.settings.doing = ""
	a.say(m.text, m.err)
	switch here := a.tab == tabSettings && a.dialog == nil; {
	case !here && m.err == nil && m.page != "":
		a.say(m.title+" were read; Enter on the settings shows them", nil)
	case !here:
	case m.err != nil && len(m.err.Error()) > a.w/2: // too long for the last line
		a.pager = newPager("not done", m.err.Error(), false)
	case m.err == nil && m.page != "":
		a.pager = newPager(m.title, m.page, false)
	}
	return a.loadSettings()
}

// settingsKey is a key in the tab.
func (a *App) settingsKey(name string) tea.Cmd {
	l, s := &a.settings, a.o.Settings
	if s == nil {
		return nil
	}
	switch name {
	case "up", "k":
		l.at = max(0, l.at-1)
		return nil
	case "down", "j":
		l.at = max(0, min(len(l.rows)-1, l.at+1))
		return nil
	case "home", "g":
		l.at = 0
		return nil
	case "end", "G":
		l.at = max(0, len(l.rows)-1)
		return nil
	case "r":
		return a.loadSettings()
	}
	if len(l.rows) == 0 && name != "n" {
		return nil
	}
	row := settingsRow{}
	if len(l.rows) > 0 {
		row = l.rows[l.at]
	}
	switch name {
	case "n":
		a.addSetting(row.kind)
	case "e":
		a.typeKey(row)
	case "d":
		a.dialog = a.forgetSetting(row)
	case "t":
		return a.testSetting(row)
	case "enter":
		if row.kind == kindModel {
			return a.chooseModel(row.name)
		}
		return a.testSetting(row)
	case "o":
		if row.kind != kindServer {
			a.say("", errors.New("choose an MCP server to log in to"))
			return nil
		}
		send := a.send
		return a.settingsWork("logging in", func(ctx context.Context) settingsDoneMsg {
			err := s.Login(ctx, row.name, func(url string) {
				send(loginMsg{row.name, "Open this address in a browser:\n\n" + url + "\n\nThe page that it ends on tells this screen."})
			})
			return settingsDoneMsg{text: "logged in to " + row.name, err: err}
		})
	}
	return nil
}

// chooseModel takes a model for the session on the screen, and for the next ones.
func (a *App) chooseModel(name string) tea.Cmd {
	a.model = name
	t, session := a.turns, a.session
	if t == nil || session == "" {
		a.say("the next session uses "+name, nil)
		return nil
	}
	return func() tea.Msg { return doneMsg{text: "model " + name, err: t.SetModel(session, name)} }
}

func (a *App) testSetting(row settingsRow) tea.Cmd {
	s := a.o.Settings
	switch row.kind {
	case kindModel:
		return a.settingsWork("asking "+row.name+" for a word", func(ctx context.Context) settingsDoneMsg {
			text, err := s.TestModel(ctx, row.name)
			return settingsDoneMsg{text: text, err: err}
		})
	case kindServer:
		return a.settingsWork("connecting to "+row.name, func(ctx context.Context) settingsDoneMsg {
			text, err := s.TestServer(ctx, row.name)
			return settingsDoneMsg{page: text, title: "tools of " + row.name, err: err}
		})
	case kindRule:
		a.pager = newPager("rule "+row.name, row.text, false)
		return nil
	}
	a.say("", errors.New("models and servers can be tested"))
	return nil
}

// forgetSetting asks before something is removed.
func (a *App) forgetSetting(row settingsRow) *dialog {
	s, t := a.o.Settings, a.turns
	work := func(text string, f func(ctx context.Context) error) func() tea.Cmd {
		return func() tea.Cmd {
			return a.settingsWork("removing", func(ctx context.Context) settingsDoneMsg { return settingsDoneMsg{text: text, err: f(ctx)} })
		}
	}
	name := foreign.Text(row.name)
	switch row.kind {
	case kindModel:
		return ask("Take the model "+name+" out of the settings? Its key stays.", work(name+" is removed", func(context.Context) error { return s.RemoveModel(row.name) }))
	case kindServer:
		return ask("Take the MCP server "+name+" out of the settings? Its key stays.", work(name+" is removed", func(context.Context) error { return s.RemoveServer(row.name) }))
	case kindKey:
		return ask("Forget the key "+name+"?", work("the key "+name+" is forgotten", func(ctx context.Context) error { return s.RemoveKey(ctx, row.name) }))
	}
	return ask("Forget the rule? "+row.text+" is asked about again.", work("forgotten", func(context.Context) error {
		if t == nil {
			return errors.New(a.whyDown())
		}
		return t.RemoveRule(row.name)
	}))
}

var kindTitles = []string{"models", "MCP servers", "keys", "rules"}

// viewSettings draws the tab.
func (a *App) viewSettings(w, h int) []string {
	t, l := a.theme, &a.settings
	switch {
	case a.o.Settings == nil:
		return []string{"", " There are no settings here."}
	case !l.ready:
		return []string{"", t.Dim.Render(" reading …")}
	}
	var out []string
	cursor := 0
	add := func(s string) { out = append(out, s) }
	for k, title := range kindTitles {
		head := title
		if kind(k) == kindRule && a.box.Name != "" {
			head += " of " + foreign.Text(a.box.Name)
		}
		add(t.Bold.Render(pane.Fit(" "+head, w)))
		n := 0
		for i, r := range l.rows {
			if r.kind != kind(k) {
				continue
			}
			n++
			mark := "  "
			if r.kind == kindModel && r.name == a.chosenModel() {
				mark = "▸ "
			}
			line := pane.Fit(fmt.Sprintf(" %s%-16s %s", mark, foreign.Text(r.name), r.text), w)
			if i == l.at {
				cursor = len(out)
				line = t.Sel.Render(line)
			}
			add(line)
		}
		if n == 0 {
			add(t.Dim.Render("   none"))
		}
	}
	about := " " + l.state.Path
	if l.state.Offline {
		about += " · offline"
	}
	if l.doing != "" {
		about = " " + l.doing + " …"
	}
	foot := []string{t.Dim.Render(pane.Fit(foreign.Text(about), w))}
	if l.err != "" {
		foot = nil
		for _, line := range pane.Wrap(l.err, w-2) {
			foot = append(foot, t.Fail.Render(" "+line))
		}
	}
	room := max(h-len(foot), 1)
	top := max(0, min(cursor-room/2, len(out)-room))
	return append(pane.Block(out[top:], w, room), foot...)
}

// chosenModel is the model of the session on the screen, or of the next one.
func (a *App) chosenModel() string {
	switch {
	case a.model != "":
		return a.model
	case a.conv.Model != "":
		return a.conv.Model
	case len(a.settings.state.Models) > 0:
		return a.settings.state.Models[0].Name
	}
	return ""
}

package tui

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"msb/agentclient"
	"msb/tui/approve"
	"msb/tui/compose"
	"msb/tui/conversation"
	"msb/turn"
	"msb/turn/approval"
	"msb/turn/visible"
	"msb/vmm/store"
)

// commands of the composer.
var commands = []compose.Command{
	{Name: "/help", Help: "keys and commands"},
	{Name: "/new", Help: "a new session"},
	{Name: "/sessions", Help: "choose a session"},
	{Name: "/model", Args: "NAME", Help: "choose the model of the next turns"},
	{Name: "/name", Args: "NAME", Help: "name this session"},
	{Name: "/diff", Help: "what changed in the workspace"},
	{Name: "/rules", Help: "what was remembered; /rules rm ID forgets one"},
	{Name: "/stop", Help: "stop the turn"},
	{Name: "/close", Help: "end this session's agent; it can be resumed"},
	{Name: "/copy", Help: "copy the last answer"},
	{Name: "/quit", Help: "leave the screen; everything goes on"},
}

// entered is what was written in the composer.
func (a *App) entered(text string) tea.Cmd {
	a.conv.Follow()
	if strings.HasPrefix(text, "/") && !strings.Contains(text, "\n") {
		name, args, _ := strings.Cut(strings.TrimSpace(text), " ")
		for _, c := range commands {
			if c.Name == name {
				return a.command(name, strings.TrimSpace(args))
			}
		}
		if !strings.Contains(name[1:], "/") {
			a.comp.Set(text)
			a.say("", fmt.Errorf("there is no command %s; /help lists them", name))
			return nil
		}
	}
	if a.conv.Busy() || a.starting {
		a.queued = append(a.queued, text)
		return nil
	}
	return a.ask(text)
}

// ask starts a turn, in a session that is opened where there is none.
func (a *App) ask(text string) tea.Cmd {
	if !a.up {
		a.comp.Set(text)
		a.say("", errors.New(a.whyDown()))
		return nil
	}
	a.starting = true
	t, session, model := a.turns, a.session, a.model
	return func() tea.Msg {
		m := askedMsg{text: text}
		if session == "" {
			m.session, m.err = t.Resume("", model)
			m.fresh = true
			if m.err != nil {
				return m
			}
			session = m.session.ID
		}
		m.session.ID = session
		_, err := t.Ask(session, text)
		if errors.Is(err, turn.ErrSessionClosed) {
			if m.session, err = t.Resume(session, ""); err == nil {
				_, err = t.Ask(session, text)
			}
			m.session.ID = session
		}
		m.busy = errors.Is(err, turn.ErrTurnActive)
		m.err = err
		return m
	}
}

func (a *App) asked(m askedMsg) tea.Cmd {
	a.starting = false
	if m.fresh && m.session.ID != "" && a.turns != nil {
		a.attach(m.session)
	}
	switch {
	case m.busy: // another screen was faster
		a.queued = append([]string{m.text}, a.queued...)
	case m.err != nil:
		if a.comp.Empty() {
			a.comp.Set(m.text)
		}
		a.say("", m.err)
	case m.fresh:
		a.sessions = append([]turn.Info{m.session}, a.sessions...)
	}
	return nil
}

// stop cancels the turn under way.
func (a *App) stop() tea.Cmd {
	if !a.conv.Busy() || a.turns == nil {
		return nil
	}
	t, session, name := a.turns, a.session, a.conv.Active
	a.stopping = true
	a.say("stopping the turn", nil)
	return func() tea.Msg { return doneMsg{err: t.Stop(session, name)} }
}

// answer sends a decision; it can only reach the request it was made for.
func (a *App) answer(m approve.AnswerMsg) tea.Cmd {
	if a.turns == nil {
		return a.panel.Failed(m.ID, "the sandbox does not answer")
	}
	t := a.turns
	m.Answer.By = "screen"
	return func() tea.Msg {
		err := t.Answer(m.ID, m.Answer)
		text := "denied"
		if m.Answer.Allow {
			text = "allowed " + m.Answer.Scope
		}
		return answeredMsg{m.ID, text, err}
	}
}

// requested takes the requests that wait now.
func (a *App) requested(list []approval.Request) tea.Cmd {
	before, count, mine := a.panel.Current(), a.panel.Count(), a.panel.Tried()
	cmd := a.panel.Set(list)
	now := a.panel.Current()
	if before != "" && before != now && !mine {
		a.say("what waited was answered elsewhere, or its turn has ended", nil)
		if now == "" && a.tab == tabTurns {
			a.deaf = a.panel.Now().Add(approve.Quiet)
		}
	}
	cmds := []tea.Cmd{cmd}
	if a.panel.Count() > count || now != "" && now != before {
		cmds = append(cmds, a.notify(fmt.Sprintf("%s asks for your approval", a.box.Name)))
	}
	if len(list) > 0 && a.session == "" && len(a.sessions) == 0 && !a.starting && a.turns != nil {
		t, box, session := a.turns, a.box.Name, list[0].Session
		cmds = append(cmds, func() tea.Msg {
			l, err := t.Sessions()
			if err != nil {
				return nil // what waits is on the screen all the same
			}
			return joinMsg{box, session, l}
		})
	}
	return tea.Batch(cmds...)
}

// join shows the session that asks, where none was there to be shown before.
func (a *App) join(m joinMsg) {
	if m.box != a.box.Name || a.session != "" || a.starting || a.turns == nil {
		return
	}
	for _, i := range m.list {
		if i.ID == m.session {
			a.sessions = m.list
			a.attach(i)
		}
	}
}

func (a *App) answered(m answeredMsg) tea.Cmd {
	switch {
	case m.err == nil:
		a.say(m.text, nil)
	case errors.Is(m.err, approval.ErrAnswered), errors.Is(m.err, approval.ErrUnknownRequest):
		a.say("", errors.New("it was answered elsewhere, or its turn has ended"))
	default:
		return a.panel.Failed(m.id, m.err.Error())
	}
	return a.panel.Answered(m.id)
}

// command runs a command of the composer.
func (a *App) command(name, args string) tea.Cmd {
	t, session := a.turns, a.session
	need := func() bool {
		if !a.up || t == nil {
			a.say("", errors.New(a.whyDown()))
			return false
		}
		return true
	}
	switch name {
	case "/help":
		a.help = true
	case "/quit":
		return a.quit()
	case "/stop":
		return a.stop()
	case "/copy":
		return a.copy()
	case "/new":
		if a.conv.Busy() {
			a.say("", errors.New("a turn is under way; Esc stops it"))
			return nil
		}
		a.session = ""
		a.conv = conversation.New(a.theme)
		a.conv.Cost = a.o.Cost
		a.events.clear()
		if t != nil {
			t.Follow("", 0)
		}
		a.say("a new session begins with your next question", nil)
	case "/sessions":
		if need() {
			return func() tea.Msg { l, err := t.Sessions(); return sessionsMsg{l, err} }
		}
	case "/model":
		switch {
		case args == "":
			a.say("models: "+strings.Join(a.models, ", "), nil)
		case need():
			return a.chooseModel(args)
		}
	case "/name":
		if session != "" && need() {
			return func() tea.Msg { return doneMsg{text: "named " + args, err: t.Rename(session, args)} }
		}
	case "/close":
		if session != "" && need() {
			return func() tea.Msg { return doneMsg{text: "the session's agent has ended", err: t.Leave(session)} }
		}
	case "/diff":
		return a.diff()
	case "/rules":
		if need() {
			return rulesCmd(t.Rules, t.RemoveRule, args)
		}
	}
	return nil
}

func rulesCmd(list func() ([]approval.Rule, error), remove func(string) error, args string) tea.Cmd {
	return func() tea.Msg {
		if id, ok := strings.CutPrefix(args, "rm "); ok {
			id = strings.TrimSpace(id)
			return doneMsg{text: "forgotten: rule " + id, err: remove(id)}
		}
		rules, err := list()
		var b strings.Builder
		for _, r := range rules {
			fmt.Fprintf(&b, "%s  %s\n", r.ID, r.Describe())
		}
		if len(rules) == 0 {
			b.WriteString("nothing is remembered: every command and call is asked about")
		} else {
			b.WriteString("\n/rules rm ID forgets one")
		}
		return pageMsg{title: "rules", text: b.String(), err: err}
	}
}

// diff shows what changed in the workspace.
func (a *App) diff() tea.Cmd {
	t, session, sb, diff := a.turns, a.session, a.box, a.o.Diff
	if sb.State != store.Running {
		a.say("", errors.New(a.whyDown()))
		return nil
	}
	ctx := a.ctx
	return func() tea.Msg {
		m := pageMsg{title: "changes in " + sb.Name, diff: true}
		if diff != nil {
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			m.text, m.err = diff(ctx, sb)
		} else if t == nil || session == "" {
			m.err = errors.New("there is no session to ask for its changes")
		} else {
			p, err := t.Patch(session)
			m.text, m.err = p.Patch, err
		}
		if m.err == nil && strings.TrimSpace(m.text) == "" {
			m.text, m.diff = "nothing has changed", false
		}
		return m
	}
}

func (a *App) copy() tea.Cmd {
	text := a.conv.Copy()
	if text == "" {
		return nil
	}
	a.say(fmt.Sprintf("copied %d characters", len([]rune(text))), nil)
	if !visible.Plain(strings.NewReplacer("\n", "", "\t", "").Replace(text)) {
		a.say("", errors.New("copied; it holds invisible characters"))
	}
	return tea.SetClipboard(text)
}

// older reads a part of the past back.
func (a *App) older() tea.Cmd {
	after, upTo, ok := a.conv.Older()
	if !ok || a.turns == nil {
		return nil
	}
	t, session := a.turns, a.session
	return func() tea.Msg {
		list, err := t.Range(session, after, upTo)
		return olderMsg{session, after, list, err}
	}
}

// maxOutput bounds what is read back of a call's output, in bytes.
const maxOutput = 4 << 20

// output shows all that a call printed, read back from the transcript: only its
// last part is held here.
func (a *App) output() tea.Cmd {
	id, name, after, upTo, ok := a.conv.Call()
	if !ok || a.turns == nil {
		a.say("no call is chosen", nil)
		return nil
	}
	t, session := a.turns, a.session
	return func() tea.Msg {
		text, whole, err := t.Output(session, id, name, after, upTo, maxOutput)
		title := "all that " + name + " printed"
		if !whole && err == nil {
			title = fmt.Sprintf("the first %d MiB that %s printed; `msb session show` has the rest", maxOutput>>20, name)
		}
		return pageMsg{title: title, text: text, err: err}
	}
}

// chooseSession lets the user choose one of the sessions.
func (a *App) chooseSession() {
	d := &dialog{title: "sessions", choose: true}
	for _, i := range a.sessions {
		name := i.Name
		if name == "" {
			name = i.ID[:min(8, len(i.ID))]
		}
		d.rows = append(d.rows, fmt.Sprintf("%-16s %-7s %3d turns  %s", visible.Text(name), i.State, i.Turns, visible.Text(i.Title)))
	}
	if len(d.rows) == 0 {
		a.say("there are no sessions yet", nil)
		return
	}
	list := a.sessions
	d.done = func(n int, _ string) tea.Cmd {
		if a.turns != nil && n < len(list) {
			a.attach(list[n])
		}
		return nil
	}
	a.dialog = d
}

type namesMsg struct {
	prefix string
	names  []string
}

// completeFiles asks the sandbox for names.
func (a *App) completeFiles(prefix string) tea.Cmd {
	if a.box.State != store.Running {
		return nil
	}
	socket, ctx := a.box.AgentSocket, a.ctx
	return func() tea.Msg {
		ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		c, err := agentclient.Dial(ctx, socket)
		if err != nil {
			return nil
		}
		defer c.Close()
		dir, base := "", prefix
		if i := strings.LastIndex(prefix, "/"); i >= 0 {
			dir, base = prefix[:i+1], prefix[i+1:]
		}
		root := "/work/repo/"
		if strings.HasPrefix(dir, "/") {
			root = ""
		}
		list, err := c.FS().List(ctx, root+dir)
		if err != nil {
			return nil
		}
		var names []string
		for _, e := range list {
			name := e.Path[strings.LastIndex(e.Path, "/")+1:]
			if strings.HasPrefix(name, base) && (base != "" || !strings.HasPrefix(name, ".")) && visible.Plain(name) && !strings.Contains(name, " ") {
				if isDir(e) {
					name += "/"
				}
				names = append(names, dir+name)
			}
			if len(names) == 8 {
				break
			}
		}
		return namesMsg{prefix, names}
	}
}

// whyDown says why nothing can be asked, and what to do.
func (a *App) whyDown() string {
	switch {
	case a.box.Name == "":
		return "no sandbox is open; choose one in the list"
	case a.box.State != store.Running:
		return fmt.Sprintf("%s does not run; s in the list of boxes starts it", a.box.Name)
	case a.down != "":
		return "no turns in this sandbox: " + a.down
	}
	return "connecting to " + a.box.Name
}

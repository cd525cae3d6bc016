package tui

import (
	"context"
	"sync"
	"time"

	tea "charm.land/bubbletea/v2"

	"msb/tui/approve"
	"msb/tui/compose"
	"msb/tui/conversation"
	"msb/tui/files"
	"msb/tui/foreign"
	"msb/tui/keymap"
	"msb/tui/link"
	"msb/tui/shell"
	"msb/tui/theme"
	"msb/turn"
	"msb/vmm"
	"msb/vmm/shells"
	"msb/vmm/store"
)

// tab is one of the views.
type tab int

const (
	tabTurns tab = iota
	tabShell
	tabFiles
	tabEvents
	tabBoxes
	tabSettings
)

var tabNames = []string{"turns", "shell", "files", "events", "boxes", "settings"}

// App is the screen. All its state is changed in Update; what takes time runs
// in commands and connections.
type App struct {
	o      Options
	keymap *keymap.Map
	ctx    context.Context
	send   func(tea.Msg)
	work   sync.WaitGroup // connections that are being closed
	theme  *theme.Theme

	w, h      int
	tab       tab
	blurred   bool
	notifying bool // the notification command runs
	frame     int
	ticking   bool
	clock     func() time.Time // tests have their own
	now       time.Time
	help      bool
	helpAt    int
	toast     string
	alert     bool // the toast is about a failure
	toastAt   time.Time
	quitAt    time.Time // Ctrl-C was pressed once
	left      bool      // the user is gone
	pager     *pager
	dialog    *dialog

	boxes       []vmm.Sandbox
	listed      bool
	listErr     string
	chosen      int
	busy        map[string]string // box: what is being done with it
	box         vmm.Sandbox       // the one that is open
	turns       *link.Turns
	unwatch     context.CancelFunc
	up          bool
	down        string
	models      []string
	sessions    []turn.Info
	session     string // id; "": none yet
	starting    bool   // a question is on its way
	stopping    bool   // the user stopped the turn
	queued      []string
	lastAsked   string
	use         map[string]*usage      // of the sandboxes that are looked at
	boxSessions map[string][]turn.Info // of sandboxes in the list

	conv      *conversation.Conversation
	comp      *compose.Composer
	panel     *approve.Panel
	deaf      time.Time // by the panel's clock; until then keys are dropped: they were meant for a panel that went away
	browse    bool
	search    *string // being typed
	query     string
	shells    []*boxShell
	kept      []shells.Info // that live in the sandbox on the screen
	shellAt   int
	nextID    int
	prefix    bool // Ctrl-] was typed in the shell
	keptKnown bool
	zoom      bool // the shell has the whole screen
	files     *files.Tree
	settings  settingsList
	model     string // of the next session; "": the default
	events    *eventLog
	traffic   *eventLog // what crosses the protocols
	wire      bool      // the tab shows that
}

// Messages of the app's own.
type (
	boxesMsg struct {
		list []vmm.Sandbox
		err  error
	}
	refreshMsg struct{}
	sayMsg     string   // for the last line
	trimMsg    struct{} // memory is short: what is in the transcript need not be held
	frameMsg   time.Time
	doneMsg    struct { // something that was asked for has ended
		box, text string
		err       error
	}
	askedMsg struct {
		session turn.Info
		fresh   bool
		text    string
		busy    bool
		err     error
	}
	answeredMsg struct {
		id, text string
		err      error
	}
	olderMsg struct {
		session string
		after   uint64
		events  []turn.Event
		err     error
	}
	sessionsMsg struct {
		list []turn.Info
		err  error
	}
	joinMsg struct { // a session that another window has begun
		box, session string
		list         []turn.Info
	}
	pageMsg struct {
		title, text string
		diff        bool
		err         error
	}
)

// newApp returns the screen before anything is known.
func newApp(ctx context.Context, o Options) *App {
	t := theme.New(true)
	a := &App{o: o, keymap: o.Keys, ctx: ctx, theme: t, clock: time.Now, now: time.Now(), busy: make(map[string]string), use: make(map[string]*usage), boxSessions: make(map[string][]turn.Info),
		conv: conversation.New(t), comp: compose.New(t, commands), panel: approve.New(t), events: newEventLog(), traffic: newEventLog()}
	if a.keymap == nil {
		a.keymap = keymap.Default()
	}
	a.panel.Label = func(action string) string { return a.keymap.Label(keymap.Approval + "." + action) }
	a.conv.Cost = o.Cost
	a.files = files.New(t)
	a.comp.SetHint("ask for something, / for commands")
	a.box.Name = o.Name
	return a
}

// Init starts what the first screen does not wait for.
func (a *App) Init() tea.Cmd {
	return tea.Batch(a.list(), tea.RequestBackgroundColor)
}

// Update takes a message.
func (a *App) Update(m tea.Msg) (tea.Model, tea.Cmd) {
	a.now = a.clock()
	cmd := a.update(m)
	if tick := a.tick(); tick != nil {
		cmd = tea.Batch(cmd, tick)
	}
	return a, cmd
}

func (a *App) update(m tea.Msg) tea.Cmd {
	switch m := m.(type) {
	case tea.WindowSizeMsg:
		a.w, a.h = m.Width, m.Height
		return a.panel.Resized()
	case tea.BackgroundColorMsg:
		a.setTheme(theme.New(m.IsDark()))
	case tea.FocusMsg:
		a.blurred = false
		return a.panel.Disturb()
	case tea.BlurMsg:
		a.blurred = true
		return a.panel.Disturb()
	case tea.KeyPressMsg:
		return a.key(m)
	case tea.PasteMsg:
		return a.paste(m.Content)
	case tea.MouseMsg:
		return a.mouse(m)
	case frameMsg:
		a.ticking = false
		a.frame++

	case trimMsg:
		a.conv.Forget()
	case boxesMsg:
		return a.listedBoxes(m)
	case refreshMsg:
		return a.list()
	case doneMsg:
		delete(a.busy, m.box)
		a.say(m.text, m.err)
		return a.listOnce()

	case link.UpMsg, link.DownMsg, link.EventsMsg, link.RequestsMsg, link.MetricsMsg:
		return a.linked(m)
	case askedMsg:
		return a.asked(m)
	case answeredMsg:
		return a.answered(m)
	case olderMsg:
		if m.session == a.session && m.err == nil {
			a.conv.Prepend(m.after, m.events)
		}
		a.say("", m.err)
	case sessionsMsg:
		a.say("", m.err)
		if m.err == nil {
			a.sessions = m.list
			a.chooseSession()
		}
	case joinMsg:
		a.join(m)
	case pageMsg:
		a.say("", m.err)
		if m.err == nil {
			a.pager = newPager(m.title, m.text, m.diff)
		}

	case approve.TickMsg:
		return a.panel.Tick(m)
	case approve.AnswerMsg:
		return a.answer(m)
	case compose.SendMsg:
		return a.entered(m.Text)
	case compose.FilesMsg:
		return a.completeFiles(m.Prefix)
	case namesMsg:
		a.comp.Files(m.prefix, m.names)

	case shell.StartedMsg, shell.SizedMsg, shell.OutputMsg, shell.EndedMsg:
		return a.shellMsg(m)
	case link.TrafficMsg:
		if m.Box == a.box.Name {
			a.traffic.cross(m.Piece)
		}
	case link.ShellsMsg:
		return a.keptShells(m)
	case files.Msg:
		return a.filesMsg(m)
	case sayMsg:
		a.say(string(m), nil)
	case boxSessionsMsg:
		a.boxSessions[m.box] = m.list
	case settingsMsg:
		a.gotSettings(m)
	case settingsDoneMsg:
		return a.settingsDone(m)
	case loginMsg:
		a.pager = newPager("log in to "+m.name, m.text, false)
	case copiedMsg:
		a.say(m.text, m.err)
		return a.filesRefresh()
	case notifiedMsg:
		a.notifying = false
		a.say("", m.err)
	case editedMsg:
		a.say("", m.err)
		return a.filesRefresh()
	}
	return nil
}

func (a *App) setTheme(t *theme.Theme) {
	a.theme = t
	a.conv.SetTheme(t)
	a.comp.SetTheme(t)
	a.panel.SetTheme(t)
	a.files.SetTheme(t)
}

// frameEvery is how often what moves by itself is drawn.
const frameEvery = 120 * time.Millisecond

// tick keeps the pictures moving as long as something does.
func (a *App) tick() tea.Cmd {
	moving := a.conv.Busy() || a.starting || len(a.busy) > 0 || a.toast != "" && a.now.Sub(a.toastAt) < toastFor
	if a.ticking || !moving {
		return nil
	}
	a.ticking = true
	return tea.Tick(frameEvery, func(t time.Time) tea.Msg { return frameMsg(t) })
}

const toastFor = 6 * time.Second

// toasting tells whether there is a line to show: a failure stays until a key is
// pressed after its time, for whoever was away meanwhile.
func (a *App) toasting() bool {
	return a.toast != "" && (a.alert || a.now.Sub(a.toastAt) < toastFor)
}

// say shows a line for a while.
func (a *App) say(text string, err error) {
	switch {
	case err != nil:
		a.toast, a.alert = foreign.Text(err.Error()), true
	case text != "":
		a.toast, a.alert = foreign.Text(text), false
	default:
		return
	}
	a.toastAt = a.now
}

// linked is what a connection brought.
func (a *App) linked(m tea.Msg) tea.Cmd {
	switch m := m.(type) {
	case link.UpMsg:
		if m.Box != a.box.Name {
			return nil
		}
		a.up, a.down = true, ""
		a.models, a.sessions = m.Status.Models, m.Status.Sessions
		if a.session == "" && len(a.sessions) > 0 {
			a.attach(a.sessions[0])
		} else if a.session != "" {
			a.turns.Follow(a.session, a.conv.Seq())
		} else if a.o.Prompt != "" && a.comp.Empty() && a.conv.Empty() {
			a.comp.Set(a.o.Prompt)
		}
	case link.DownMsg:
		if m.Box != a.box.Name {
			return nil
		}
		a.up, a.down = false, foreign.Text(m.Err.Error())
		return a.panel.Set(nil)
	case link.EventsMsg:
		if m.Box != a.box.Name || m.Session != a.session {
			return nil
		}
		return a.happened(m.Events)
	case link.RequestsMsg:
		if m.Box != a.box.Name {
			return nil
		}
		return a.requested(m.List)
	case link.MetricsMsg:
		a.used(m)
	}
	return nil
}

// happened takes events of the session.
func (a *App) happened(events []turn.Event) tea.Cmd {
	ended := a.conv.Ended
	a.conv.Add(events)
	a.events.add(events)
	if n := len(a.conv.Prompts); n > 0 && a.conv.Prompts[n-1] != a.lastAsked {
		a.lastAsked = a.conv.Prompts[n-1]
		a.comp.Remember(a.conv.Prompts)
	}
	if a.conv.Ended == ended || a.conv.Busy() {
		return nil
	}
	canceled := a.stopping
	a.stopping = false
	for i := range events {
		if events[i].Kind == turn.KindEnd {
			canceled = canceled || events[i].Status == turn.StatusCanceled
		}
	}
	var cmds []tea.Cmd
	if len(events) > 0 && a.now.Sub(events[len(events)-1].Time) < 5*time.Second {
		cmds = append(cmds, a.notify(a.box.Name+": the turn has ended"))
	}
	if len(a.queued) > 0 && !a.starting {
		next := a.queued[0]
		if canceled {
			if a.comp.Empty() {
				a.queued = a.queued[1:]
				a.comp.Set(next)
			}
		} else {
			a.queued = a.queued[1:]
			cmds = append(cmds, a.ask(next))
		}
	}
	return tea.Batch(cmds...)
}

// attach shows a session from its recent events on.
func (a *App) attach(i turn.Info) {
	a.session = i.ID
	a.conv = conversation.New(a.theme)
	a.conv.Cost, a.conv.Model = a.o.Cost, i.Model
	a.events.clear()
	const recent = 2000
	if i.Seq > recent {
		a.conv.Begin(i.Seq - recent)
	}
	a.turns.Follow(i.ID, a.conv.Seq())
}

// open makes a sandbox the one on the screen.
func (a *App) open(sb vmm.Sandbox) tea.Cmd {
	a.closeBox()
	a.box, a.session, a.sessions, a.queued = sb, "", nil, nil
	a.conv = conversation.New(a.theme)
	a.conv.Cost = a.o.Cost
	a.events.clear()
	a.shellAt = 0
	a.files = files.New(a.theme)
	cmd := a.panel.Set(nil)
	a.connect()
	return cmd
}

// connect opens the connections of a sandbox that runs.
func (a *App) connect() {
	if a.turns != nil || a.box.State != store.Running || a.send == nil {
		return
	}
	a.turns = link.Open(a.box.Name, a.box.TurnSocket, a.send)
	ctx, cancel := context.WithCancel(a.ctx)
	a.unwatch = cancel
	box := a.box
	a.work.Go(func() { link.Traffic(ctx, box.Name, box.TrafficSocket, a.send) })
	a.work.Go(func() { link.Shells(ctx, box.Name, box.ShellsSocket, a.send) })
}

// closeBox leaves the sandbox on the screen; nothing in it stops.
func (a *App) closeBox() {
	if a.turns != nil {
		t := a.turns
		a.work.Go(t.Close)
		a.turns = nil
		a.unwatch()
	}
	a.up, a.down = false, ""
	a.kept, a.keptKnown = nil, false
	a.traffic.clear()
	a.files.Close(&a.work)
}

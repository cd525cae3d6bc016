// Package plain is the workstation line by line: for screen readers, for
// terminals that cannot be drawn on, and for those who like it. Every line says
// first who speaks; nothing is drawn over. It asks for approvals as strictly as
// the screen does.
package plain

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	tea "charm.land/bubbletea/v2"

	"msb/protocol/turnrpc"
	"msb/tui/link"
	"msb/turn"
	"msb/turn/approval"
	"msb/turn/socket"
)

// Options configure the line mode.
type Options struct {
	In  io.Reader
	Out io.Writer
	// Width is how many columns a line may have; 0: 80.
	Width       int
	Box, Socket string
	Cost        func(model string, u turnrpc.Usage) string
	// Now is the clock by which an answer can come too early; nil: time.Now.
	Now func() time.Time
}

// mode is the line mode while it runs; its state belongs to one goroutine.
type mode struct {
	o     Options
	p     *printer
	turns *link.Turns
	ctx   context.Context
	work  sync.WaitGroup
	msgs  chan tea.Msg

	up      bool
	down    string
	session string
	seq     uint64
	active  string
	asking  bool
	queued  []string
	models  []string
	ask     *question
	list    []approval.Request
	stopAt  time.Time
}

// line is a line of the user's, and when it came.
type line struct {
	text string
	at   time.Time
}

// maxLine bounds a line that is read, in bytes.
const maxLine = 1 << 20

type (
	askedMsg struct {
		session turn.Info
		fresh   bool
		text    string
		err     error
	}
	saidMsg struct {
		text string
		err  error
	}
)

// Run works until the input ends or the user leaves. Sandboxes and turns go on.
func Run(ctx context.Context, o Options) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if o.Now == nil {
		o.Now = time.Now
	}
	m := &mode{o: o, p: newPrinter(o.Out, o.Width), ctx: ctx, msgs: make(chan tea.Msg)}
	m.p.Cost = o.Cost
	send := func(v tea.Msg) {
		select {
		case m.msgs <- v:
		case <-ctx.Done():
		}
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	lines := make(chan line)
	go read(ctx, o, lines) // ends with the input, which cannot be interrupted

	m.p.say("msb", "sandbox "+o.Box+". Type a question, or /help. An empty line does nothing; at an approval it denies.")
	m.turns = link.Open(o.Box, o.Socket, send)
	err := m.loop(signals, lines)
	cancel()
	m.turns.Close()
	m.work.Wait()
	return err
}

func read(ctx context.Context, o Options, lines chan<- line) {
	defer close(lines)
	s := bufio.NewScanner(o.In)
	s.Buffer(make([]byte, 4096), maxLine)
	for s.Scan() {
		select {
		case lines <- line{s.Text(), o.Now()}:
		case <-ctx.Done():
			return
		}
	}
}

// errLeave ends the loop without a failure.
var errLeave = errors.New("leave")

func (m *mode) loop(signals <-chan os.Signal, lines <-chan line) error {
	for {
		var err error
		select {
		case <-m.ctx.Done():
			return nil
		case s := <-signals:
			if s != syscall.SIGINT {
				return nil
			}
			err = m.interrupt()
		case l, ok := <-lines:
			if !ok {
				return m.p.err
			}
			err = m.line(l)
		case v := <-m.msgs:
			m.got(v)
		}
		if err == errLeave {
			return nil
		}
		if m.p.err != nil {
			return m.p.err
		}
	}
}

// interrupt stops the turn; a second time it leaves.
func (m *mode) interrupt() error {
	if time.Since(m.stopAt) < 3*time.Second || m.active == "" {
		return errLeave
	}
	m.stopAt = time.Now()
	m.p.say("msb", "stopping the turn; once more leaves")
	m.stop()
	return nil
}

func (m *mode) do(f func() tea.Msg) {
	m.work.Go(func() {
		v := f()
		select {
		case m.msgs <- v:
		case <-m.ctx.Done():
		}
	})
}

func (m *mode) stop() {
	session, name := m.session, m.active
	m.do(func() tea.Msg { return saidMsg{err: m.turns.Stop(session, name)} })
}

// got takes what a connection brought.
func (m *mode) got(v tea.Msg) {
	switch v := v.(type) {
	case link.UpMsg:
		m.up = true
		m.models = v.Status.Models
		switch {
		case m.session != "":
			m.turns.Follow(m.session, m.seq)
		case len(v.Status.Sessions) > 0:
			m.attach(v.Status.Sessions[0])
		default:
			m.p.say("msb", "no session yet; your first question opens one")
		}
	case link.DownMsg:
		m.up, m.down = false, v.Err.Error()
		m.p.alert("msb", "the sandbox does not answer: "+m.down)
		m.requests(nil)
	case link.EventsMsg:
		if v.Session == m.session {
			for i := range v.Events {
				m.event(&v.Events[i])
			}
		}
	case link.RequestsMsg:
		m.requests(v.List)
	case askedMsg:
		m.asked(v)
	case saidMsg:
		if v.err != nil {
			m.p.alert("msb", v.err.Error())
		} else if v.text != "" {
			m.p.say("msb", v.text)
		}
	}
}

// recent is how many events of the past are told again.
const recent = 60

func (m *mode) attach(i turn.Info) {
	m.session, m.seq = i.ID, 0
	name := i.Name
	if name == "" {
		name = i.ID[:min(8, len(i.ID))]
	}
	m.p.say("msb", fmt.Sprintf("session %s, %d turns, model %s", name, i.Turns, i.Model))
	if i.Seq > recent {
		m.seq = i.Seq - recent
	}
	m.turns.Follow(i.ID, m.seq)
}

func (m *mode) event(e *turn.Event) {
	if e.Seq <= m.seq {
		return
	}
	m.seq = e.Seq
	switch e.Kind {
	case turn.KindUser:
		m.active = e.Turn
	case turn.KindEnd:
		m.active = ""
	}
	m.p.event(e)
	if e.Kind == turn.KindEnd && len(m.queued) > 0 && !m.asking {
		next := m.queued[0]
		m.queued = m.queued[1:]
		m.question(next)
	}
}

// line takes a line of the user's.
func (m *mode) line(l line) error {
	if m.ask != nil {
		return m.answer(l)
	}
	text := strings.TrimSpace(l.text)
	switch name, args, _ := strings.Cut(text, " "); name {
	case "":
	case "/quit", "/q", "\x1d": // Ctrl-], which leaves the screen
		return errLeave
	case "/help":
		m.p.say("msb", "/stop stops the turn, /new begins a session, /sessions lists them, /session ID opens one, /model NAME chooses a model, /quit leaves. Everything else is a question.")
	case "/stop":
		m.stop()
	case "/new":
		m.session, m.seq = "", 0
		m.turns.Follow("", 0)
		m.p.say("msb", "a new session begins with your next question")
	case "/sessions":
		m.do(func() tea.Msg {
			list, err := m.turns.Sessions()
			var b strings.Builder
			for _, i := range list {
				fmt.Fprintf(&b, "%s %s, %s, %d turns: %s\n", i.ID[:min(8, len(i.ID))], i.Name, i.State, i.Turns, i.Title)
			}
			return saidMsg{strings.TrimSpace(b.String()), err}
		})
	case "/session":
		m.do(func() tea.Msg {
			i, err := m.turns.Resume(strings.TrimSpace(args), "")
			if err == nil {
				return askedMsg{session: i, fresh: true}
			}
			return saidMsg{err: err}
		})
	case "/model":
		if args == "" || m.session == "" {
			m.p.say("msb", "models: "+strings.Join(m.models, ", "))
			return nil
		}
		session := m.session
		m.do(func() tea.Msg { return saidMsg{"model " + args, m.turns.SetModel(session, strings.TrimSpace(args))} })
	default:
		if strings.HasPrefix(name, "/") && !strings.Contains(name[1:], "/") {
			m.p.alert("msb", "there is no command "+name+"; /help lists them")
			return nil
		}
		if m.active != "" || m.asking {
			m.queued = append(m.queued, text)
			m.p.say("msb", "queued until the turn has ended")
			return nil
		}
		m.question(text)
	}
	return nil
}

func (m *mode) question(text string) {
	if !m.up {
		m.p.alert("msb", "not asked: the sandbox does not answer: "+m.down)
		return
	}
	m.asking = true
	session := m.session
	m.do(func() tea.Msg {
		v := askedMsg{text: text}
		if session == "" {
			if v.session, v.err = m.turns.Resume("", ""); v.err != nil {
				return v
			}
			session, v.fresh = v.session.ID, true
		}
		var s socket.Started
		s, v.err = m.turns.Ask(session, text)
		if errors.Is(v.err, turn.ErrSessionClosed) {
			if _, v.err = m.turns.Resume(session, ""); v.err == nil {
				s, v.err = m.turns.Ask(session, text)
			}
		}
		_ = s
		return v
	})
}

func (m *mode) asked(v askedMsg) {
	m.asking = false
	if v.fresh && v.session.ID != "" {
		m.attach(v.session)
	}
	switch {
	case errors.Is(v.err, turn.ErrTurnActive):
		m.queued = append([]string{v.text}, m.queued...)
		m.p.say("msb", "queued until the turn has ended")
	case v.err != nil:
		m.p.alert("msb", "not asked: "+v.err.Error())
	}
}

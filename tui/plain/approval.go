package plain

import (
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"msb/tui/approve"
	"msb/turn/approval"
)

// question is the request that is being asked about. Whoever allows it types a
// word that was printed behind the end of what would run: a line that was typed
// for something else cannot hold it.
type question struct {
	request approval.Request
	subject approve.Subject
	word    string
	asked   time.Time // when the last line of it was printed, or a line came too early
	sent    bool
}

// letters are those that are not mistaken for others.
const letters = "abcdefhkmnprstuvwxyz"

// newWord is a fresh word of five letters.
func newWord() string {
	var b [5]byte
	rand.Read(b[:])
	for i := range b {
		b[i] = letters[int(b[i])%len(letters)]
	}
	return string(b[:])
}

// requests takes the requests that wait now.
func (m *mode) requests(list []approval.Request) {
	m.list = list
	if m.ask != nil {
		for _, r := range list {
			if r.ID == m.ask.request.ID {
				return
			}
		}
		if !m.ask.sent {
			m.p.say("approval", "this request is closed: it was answered elsewhere, or its turn has ended")
		}
		m.ask = nil
	}
	if len(list) > 0 {
		m.show(list[0], len(list))
	}
}

// show asks about a request.
func (m *mode) show(r approval.Request, n int) {
	q := &question{request: r, subject: approve.SubjectOf(r), word: newWord()}
	m.ask = q
	s, p := q.subject, m.p
	count := ""
	if n > 1 {
		count = fmt.Sprintf(" 1 of %d", n)
	}
	p.bell()
	p.say("approval"+count, "the model wants: "+s.Headline)
	for _, w := range s.Warnings {
		p.alert("warning", "it holds "+w)
	}
	if s.Body.Quoted {
		p.alert("warning", `what follows is shown with escapes; \\ is one backslash`)
	}
	for _, f := range s.Before {
		p.block(f.Name, f.Value.String())
	}
	what := "command"
	if r.Kind == approval.KindMCP {
		what = "arguments"
	}
	p.say(what, fmt.Sprintf("%s, %d bytes:", lines(s.Body.Lines), s.Body.Bytes))
	p.body(s.Body.String())
	p.say(what, "ends here")
	if s.Reason != "" {
		p.say("why, in the model's words", s.Reason)
	}
	m.prompt()
}

func lines(n int) string {
	if n == 1 {
		return "1 line"
	}
	return fmt.Sprintf("%d lines", n)
}

// prompt says how to answer; from here on lines count after a while.
func (m *mode) prompt() {
	q := m.ask
	m.p.say("answer", fmt.Sprintf("an empty line or \"deny\" denies; \"deny WHY\" tells the model why; \"allow %s\" allows it once; \"session %s\" allows, and remembers for this session: %s",
		q.word, q.word, q.subject.Matches))
	q.asked = m.o.Now()
}

// answer takes a line while a request is asked about.
func (m *mode) answer(l line) error {
	q := m.ask
	if q.sent {
		return nil
	}
	if l.at.Sub(q.asked) < approve.Quiet {
		q.asked = m.o.Now()
		m.p.say("answer", "that line came too early and was ignored; please answer now")
		return nil
	}
	verb, rest, _ := strings.Cut(strings.TrimSpace(l.text), " ")
	rest = strings.TrimSpace(rest)
	switch strings.ToLower(verb) {
	case "", "deny", "n", "no":
		m.decide(approval.Answer{Reason: rest})
	case "allow", "session":
		if rest != q.word {
			q.word = newWord()
			m.p.alert("answer", "that is not the word; nothing was allowed")
			m.prompt()
			return nil
		}
		scope := approval.ScopeOnce
		if strings.ToLower(verb) == "session" {
			scope = approval.ScopeSession
		}
		m.decide(approval.Answer{Allow: true, Scope: scope})
	case "/quit":
		return errLeave
	case "/stop":
		m.stop()
	case "show":
		m.show(q.request, len(m.list))
	default:
		m.p.alert("answer", "that is no answer; nothing was decided")
		m.prompt()
	}
	return nil
}

// decide sends the answer to the one request it is for.
func (m *mode) decide(a approval.Answer) {
	q := m.ask
	q.sent = true
	a.By = "plain"
	said := "denied"
	if a.Allow {
		said = "allowed " + a.Scope
	}
	m.do(func() tea.Msg {
		err := m.turns.Answer(q.request.ID, a)
		if errors.Is(err, approval.ErrAnswered) || errors.Is(err, approval.ErrUnknownRequest) {
			err = errors.New("too late: it was answered elsewhere, or its turn has ended")
		}
		return saidMsg{said, err}
	})
}

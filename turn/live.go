package turn

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"msb/protocol/turnrpc"
)

// OpenTimeout bounds the start of a guest and its hello.
const OpenTimeout = 45 * time.Second

// live is a session with a guest.
type live struct {
	e      *Engine
	id     string
	ready  chan struct{} // closed when open has ended
	failed error         // of open; valid after ready

	lock       *os.File
	transcript *Transcript
	unuse      func() // of the transcript
	session    *Session

	mu      sync.Mutex
	record  Record
	state   string
	turn    string
	cancel  context.CancelFunc // of the turn
	turns   sync.WaitGroup
	closing bool // by us
	gone    chan struct{}
}

// open takes the lock, starts the guest and greets it.
func (l *live) open(ctx context.Context, m turnrpc.GuestModel) error {
	ctx, cancel := context.WithTimeoutCause(ctx, OpenTimeout, fmt.Errorf("the guest did not start in %v", OpenTimeout))
	defer cancel()
	defer context.AfterFunc(l.e.ctx, cancel)()
	r := l.record
	lock, err := l.e.o.Store.Lock(r.ID)
	if err != nil {
		return err
	}
	l.lock = lock
	if l.transcript, l.unuse, err = l.e.transcript(r.ID); err != nil {
		return err
	}
	if err := l.heal(); err != nil {
		return err
	}
	config := turnrpc.GuestConfig{SessionID: r.ID, Capability: newCapability(), RepoDir: turnrpc.DefaultRepoDir, Model: m}
	o := Options{
		ID: r.ID, Capability: config.Capability, Model: m, Gate: l.e.o.Gate,
		Provider: l.e.o.Provider, CommandUser: l.e.o.CommandUser, Log: l.e.log,
	}
	greet, status := Open, StatusOpened
	if r.Protocol != 0 {
		greet, status = Resume, StatusResumed
		o.Recorded = Recorded{Protocol: r.Protocol}
		if l.e.o.PinImage {
			o.Recorded.ImageID = r.ImageID
		}
	}
	if l.e.o.MCP != nil {
		if o.MCP, err = l.e.o.MCP(); err != nil {
			return err
		}
	}
	rwc, err := l.e.o.Dial(ctx, config)
	if err == nil {
		l.session, err = greet(ctx, rwc, o)
	}
	if err != nil {
		if o.MCP != nil {
			o.MCP.Close()
		}
		if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.DeadlineExceeded) {
			err = cause
		}
		return fmt.Errorf("start the turn agent of session %s: %w", r.ID[:8], err)
	}
	r.Protocol, r.ImageID, r.Model = l.session.Capabilities().Protocol, clip(l.session.ImageID(), 256), m.Name
	if err := l.save(r); err != nil {
		l.session.Close()
		return err
	}
	l.mu.Lock()
	l.state, l.gone = StateIdle, make(chan struct{})
	l.mu.Unlock()
	if err := l.append(Event{AgentEvent: turnrpc.AgentEvent{Kind: KindSession, Status: status, Text: m.Name}}, true); err != nil {
		l.session.Close()
		return err
	}
	return nil
}

// heal ends a turn that an earlier process left open.
func (l *live) heal() error {
	last := l.transcript.Last()
	if last.Turn == "" || last.Kind == KindEnd {
		return nil
	}
	return l.append(Event{Turn: last.Turn, Code: CodeLost, AgentEvent: turnrpc.AgentEvent{
		Kind: KindEnd, Status: StatusLost, Err: "msb ended during the turn",
	}}, true)
}

// watch waits for the end of the guest and cleans up after it.
func (l *live) watch() {
	defer l.e.work.Done()
	<-l.session.Done()
	e := Event{AgentEvent: turnrpc.AgentEvent{Kind: KindSession, Status: StatusClosed}}
	l.mu.Lock()
	l.state = StateClosed // no new turn
	if !l.closing {
		e.Status, e.Err = StatusLost, l.session.Err().Error()
	}
	l.mu.Unlock()
	l.turns.Wait() // it has noticed
	l.session.Close()
	if err := l.append(e, true); err != nil {
		l.e.log.Warn("session ended", "session", l.id, "err", err)
	}
	l.release()
	close(l.gone)
}

// release gives back what open took.
func (l *live) release() {
	l.e.mu.Lock()
	if l.e.live[l.id] == l {
		delete(l.e.live, l.id)
	}
	l.e.mu.Unlock()
	l.mu.Lock()
	l.state = StateClosed
	l.mu.Unlock()
	if l.unuse != nil {
		l.unuse()
	}
	if l.lock != nil {
		l.lock.Close()
	}
}

// close ends the turn and the guest, and waits for both.
func (l *live) close() error {
	if l.failed != nil {
		return nil
	}
	l.mu.Lock()
	l.closing = true
	if l.cancel != nil {
		l.cancel()
	}
	l.mu.Unlock()
	l.turns.Wait()
	err := l.session.Close()
	<-l.gone
	return err
}

func (l *live) info() Info {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := Info{Record: l.record, State: l.state, Turn: l.turn}
	if l.transcript != nil {
		i.Seq, i.Bytes = l.transcript.Seq(), l.transcript.Size()
	}
	if l.session != nil {
		i.Capabilities = l.session.Capabilities()
	}
	return i
}

// save replaces the record, on disk first.
func (l *live) save(r Record) error {
	if err := l.e.o.Store.Save(r); err != nil {
		return err
	}
	l.mu.Lock()
	l.record = r
	l.mu.Unlock()
	return nil
}

func (l *live) rename(name string) (Info, error) {
	l.mu.Lock()
	r, err := l.e.o.Store.Rename(l.id, name)
	if err == nil {
		l.record.Name = r.Name
	}
	l.mu.Unlock()
	return l.info(), err
}

func (l *live) setModel(ctx context.Context, m turnrpc.GuestModel) error {
	if err := l.session.SetModel(ctx, m); err != nil {
		return err
	}
	l.mu.Lock()
	l.record.Model = m.Name
	err := l.e.o.Store.Save(l.record)
	l.mu.Unlock()
	return errors.Join(err, l.append(Event{AgentEvent: turnrpc.AgentEvent{Kind: KindModel, Text: m.Name}}, true))
}

func (l *live) append(e Event, durable bool) error {
	_, err := l.transcript.Append(e, durable)
	return err
}

// startTurn notes the question and starts the turn in the background.
func (l *live) startTurn(text string, o TurnOptions) (name string, from uint64, err error) {
	if strings.TrimSpace(text) == "" {
		return "", 0, errors.New("the prompt is empty")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.state == StateTurn:
		return "", 0, fmt.Errorf("session %s: %w", l.id[:8], ErrTurnActive)
	case l.state != StateIdle || l.closing:
		return "", 0, fmt.Errorf("session %s: %w", l.id[:8], ErrSessionClosed)
	}
	r := l.record
	r.Turns++
	r.Used = time.Now().UTC()
	if r.Title == "" {
		r.Title = title(text)
	}
	if err := l.e.o.Store.Save(r); err != nil {
		return "", 0, err
	}
	l.record = r
	name = strconv.Itoa(r.Turns)
	from = l.transcript.Seq()
	if err := l.append(Event{Turn: name, AgentEvent: turnrpc.AgentEvent{Kind: KindUser, Text: text}}, true); err != nil {
		return "", 0, err
	}
	ctx, cancel := context.WithCancel(l.e.ctx)
	l.state, l.turn, l.cancel = StateTurn, name, cancel
	o.Label = name
	l.turns.Go(func() {
		defer cancel()
		l.run(ctx, cancel, name, text, o)
	})
	return name, from, nil
}

// run runs a turn and always ends it with an event.
func (l *live) run(ctx context.Context, cancel func(), name, text string, o TurnOptions) {
	var full error // the transcript took no more
	result, err := func() (r TurnResult, err error) {
		defer func() {
			if p := recover(); p != nil {
				l.e.log.Error("panic in a turn", "session", l.id, "panic", p, "stack", string(debug.Stack()))
				err = errors.New("internal error")
			}
		}()
		if before := l.e.o.BeforeTurn; before != nil {
			i := l.info()
			i.Title = title(text) // of this turn, not of the session's first
			if err := before(ctx, i); err != nil {
				return TurnResult{Canceled: ctx.Err() != nil}, err
			}
		}
		return l.session.Turn(ctx, text, o, func(e Event) {
			if full != nil {
				return
			}
			e.Turn = name
			if full = l.append(e, false); full != nil {
				cancel() // nobody would see what it does
			}
		})
	}()
	if full != nil {
		err, result.Canceled = full, false // nobody wanted it
	}
	end := endEvent(name, result, err)
	l.mu.Lock() // who sees the end can start the next turn
	err = l.append(end, true)
	if l.state == StateTurn {
		l.state = StateIdle
	}
	l.turn, l.cancel = "", nil
	l.mu.Unlock()
	if err != nil {
		// Nobody can be told in the transcript; those who read it are told here.
		l.e.log.Error("transcript cannot be written", "session", l.id, "err", err)
		l.transcript.CloseWith(err)
		l.session.conn.Close()
	}
}

// endEvent is the last event of a turn.
func endEvent(name string, r TurnResult, err error) Event {
	e := Event{Turn: name, AgentEvent: turnrpc.AgentEvent{
		Kind: KindEnd, Status: turnrpc.StatusOK, Usage: r.Usage, StopReason: r.StopReason,
	}}
	if err == nil {
		return e
	}
	e.Status, e.Code, e.Err = turnrpc.StatusError, turnrpc.CodeHost, err.Error()
	var failed *turnrpc.Error
	var lost *turnrpc.LostError
	switch {
	case errors.As(err, &lost):
		e.Status, e.Code = StatusLost, CodeLost
	case errors.As(err, &failed):
		e.Code, e.Err = clip(failed.Code, 64), failed.Message
	}
	switch {
	case r.TimedOut:
		e.Status = StatusTimedOut
	case r.Canceled:
		e.Status = StatusCanceled
	}
	return e
}

func (l *live) cancelTurn(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cancel != nil && (name == "" || name == l.turn) {
		l.cancel()
	}
}

// title is the start of a prompt on one line.
func title(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) || !unicode.IsGraphic(r) {
			return ' '
		}
		return r
	}, text)
	text = strings.Join(strings.Fields(text), " ")
	if r := []rune(text); len(r) > 60 {
		return string(r[:59]) + "…"
	}
	return text
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"msb/cmd/msb/question"
	"msb/turn/approval"
	"msb/turn/socket"
	"msb/turn/visible"
)

// asker asks the person at the terminal about what waits for approval. A nil asker asks nobody.
type asker struct {
	app   *app
	c     *socket.Client
	lines *lineInput
	watch *socket.Approvals
	all   bool // requests of every session
	end   context.CancelFunc
	work  sync.WaitGroup

	ended chan struct{} // closed when nothing is asked any more

	screen sync.Mutex // held while a question is on the screen

	mu            sync.Mutex
	session, turn string
	changed       chan struct{} // closed when session or list changes
	list          []approval.Request
	failed        error
}

// askWhile makes an asker for a turn that is about to start, if the policy leaves anything to people and there is a
// terminal.
func (a *app) askWhile(ctx context.Context, c *socket.Client, p *approval.Policy) (*asker, error) {
	if p != nil && !p.Ask || !a.io.InTTY() || !a.io.ErrTTY() {
		return nil, nil
	}
	return a.newAsker(ctx, c, false)
}

func (a *app) newAsker(ctx context.Context, c *socket.Client, all bool) (*asker, error) {
	lines, err := a.lines()
	if err != nil {
		return nil, err
	}
	watch, err := c.Approvals(ctx, true)
	if err != nil {
		lines.close()
		return nil, err
	}
	s := &asker{app: a, c: c, lines: lines, watch: watch, all: all, changed: make(chan struct{}), ended: make(chan struct{})}
	ctx, s.end = context.WithCancel(context.WithoutCancel(ctx))
	s.work.Go(func() { s.observe(ctx) })
	s.work.Go(func() {
		defer close(s.ended)
		s.run(ctx)
	})
	return s, nil
}

// over is closed when the asker asks no more: the terminal ended, or the engine went away.
func (s *asker) over() <-chan struct{} { return s.ended }

// begin says which turn's requests to ask about.
func (s *asker) begin(session, turn string) {
	if s != nil {
		s.update(func() { s.session, s.turn = session, turn })
	}
}

// around prints something when no question is on the screen.
func (s *asker) around(print func()) {
	if s != nil {
		s.screen.Lock()
		defer s.screen.Unlock()
	}
	print()
}

// stop ends the asker; what still waits is for others, or denied.
func (s *asker) stop() {
	if s != nil {
		s.end()
		s.watch.Close()
		s.work.Wait()
		s.lines.close()
	}
}

func (s *asker) update(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.changed)
	s.changed = make(chan struct{})
}

// observe keeps the list of what waits.
func (s *asker) observe(ctx context.Context) {
	for {
		list, err := s.watch.Next(ctx)
		s.update(func() { s.list, s.failed = list, err })
		if err != nil {
			return
		}
	}
}

// now returns what is to be asked about.
func (s *asker) now() (mine []approval.Request, changed <-chan struct{}, failed error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.list {
		if s.all || s.session != "" && r.Session == s.session && r.Turn == s.turn {
			mine = append(mine, r)
		}
	}
	return mine, s.changed, s.failed
}

// run asks one question after the other.
func (s *asker) run(ctx context.Context) {
	for {
		mine, changed, failed := s.now()
		if failed != nil {
			return
		}
		if len(mine) == 0 {
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				return
			}
		}
		s.screen.Lock()
		err := s.ask(ctx, mine[0], len(mine))
		s.screen.Unlock()
		if ctx.Err() != nil || errors.Is(err, io.EOF) {
			return // what waits is denied when the watch ends
		}
		if err != nil {
			s.say("msb: %s", visible.Text(err.Error()))
		}
		s.update(func() { // until the watch says so itself
			for i, r := range s.list {
				if r.ID == mine[0].ID {
					s.list = append(s.list[:i:i], s.list[i+1:]...)
					break
				}
			}
		})
	}
}

func (s *asker) say(format string, args ...any) { fmt.Fprintf(s.app.io.Err, format+"\n", args...) }

// errElsewhere ends a question that someone else has answered, or whose turn has ended.
var errElsewhere = errors.New("it is no longer waiting")

// ask shows one request and sends the answer. Only an explicit yes allows; the choice appears when all of the request
// has been shown.
func (s *asker) ask(whole context.Context, r approval.Request, waiting int) error {
	ctx, cancel := context.WithCancelCause(whole)
	defer cancel(nil)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel(nil)
	watching.Go(func() { s.until(ctx, r.ID, cancel) })

	s.say("")
	s.say(" APPROVAL%s  asked %s ago", others(waiting), time.Since(r.Asked).Round(time.Second))
	a, err := s.question(ctx, r)
	if errors.Is(context.Cause(ctx), errElsewhere) {
		s.say("\n  %s", errElsewhere)
		return nil
	}
	if err != nil {
		return err
	}
	a.By = "terminal"
	err = s.c.Answer(whole, r.ID, a)
	switch {
	case errors.Is(err, approval.ErrAnswered), errors.Is(err, approval.ErrUnknownRequest):
		s.say("  %s", err)
		return nil
	case err == nil && a.Allow:
		s.say("  allowed")
	case err == nil:
		s.say("  denied")
	}
	return err
}

func others(waiting int) string {
	if waiting > 1 {
		return fmt.Sprintf(" (%d more wait)", waiting-1)
	}
	return ""
}

// until ends a question when its request is gone from the list.
func (s *asker) until(ctx context.Context, id string, end context.CancelCauseFunc) {
	for {
		s.mu.Lock()
		there, changed, failed := false, s.changed, s.failed
		for _, r := range s.list {
			there = there || r.ID == id
		}
		s.mu.Unlock()
		if failed != nil || !there {
			end(errElsewhere)
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// prompt shows the last line of what is asked and waits for an answer. What was typed until now is none: what it would be
// an answer to was not yet on the screen.
func (s *asker) prompt(ctx context.Context, format string, args ...any) (string, error) {
	from := s.lines.forget()
	fmt.Fprintf(s.app.io.Err, format, args...)
	return s.lines.next(ctx, from)
}

// question shows the request, page by page, and returns the answer.
func (s *asker) question(ctx context.Context, r approval.Request) (approval.Answer, error) {
	deny := approval.Answer{}
	lines := question.Lines(r, s.app.io.Width())
	if r.Matches != "" {
		lines = append(lines, question.Say("s and w remember a yes to: "+r.Matches, s.app.io.Width())...)
	}
	rows, _ := s.app.io.Size()
	page := max(int(rows)-6, 8)
	for len(lines) > page {
		for _, l := range lines[:page] {
			s.say("%s", l)
		}
		lines = lines[page:]
		text, err := s.prompt(ctx, "  %d lines more: Enter shows them, n denies > ", len(lines))
		if err != nil {
			return deny, err
		}
		if strings.TrimSpace(text) != "" {
			return deny, nil
		}
	}
	for _, l := range lines {
		s.say("%s", l)
	}
	text, err := s.prompt(ctx, "  Enter or n: deny   r: deny with a reason   y: allow once   s: for this session   w: always in this workspace > ")
	if err != nil {
		return deny, err
	}
	switch strings.ToLower(strings.TrimSpace(text)) {
	case "y", "yes":
		return approval.Answer{Allow: true, Scope: approval.ScopeOnce}, nil
	case "s":
		return approval.Answer{Allow: true, Scope: approval.ScopeSession}, nil
	case "w":
		return approval.Answer{Allow: true, Scope: approval.ScopeWorkspace}, nil
	case "r":
		reason, err := s.prompt(ctx, "  reason, for the model > ")
		deny.Reason = strings.TrimSpace(reason)
		return deny, err
	}
	return deny, nil
}

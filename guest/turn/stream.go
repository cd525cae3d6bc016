package turn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"msb/protocol/turnrpc"
)

// Bounds of a model's answer and the wait for it.
const (
	maxAnswerText  = 1 << 20
	maxAnswerArgs  = 2 << 20 // of all calls together
	maxAnswerCalls = 64
	silence        = 6 * time.Minute // the host has its own, smaller limit
	brokerPatience = 60 * time.Second
	cancelPatience = 5 * time.Second
)

// stream is a model's answer as it comes. The read loop adds to it without ever waiting; text that is not taken yet is
// joined, and more than an answer may hold ends it, so it cannot grow without bound.
type stream struct {
	mu     sync.Mutex
	wake   chan struct{} // has one token when there is something to take
	text   []byte        // not taken yet
	total  int           // bytes of text so far
	args   int
	events int
	calls  []toolCall
	usage  turnrpc.Usage
	stop   string
	done   bool
	byHost bool // the host said that it is over
	err    error
}

// toolCall is a call of a tool as the model made it.
type toolCall struct{ id, name, args string }

func newStream() *stream { return &stream{wake: make(chan struct{}, 1)} }

// push takes an event.
func (s *stream) push(e *turnrpc.ProviderEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done {
		return
	}
	if s.events++; s.events > turnrpc.MaxProviderEvents {
		s.fail(errors.New("the model's answer has too many pieces"))
	}
	switch e.Type {
	case turnrpc.ProviderText:
		if s.total += len(e.Text); s.total > maxAnswerText {
			s.fail(fmt.Errorf("the model's answer is longer than %d bytes", maxAnswerText))
			break
		}
		s.text = append(s.text, e.Text...)
	case turnrpc.ProviderTool:
		s.args += len(e.ToolArgs) + len(e.ToolName) + len(e.ToolID)
		if len(s.calls) == maxAnswerCalls || s.args > maxAnswerArgs {
			s.fail(errors.New("the model calls too many tools at once"))
			break
		}
		s.calls = append(s.calls, toolCall{id: e.ToolID, name: e.ToolName, args: e.ToolArgs})
	case turnrpc.ProviderDone:
		s.done, s.byHost = true, true
	case turnrpc.ProviderError:
		s.byHost = true
		message := e.Err
		if message == "" {
			message = "the model's stream failed"
		}
		s.fail(errors.New(clip(message, 4096)))
	}
	// Usage and stop reason may come with any event; usage is of the whole answer, and the last word counts.
	if e.Usage != nil {
		s.usage = *e.Usage
	}
	if e.StopReason != "" {
		s.stop = clip(e.StopReason, 64)
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *stream) fail(err error) {
	if !s.done {
		s.done, s.err = true, err
	}
}

// take returns the text that came since the last time, and whether the answer has ended.
func (s *stream) take() (text string, done bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text = string(s.text)
	s.text = s.text[:0]
	return text, s.done, s.err
}

// providerEvent takes a notification from the read loop.
func (a *agent) providerEvent(f *turnrpc.Frame) {
	var e turnrpc.ProviderEvent
	if err := f.DecodeParams(&e); err != nil {
		a.log.Error("the host sent a broken provider event", "err", err)
		return
	}
	a.mu.Lock()
	s := a.streams[e.StreamID]
	a.mu.Unlock()
	if s != nil {
		s.push(&e)
	}
}

// answer is a model's whole answer.
type answer struct {
	text  string
	calls []toolCall
	usage turnrpc.Usage
	stop  string
}

// ask sends a request to the model and returns its answer. build makes the request for a model and its window, in tokens
// and 0 if the host does not say; emit gets text as it comes. An answer that ends without the host's word that it is whole
// is an error; what came of the text is returned with it.
func (a *agent) ask(ctx context.Context, rich bool, build func(model string, window int) turnrpc.ProviderRequest, emit func(text string) error) (answer, error) {
	a.mu.Lock()
	model := a.model.Name
	a.mu.Unlock()
	opened, err := a.openStream(ctx, model, rich)
	if err != nil {
		return answer{}, err
	}
	id := opened.StreamID
	body, err := json.Marshal(build(model, opened.InputTokens))
	if err == nil && len(body) > turnrpc.MaxProviderRequest {
		err = fmt.Errorf("provider request too large: %d bytes", len(body))
	}
	if err != nil {
		a.cancelStream(id)
		return answer{}, err
	}
	s := newStream()
	a.mu.Lock()
	a.streams[id] = s
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		delete(a.streams, id)
		a.mu.Unlock()
	}()
	if err := a.sendRequest(ctx, id, body); err != nil {
		a.cancelStream(id)
		return answer{}, err
	}
	var got answer
	err = a.follow(ctx, s, &got, emit)
	if err != nil && !s.ended() {
		a.cancelStream(id)
	}
	s.mu.Lock()
	got.calls, got.usage, got.stop = s.calls, s.usage, s.stop
	s.mu.Unlock()
	return got, err
}

// ended tells whether the host has ended the stream, so that there is nothing to cancel.
func (s *stream) ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byHost
}

// follow hands text on until the answer has ended.
func (a *agent) follow(ctx context.Context, s *stream, got *answer, emit func(text string) error) error {
	idle := time.NewTimer(silence)
	defer idle.Stop()
	for {
		select {
		case <-s.wake:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-a.conn.Done():
			return a.conn.Err()
		case <-idle.C:
			return fmt.Errorf("the model sent nothing for %v", silence)
		}
		text, done, err := s.take()
		if text != "" {
			got.text += text
			if err := emit(text); err != nil {
				return err
			}
		}
		if done {
			return err
		}
		idle.Reset(silence)
	}
}

func (a *agent) nextCall() string { return turnrpc.GuestCallID(a.calls.Add(1)) }

// openStream opens a stream. One that is opened after the wait for it was given up is cancelled, so that the host's
// place for it becomes free.
func (a *agent) openStream(ctx context.Context, model string, rich bool) (turnrpc.ProviderOpened, error) {
	var r turnrpc.ProviderOpened
	wait, cancel := context.WithTimeout(ctx, brokerPatience)
	defer cancel()
	p, err := a.conn.Start(wait, a.nextCall(), turnrpc.MethodProviderOpen, turnrpc.ProviderOpen{Model: model, Rich: rich})
	if err != nil {
		return r, err
	}
	select {
	case f := <-p.Answered():
		if err := f.Decode(turnrpc.MethodProviderOpen, &r); err != nil {
			return r, fmt.Errorf("model %q: %w", model, err)
		}
		return r, nil
	case <-a.conn.Done():
		p.Drop()
		return r, a.conn.Err()
	case <-wait.Done():
	}
	a.work.Go(func() {
		defer p.Drop()
		late := time.NewTimer(cancelPatience)
		defer late.Stop()
		var r turnrpc.ProviderOpened
		select {
		case f := <-p.Answered():
			if f.Decode(turnrpc.MethodProviderOpen, &r) == nil {
				a.cancelStream(r.StreamID)
			}
		case <-late.C:
		case <-a.conn.Done():
		}
	})
	if ctx.Err() != nil {
		return r, context.Cause(ctx)
	}
	return r, fmt.Errorf("model %q: the host did not answer in %v", model, brokerPatience)
}

// sendRequest sends the request in pieces.
func (a *agent) sendRequest(ctx context.Context, stream string, body []byte) error {
	for first := true; first || len(body) > 0; first = false {
		n := min(len(body), turnrpc.MaxProviderChunk)
		piece := turnrpc.ProviderSend{StreamID: stream, Data: body[:n], Last: n == len(body)}
		body = body[n:]
		wait, cancel := context.WithTimeout(ctx, brokerPatience)
		err := a.conn.Call(wait, a.nextCall(), turnrpc.MethodProviderSend, piece, nil)
		cancel()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// cancelStream tells the host, without the turn's context, which is over by then.
func (a *agent) cancelStream(id string) {
	a.tellCancel(turnrpc.MethodProviderCancel, turnrpc.ProviderCancel{StreamID: id})
}

// tellCancel sends one of the cancel calls. Nobody waits for the answer: the host wants to hear of the turn's end soon.
func (a *agent) tellCancel(method string, params any) {
	ctx, cancel := context.WithTimeout(a.ctx, cancelPatience)
	p, err := a.conn.Start(ctx, a.nextCall(), method, params)
	if err != nil {
		cancel()
		return
	}
	a.work.Go(func() {
		defer cancel()
		_ = p.Wait(ctx, nil)
	})
}

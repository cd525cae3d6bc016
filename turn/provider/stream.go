package provider

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"msb/protocol/turnrpc"
	"msb/turn/config"
	"msb/turn/creds"
)

// stream is one request of a guest and its answer.
type stream struct {
	b      *Broker
	id     string
	model  config.Model
	rich   bool
	ctx    context.Context
	cancel context.CancelCauseFunc
	idle   *time.Timer // while the request comes in

	mu      sync.Mutex
	data    []byte
	started bool

	events int // of run alone
}

var errStarted = errors.New("provider stream already started")

// receive adds a piece of the request and returns the whole when it was the
// last one.
func (s *stream) receive(data []byte, last bool) (req turnrpc.ProviderRequest, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.started:
		return req, errStarted
	case len(data) > turnrpc.MaxProviderChunk:
		return req, errors.New("provider chunk too large")
	case len(s.data)+len(data) > turnrpc.MaxProviderRequest:
		return req, errors.New("provider request too large")
	}
	s.data = append(s.data, data...)
	s.idle.Reset(IdleTimeout)
	if !last {
		return req, nil
	}
	s.idle.Stop()
	s.started = true
	defer func() { s.data = nil }()
	if err := json.Unmarshal(s.data, &req); err != nil {
		return req, errors.New("provider request is not valid JSON")
	}
	return req, checkRequest(req)
}

func checkRequest(req turnrpc.ProviderRequest) error {
	if n := len(req.Messages); n > turnrpc.MaxProviderMessages {
		return fmt.Errorf("too many provider messages: %d, allowed are %d", n, turnrpc.MaxProviderMessages)
	}
	if n := len(req.Tools); n > turnrpc.MaxProviderTools {
		return fmt.Errorf("too many provider tools: %d, allowed are %d", n, turnrpc.MaxProviderTools)
	}
	for _, m := range req.Messages {
		if len(m.ToolArgs) > turnrpc.MaxToolArgs {
			return fail(classArgs)
		}
	}
	return nil
}

// run asks the model and ends with one event of type done or error, unless the
// stream was dropped.
func (s *stream) run(req turnrpc.ProviderRequest, secret creds.Secret) {
	err := s.contained(req, secret)
	if err != nil && s.alive() {
		// Whatever the guest does with it, the answer is over.
		_ = s.b.emit(turnrpc.ProviderEvent{StreamID: s.id, Type: turnrpc.ProviderError, Err: s.tell(err, secret)})
	}
	s.b.drop(s, nil)
}

// alive tells whether the guest still wants to hear of the stream.
func (s *stream) alive() bool {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	return s.b.streams[s.id] == s
}

// tell is the text of an error for the guest; the log gets all of it.
func (s *stream) tell(err error, secret creds.Secret) string {
	var f *Failure
	if errors.As(err, &f) {
		s.b.log.Warn("model request failed", "model", s.model.Name, "stream", s.id, "err", f.Explain())
		return f.Error()
	}
	s.b.log.Warn("model request failed", "model", s.model.Name, "stream", s.id, "err", secret.Redact(err.Error()))
	return "the request to the model failed on the host"
}

// contained runs the request; a panic ends this stream and nothing else.
func (s *stream) contained(req turnrpc.ProviderRequest, secret creds.Secret) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.b.log.Error("panic in a model request", "model", s.model.Name, "panic", secret.Redact(fmt.Sprint(p)), "stack", string(debug.Stack()))
			err = errors.New("panic")
		}
	}()
	r := request{model: s.model, secret: secret, rich: s.rich, transport: s.b.transport, log: s.b.log, pace: s.b.o.Pace}
	return r.do(s.ctx, req, s.event)
}

// event sends one event of the answer, within the caps.
func (s *stream) event(e turnrpc.ProviderEvent) error {
	if err := context.Cause(s.ctx); err != nil {
		return err
	}
	if s.events++; s.events >= turnrpc.MaxProviderEvents {
		return fail(classEvents)
	}
	e.StreamID = s.id
	if b, err := json.Marshal(e); err != nil || len(b) > turnrpc.MaxProviderEvent {
		return fail(classEvent)
	}
	if e.Type == turnrpc.ProviderDone {
		// The guest may open the next stream as soon as it sees this.
		s.b.mu.Lock()
		mine := s.b.streams[s.id] == s
		delete(s.b.streams, s.id)
		s.b.mu.Unlock()
		if !mine {
			return context.Canceled
		}
	}
	return s.b.emit(e)
}

// request is one question to a model.
type request struct {
	model     config.Model
	secret    creds.Secret
	rich      bool
	transport http.RoundTripper
	log       *slog.Logger
	pace      time.Duration
}

// do asks and gives the answer to emit, the end included. Failures are
// *Failure; an error of emit comes back as it is.
func (r request) do(ctx context.Context, req turnrpc.ProviderRequest, emit func(turnrpc.ProviderEvent) error) error {
	if r.model.Scripted() {
		return script{req: req, rich: r.rich, pace: r.pace, emit: emit}.run(ctx)
	}
	total := r.model.Timeouts.Total
	ctx, stop := context.WithTimeoutCause(ctx, total, fail(fmt.Sprintf("the answer took longer than %v", total)))
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c, err := arrange(req)
	if err != nil {
		return fail("the conversation cannot be sent: " + err.Error())
	}
	u := &upstream{model: r.model, secret: r.secret, base: r.transport, log: r.log, cancel: cancel}
	s := &sink{emit: emit, rich: r.rich, names: c.names}
	if r.model.API == config.APIMessages {
		return messages(ctx, u, c, s)
	}
	return chat(ctx, u, c, s)
}

// Package provider brokers models for a sandbox. The sandbox sends a
// conversation and the name of a profile; the broker adds the key, asks the
// model and passes on its words and tool calls. What a sandbox learns is the
// profile's name, the provider's label, the model's name and how a request
// ended: no key, no address, no text of an error.
package provider

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"msb/protocol/turnrpc"
	"msb/turn/config"
	"msb/turn/creds"
)

// IdleTimeout is how long a stream may wait for the rest of its request.
const IdleTimeout = 5 * time.Minute

// Resolver gets the text of a credential; it is called for every request.
type Resolver interface {
	Resolve(ctx context.Context, r creds.Ref) (creds.Secret, error)
}

// Options configures a Broker. Model and Credentials are needed.
type Options struct {
	// Model describes a profile; it is called when a stream is opened.
	Model       func(name string) (config.Model, error)
	Offline     func() bool // true: no model but the scripted one; nil: false
	Credentials Resolver
	// Pace is the scripted model's pause between two words; 0: none.
	Pace time.Duration
	Log  *slog.Logger
}

// Broker brokers the models of one session. It is safe for concurrent use and
// implements turn.Provider.
type Broker struct {
	o         Options
	log       *slog.Logger
	selected  func() string
	emit      func(turnrpc.ProviderEvent) error
	transport *http.Transport
	ctx       context.Context
	end       context.CancelFunc
	work      sync.WaitGroup

	mu      sync.Mutex
	streams map[string]*stream
	next    int
	closed  bool
}

// New returns a broker. selected names the session's profile; emit sends an
// event to the guest, and while it blocks no more is read from the model.
func New(o Options, selected func() string, emit func(turnrpc.ProviderEvent) error) *Broker {
	b := &Broker{o: o, log: o.Log, selected: selected, emit: emit, transport: newTransport(), streams: make(map[string]*stream)}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	b.ctx, b.end = context.WithCancel(context.Background())
	return b
}

// errClosed ends the streams of a broker that is closed.
var errClosed = errors.New("provider broker closed")

// Open prepares a stream.
func (b *Broker) Open(_ context.Context, alias string, rich bool) (turnrpc.ProviderOpened, error) {
	var none turnrpc.ProviderOpened
	if strings.TrimSpace(alias) == "" {
		return none, errors.New("model alias required")
	}
	offline := b.o.Offline != nil && b.o.Offline()
	const refusal = "offline mode: provider access is disabled"
	m, err := b.o.Model(alias)
	switch {
	case offline && (err != nil || !m.Scripted()):
		return none, errors.New(refusal)
	case alias != b.selected():
		return none, fmt.Errorf("model profile %q is not selected for this session", clip(alias))
	case err != nil:
		// The reason may quote the settings file.
		b.log.Error("model profile is not available", "model", alias, "err", err)
		return none, fmt.Errorf("model profile %q is not available: see `msb model ls` on the host", clip(alias))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return none, errClosed
	case len(b.streams) >= turnrpc.MaxProviderStreams:
		return none, errors.New("too many open provider streams")
	}
	b.next++
	s := &stream{b: b, id: "s" + strconv.Itoa(b.next), model: m, rich: rich}
	s.ctx, s.cancel = context.WithCancelCause(b.ctx)
	s.idle = time.AfterFunc(IdleTimeout, func() { b.drop(s, errors.New("provider stream idle")) })
	b.streams[s.id] = s
	return turnrpc.ProviderOpened{StreamID: s.id, InputTokens: int(m.InputTokens())}, nil
}

// Send adds a piece of the request; the model is asked when last. The key is
// read then.
func (b *Broker) Send(ctx context.Context, id string, data []byte, last bool) error {
	b.mu.Lock()
	s := b.streams[id]
	b.mu.Unlock()
	if s == nil {
		return fmt.Errorf("unknown provider stream %q", clip(id))
	}
	req, err := s.receive(data, last)
	if err == nil && last {
		err = b.start(ctx, s, req)
	}
	if err != nil && !errors.Is(err, errStarted) {
		b.drop(s, err)
	}
	return err
}

// start asks the model of a stream whose request is complete.
func (b *Broker) start(ctx context.Context, s *stream, req turnrpc.ProviderRequest) error {
	var secret creds.Secret
	if ref := s.model.Credential; ref != nil {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(s.ctx, cancel)()
		var err error
		if secret, err = b.o.Credentials.Resolve(ctx, ref.For(s.model.Host())); err != nil {
			b.log.Error("credential of a model", "model", s.model.Name, "err", err)
			return fmt.Errorf("credential for model %q: not available; run `msb model test %s` on the host", s.model.Name, s.model.Name)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.streams[s.id] != s {
		return errors.New("provider stream canceled")
	}
	b.work.Go(func() { s.run(req, secret) })
	return nil
}

// drop ends a stream that has not ended by itself. Nothing more is emitted.
func (b *Broker) drop(s *stream, cause error) {
	b.mu.Lock()
	if b.streams[s.id] == s {
		delete(b.streams, s.id)
	}
	b.mu.Unlock()
	s.idle.Stop()
	s.cancel(cause)
}

// Cancel ends a stream and its request to the model; an unknown one is ignored.
func (b *Broker) Cancel(id string) {
	b.mu.Lock()
	s := b.streams[id]
	b.mu.Unlock()
	if s != nil {
		b.drop(s, context.Canceled)
	}
}

// Close ends all streams and waits for them.
func (b *Broker) Close() {
	b.mu.Lock()
	b.closed = true
	streams := b.streams
	b.streams = make(map[string]*stream)
	b.mu.Unlock()
	for _, s := range streams {
		s.idle.Stop()
		s.cancel(errClosed)
	}
	b.end()
	b.work.Wait()
	b.transport.CloseIdleConnections()
}

package provider_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"msb/protocol/turnrpc"
	"msb/turn"
	"msb/turn/config"
	"msb/turn/creds"
	"msb/turn/provider"
)

var _ turn.Provider = (*provider.Broker)(nil)

// canary is a key. It may be in requests to the model server, and nowhere else.
const canary = "sk-canary-5f2b9e"

// server is a model server of a test.
type server struct {
	*httptest.Server
	mu       sync.Mutex
	requests []seen
}

type seen struct {
	path   string
	header http.Header
	body   map[string]any
}

// serve starts a server that answers the nth request with answers[n], the last
// one for all that follow.
func serve(t *testing.T, answers ...http.HandlerFunc) *server {
	t.Helper()
	s := &server{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body map[string]any
		b, err := io.ReadAll(r.Body)
		if err == nil {
			err = json.Unmarshal(b, &body)
		}
		if err != nil {
			t.Errorf("request body: %v", err)
		}
		s.mu.Lock()
		n := len(s.requests)
		s.requests = append(s.requests, seen{r.URL.Path, r.Header.Clone(), body})
		s.mu.Unlock()
		answers[min(n, len(answers)-1)](w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *server) seen() []seen {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

// stream answers with an event stream, in pieces of size bytes.
func stream(body string, size int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for b := []byte(body); len(b) > 0; {
			n := min(size, len(b))
			if _, err := w.Write(b[:n]); err != nil {
				return
			}
			w.(http.Flusher).Flush()
			b = b[n:]
		}
	}
}

func status(code int, header, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if name, value, ok := strings.Cut(header, ": "); ok {
			w.Header().Set(name, value)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		io.WriteString(w, body)
	}
}

func profile(s *server, api string) config.Model {
	two := 2
	m := config.Model{Name: "m", Provider: "test", Model: "model-1", API: api, BaseURL: s.URL + "/v1", Loopback: true, Retries: &two,
		Hosts: []string{strings.TrimPrefix(s.URL, "http://")}, Credential: &creds.Ref{Source: "env", Name: "CANARY_VARIABLE"},
		Timeouts: config.Timeouts{Connect: time.Minute, FirstByte: time.Minute, Idle: time.Minute, Total: 5 * time.Minute}}
	if api == config.APIMessages {
		m.BaseURL = s.URL
	}
	return m
}

// resolver is the credentials of a test; it counts.
type resolver struct {
	mu    sync.Mutex
	calls int
	fail  error
}

func (r *resolver) Resolve(context.Context, creds.Ref) (creds.Secret, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	return creds.NewSecret(canary), r.fail
}

// rig is a broker with what a guest would see of it.
type rig struct {
	*provider.Broker
	t      *testing.T
	events chan turnrpc.ProviderEvent
	log    *syncBuffer
	creds  *resolver
	all    *syncBuffer // everything that went to the guest
}

func newRig(t *testing.T, m config.Model) *rig {
	r := &rig{t: t, events: make(chan turnrpc.ProviderEvent, 4096), log: &syncBuffer{}, creds: &resolver{}, all: &syncBuffer{}}
	r.Broker = provider.New(provider.Options{
		Model: func(name string) (config.Model, error) {
			if name != m.Name {
				return config.Model{}, fmt.Errorf("no %s in /secret/path", name)
			}
			return m, nil
		},
		Credentials: r.creds, Log: slog.New(slog.NewJSONHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}, func() string { return m.Name }, func(e turnrpc.ProviderEvent) error {
		b, err := json.Marshal(e)
		r.all.Write(b)
		r.events <- e
		return err
	})
	t.Cleanup(func() {
		r.Broker.Close()
		for what, b := range map[string]*syncBuffer{"the guest": r.all, "the log": r.log} {
			if strings.Contains(b.String(), canary) {
				t.Errorf("the key is in what %s got: %s", what, b.String())
			}
		}
		for _, secret := range []string{"127.0.0.1", "CANARY_VARIABLE", "body of the provider"} {
			if strings.Contains(r.all.String(), secret) {
				t.Errorf("the guest was told %q: %s", secret, r.all.String())
			}
		}
	})
	return r
}

// ask sends a request and returns the events up to the end.
func (r *rig) ask(req turnrpc.ProviderRequest) []turnrpc.ProviderEvent {
	r.t.Helper()
	r.start(req)
	return r.collect()
}

func (r *rig) start(req turnrpc.ProviderRequest) string {
	r.t.Helper()
	o, err := r.Open(context.Background(), "m", true)
	id := o.StreamID
	if err != nil {
		r.t.Fatal(err)
	}
	b, err := json.Marshal(req)
	if err != nil {
		r.t.Fatal(err)
	}
	half := len(b) / 2
	if err := r.Send(context.Background(), id, b[:half], false); err != nil {
		r.t.Fatal(err)
	}
	if err := r.Send(context.Background(), id, b[half:], true); err != nil {
		r.t.Fatal(err)
	}
	return id
}

func (r *rig) collect() []turnrpc.ProviderEvent {
	r.t.Helper()
	var events []turnrpc.ProviderEvent
	for {
		select {
		case e := <-r.events:
			events = append(events, e)
			if e.Type == turnrpc.ProviderDone || e.Type == turnrpc.ProviderError {
				return events
			}
		case <-time.After(time.Minute):
			r.t.Fatalf("the stream does not end; so far %v\n%s", events, r.log.String())
		}
	}
}

// show writes events in a line, text joined.
func show(events []turnrpc.ProviderEvent) string {
	var b strings.Builder
	text := false
	for _, e := range events {
		switch e.Type {
		case turnrpc.ProviderText:
			if !text {
				b.WriteString("text:")
			}
			b.WriteString(e.Text)
		case turnrpc.ProviderTool:
			fmt.Fprintf(&b, " | tool:%s %s %s", e.ToolID, e.ToolName, e.ToolArgs)
		case turnrpc.ProviderUsage:
			fmt.Fprintf(&b, " | usage:%d/%d", e.Usage.InputTokens, e.Usage.OutputTokens)
		case turnrpc.ProviderDone:
			fmt.Fprintf(&b, " | done:%s", e.StopReason)
		case turnrpc.ProviderError:
			fmt.Fprintf(&b, " | error:%s", e.Err)
		}
		text = e.Type == turnrpc.ProviderText
	}
	return b.String()
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func user(text string) turnrpc.ProviderRequest {
	return turnrpc.ProviderRequest{Messages: []turnrpc.Message{{Role: turnrpc.RoleUser, Content: text}}}
}

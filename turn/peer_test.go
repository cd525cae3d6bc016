package turn

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"msb/protocol/turnrpc"
	"msb/turn/approval"
)

// guest is a scripted peer: it says what a test wants and sees every byte.
type guest struct {
	t testing.TB
	c net.Conn
}

// say sends a frame with exactly this body.
func (g *guest) say(body string) {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(body)))
	g.c.Write(append(b, body...))
}

func (g *guest) sayf(format string, args ...any) { g.say(fmt.Sprintf(format, args...)) }

// read returns the body of the host's next frame, "" at the end.
func (g *guest) read() string {
	var head [4]byte
	if _, err := io.ReadFull(g.c, head[:]); err != nil {
		return ""
	}
	body := make([]byte, binary.BigEndian.Uint32(head[:]))
	if _, err := io.ReadFull(g.c, body); err != nil {
		return ""
	}
	return string(body)
}

// expect reads a frame with exactly this body.
func (g *guest) expect(want string) {
	g.t.Helper()
	if got := g.read(); got != want {
		g.t.Errorf("host said\n%s\nwant\n%s", got, want)
	}
}

// frame reads and parses a frame.
func (g *guest) frame() *turnrpc.Frame {
	g.t.Helper()
	f, err := turnrpc.Parse([]byte(g.read()))
	if err != nil {
		g.t.Errorf("no frame of the host: %v", err)
		return new(turnrpc.Frame)
	}
	return f
}

const (
	testID  = "00112233445566778899aabbccddeeff"
	testCap = "5ec2e7"
)

// hello is what a guest of a version says first.
func hello(version int, more string) string {
	v, image := "", `"img"`
	if version > 0 {
		v = fmt.Sprintf(`,"protocol":%d`, version)
	}
	if version < 4 {
		image = `""`
	}
	return fmt.Sprintf(`{"v":%d,"id":"hello","method":"hello","params":{"session_id":%q,"capability":%q,"image_id":%s%s,"guest_ready":true%s}}`,
		max(version, 1), testID, testCap, image, v, more)
}

const ours = `,"extensions":{"tool_started":1,"output":1,"denial_reason":1,"later":7}`

// script runs the guest's part beside the test; it is waited for.
func script(t testing.TB, do func(g *guest)) net.Conn {
	host, peer := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do(&guest{t: t, c: peer})
		io.Copy(io.Discard, peer) // until the host ends it
	}()
	t.Cleanup(func() {
		host.Close()
		peer.Close()
		<-done
	})
	return host
}

func options() Options { return Options{ID: testID, Capability: testCap} }

// open opens a session with a guest of version 4 that says hello by itself.
func open(t testing.TB, o Options, more string, do func(g *guest)) *Session {
	t.Helper()
	o.ID, o.Capability = testID, testCap
	s, err := Open(t.Context(), script(t, func(g *guest) {
		g.say(hello(4, more))
		g.frame()
		do(g)
	}), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.conn.Close(); s.Close() })
	return s
}

func newGate(t testing.TB, o approval.Options) *approval.Gate {
	t.Helper()
	dir := t.TempDir()
	var err error
	if o.Audit, err = approval.OpenAudit(filepath.Join(dir, "audit.jsonl")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.Audit.Close() })
	if o.Rules, err = approval.OpenRules(filepath.Join(dir, "rules.json")); err != nil {
		t.Fatal(err)
	}
	if o.Grace == 0 {
		o.Grace = -1
	}
	g, err := approval.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// answerAll is someone who answers everything in the same way.
func answerAll(t testing.TB, g *approval.Gate, a approval.Answer) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	release := g.Attach()
	go func() {
		defer close(done)
		for {
			list, changed := g.Watch()
			for _, q := range list {
				g.Answer(q.ID, a)
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done; release() })
}

// fakeMCP is a broker with the tools of one server.
type fakeMCP struct {
	call func(ctx context.Context, c turnrpc.MCPCall) (turnrpc.MCPResult, error)
}

func (f fakeMCP) List(context.Context) ([]turnrpc.MCPTool, error) {
	return []turnrpc.MCPTool{{Server: "svc", Name: "echo", Prefixed: "svc__echo", Parameters: json.RawMessage(`{"type":"object"}`)}}, nil
}
func (fakeMCP) Claim(_, tool string) string { return "it claims to be " + tool }
func (f fakeMCP) Call(ctx context.Context, c turnrpc.MCPCall) (turnrpc.MCPResult, error) {
	if f.call != nil {
		return f.call(ctx, c)
	}
	var a struct{ Text string }
	json.Unmarshal(c.Arguments, &a)
	return turnrpc.MCPResult{Text: "echo:" + a.Text}, nil
}
func (fakeMCP) Cancel(string) {}
func (fakeMCP) Close() error  { return nil }

// fakeProvider answers every request with the same events.
type fakeProvider struct {
	emit func(turnrpc.ProviderEvent) error
	fail error
}

func (f *fakeProvider) Open(_ context.Context, alias string, _ bool) (turnrpc.ProviderOpened, error) {
	if f.fail != nil {
		return turnrpc.ProviderOpened{}, f.fail
	}
	if alias == "panic" {
		panic("provider")
	}
	return turnrpc.ProviderOpened{StreamID: "s1", InputTokens: 1000}, nil
}
func (f *fakeProvider) Send(_ context.Context, id string, _ []byte, last bool) error {
	if last {
		f.emit(turnrpc.ProviderEvent{StreamID: id, Type: turnrpc.ProviderText, Text: "hi"})
		f.emit(turnrpc.ProviderEvent{StreamID: id, Type: turnrpc.ProviderDone})
	}
	return nil
}
func (f *fakeProvider) Cancel(string) {}
func (f *fakeProvider) Close()        {}

func provider(fail error) NewProvider {
	return func(_ func() string, emit func(turnrpc.ProviderEvent) error) Provider {
		return &fakeProvider{emit: emit, fail: fail}
	}
}

var errTest = errors.New("broker failed")

// events collects what a turn emits, as "kind:text/status" words.
type events struct{ list []Event }

func (e *events) emit(v Event) { e.list = append(e.list, v) }

func (e *events) String() string {
	var words []string
	for _, v := range e.list {
		words = append(words, v.Kind+":"+v.Text+v.Status)
	}
	return strings.Join(words, " ")
}

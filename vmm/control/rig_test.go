package control

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"msb/protocol/control"
	"msb/protocol/frame"
	"msb/protocol/record"
)

// backend is a scripted Backend.
type backend struct {
	mu       sync.Mutex
	caps     control.Capabilities
	memory   control.MemoryState
	cpu      control.CPUState
	secrets  control.SecretsResult
	err      error
	targets  []uint64
	changes  []control.Change
	paused   bool
	panics   bool
	entered  chan string   // gets the name of each memory request, when not nil
	released chan struct{} // each memory request waits for one, when not nil
}

func (b *backend) Capabilities(context.Context) control.Capabilities { return b.caps }
func (b *backend) MemoryState(ctx context.Context) (control.MemoryState, error) {
	if b.panics {
		panic("of a secret")
	}
	if b.entered != nil {
		b.entered <- "state"
	}
	if b.released != nil {
		select {
		case <-b.released:
		case <-ctx.Done():
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.memory, b.err
}

func (b *backend) SetMemoryTarget(_ context.Context, n uint64) (control.MemoryState, error) {
	if b.entered != nil {
		b.entered <- "target"
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.targets = append(b.targets, n)
	return b.memory, b.err
}
func (b *backend) CPUState(context.Context) (control.CPUState, error) { return b.cpu, b.err }
func (b *backend) SetCPUTarget(_ context.Context, n uint32) (control.CPUState, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.targets = append(b.targets, uint64(n))
	return b.cpu, b.err
}

func (b *backend) UpdateSecrets(_ context.Context, changes []control.Change) control.SecretsResult {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.changes = changes
	return b.secrets
}
func (b *backend) Pause(context.Context) error  { b.paused = true; return b.err }
func (b *backend) Resume(context.Context) error { b.paused = false; return b.err }
func (b *backend) Paused() bool                 { return b.paused }
func (b *backend) Metrics(context.Context) (control.Metrics, error) {
	return control.Metrics{TimeNanos: 1}, b.err
}

// lockedBuffer is a log that is read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// serve runs a server of b and returns its socket.
func serve(t testing.TB, b Backend, o Options) string {
	t.Helper()
	_, path := serveWith(t, b, o)
	return path
}

// serveWith is serve for tests that look into the server.
func serveWith(t testing.TB, b Backend, o Options) (*Server, string) {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "msbc-")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "control.sock")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	s := New(b, o)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("serve: %v", err)
			}
		case <-time.After(time.Minute):
			t.Error("the server does not end")
		}
		os.RemoveAll(dir)
	})
	return s, path
}

// peer is a client that sends what it likes.
type peer struct {
	t testing.TB
	net.Conn
	r *bufio.Reader
}

func dial(t testing.TB, path string) *peer {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(time.Minute))
	return &peer{t, c, bufio.NewReader(c)}
}

func (p *peer) send(b []byte) {
	p.t.Helper()
	if _, err := p.Write(b); err != nil {
		p.t.Fatal(err)
	}
}

// request is a frame of generation 1.
func request(t testing.TB, id uint32, name string, payload any) []byte {
	t.Helper()
	b, err := control.AppendFrame(nil, id, 0, control.Generation, name, payload)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// frame reads one whole frame.
func (p *peer) frame() []byte {
	p.t.Helper()
	f, err := readFrame(p.r)
	if err != nil {
		p.t.Fatalf("read a frame: %v", err)
	}
	return f
}

func readFrame(r io.Reader) ([]byte, error) {
	var prefix [4]byte
	if _, err := io.ReadFull(r, prefix[:]); err != nil {
		return nil, err
	}
	n := int(prefix[0])<<24 | int(prefix[1])<<16 | int(prefix[2])<<8 | int(prefix[3])
	raw := append(prefix[:], make([]byte, n)...)
	_, err := io.ReadFull(r, raw[4:])
	return raw, err
}

// closed waits for the other side's end, without a further byte.
func (p *peer) closed() {
	p.t.Helper()
	b, err := p.r.ReadByte()
	var timeout net.Error
	if err == nil || errors.As(err, &timeout) && timeout.Timeout() {
		p.t.Fatalf("the connection is still open: 0x%02x, %v", b, err)
	}
}

// failure reads a control.error.
func (p *peer) failure(id uint32) control.Error {
	p.t.Helper()
	raw := p.frame()
	if len(raw) > maxReply {
		p.t.Errorf("a reply of %d bytes", len(raw))
	}
	f, err := frame.Parse(raw)
	if err != nil {
		p.t.Fatal(err)
	}
	e, err := control.ParseEnvelope(f.Body)
	if err != nil || f.ID != id || f.Flags != frame.FlagTerminal || e.T != control.TypeError {
		p.t.Fatalf("got %+v with id %d and flags %d, %v", e, f.ID, f.Flags, err)
	}
	var why control.Error
	if err := record.DecodeStrict(e.P, &why); err != nil {
		p.t.Fatal(err)
	}
	return why
}

// welcome does the handshake.
func (p *peer) welcome() *peer {
	p.t.Helper()
	p.send(request(p.t, 0, control.TypeHello, control.DefaultHello()))
	p.frame()
	return p
}

// line sends one JSON line and returns the reply.
func line(t testing.TB, path, request string) string {
	t.Helper()
	p := dial(t, path)
	p.send([]byte(request))
	b, err := io.ReadAll(p.r)
	if err != nil {
		t.Fatalf("%.100s: %v", request, err)
	}
	return string(b)
}

type vector struct {
	Name  string
	Frame string `json:"frame_hex"`
	raw   []byte
}

func vectors(t testing.TB) map[string]vector {
	t.Helper()
	b, err := os.ReadFile("../../protocol/control/testdata/frames.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct{ Cases []vector }
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	all := map[string]vector{}
	for _, v := range doc.Cases {
		if v.raw, err = hex.DecodeString(v.Frame); err != nil {
			t.Fatal(err)
		}
		all[v.Name] = v
	}
	return all
}

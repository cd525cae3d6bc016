package control

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"msb/protocol/control"
	"msb/protocol/frame"
)

func TestLines(t *testing.T) {
	var log lockedBuffer
	b := &backend{memory: control.MemoryState{MaxMiB: 1<<64 - 1}, secrets: control.SecretsResult{Outcome: control.OutcomeComplete}}
	path := serve(t, b, Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	for _, tt := range []struct{ name, request, want string }{
		{"nothing", "\n", ""},
		{"blanks", " \t \n", ""},
		{"u64", `{"op":"memory_target","total_mib":18446744073709551615}` + "\n", `{"ok":true,"memory":{"boot_mib":0,"target_mib":0,"current_mib":0,"max_mib":18446744073709551615}}` + "\n"},
		{"blanks around", "  {\"op\":\"pause_state\"}\t\r\n", "{\"ok\":true}\n"},
		{"more behind the line", "{\"op\":\"pause_state\"}\n{\"op\":\"pause\"}\n", "{\"ok\":true}\n"},
		{"pause", `{"op":"pause"}` + "\n", "{\"ok\":true}\n"},
		{"paused", `{"op":"pause_state"}` + "\n", `{"ok":true,"paused":true}` + "\n"},
		{"resume", `{"op":"resume"}` + "\n", "{\"ok\":true}\n"},
		{"protocols only with capabilities", `{"op":"cpu_state"}` + "\n", `{"ok":true,"cpu":{"possible":0,"requested_online":0,"actual_online":0,"enforced":0}}` + "\n"},
		{"metrics", `{"op":"msb.metrics"}` + "\n", `"time_nanos":1`},
		{"unknown operation", `{"op":"checkpoint_create"}` + "\n", `{"ok":false,"error":"invalid control request: unknown operation \"checkpoint_create\""}` + "\n"},
		{"Op for op", `{"Op":"pause"}` + "\n", `{"ok":false,"error":"invalid control request: no op"}` + "\n"},
		{"keys twice", `{"op":"pause_state","op":"pause"}` + "\n", `"ok":false`},
		{"float", `{"op":"memory_target","total_mib":1024.0}` + "\n", `"ok":false`},
		{"1e400", `{"op":"memory_target","total_mib":1e400}` + "\n", `"ok":false`},
		{"NUL inside", "{\"op\":\"pa\x00use\"}\n", `"ok":false`},
		{"no object", "hello\n", `"ok":false`},
		{"HTTP", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", `"ok":false`},
		{"secrets", `{"op":"secrets_update","changes":[{"change":"rotate","name":"A","value":"hunter2"}]}` + "\n", "{\"ok\":true}\n"},
		{"10 MiB secret", `{"op":"secrets_update","changes":[{"change":"rotate","name":"A","value":"` + strings.Repeat("hunter2 ", 10<<17) + `"}]}` + "\n", "{\"ok\":true}\n"},
		{"a long operation", `{"op":"` + strings.Repeat("x", 1<<20) + `"}` + "\n", `"ok":false`},
		{"deep", `{"op":` + strings.Repeat("[", 1<<20) + "\n", `"ok":false`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := line(t, path, tt.request)
			if got != tt.want && (len(tt.want) == 0 || strings.HasPrefix(tt.want, "{") || !strings.Contains(got, tt.want)) || len(got) > maxReply {
				t.Errorf("got %.300q", got)
			}
			if got != "" && !strings.HasSuffix(got, "\n") {
				t.Errorf("no line end: %.300q", got)
			}
		})
	}
	if v := b.changes[0].Value; len(*v) != 10<<20 {
		t.Errorf("the value has %d bytes", len(*v))
	}
	if strings.Contains(log.String(), "hunter2") {
		t.Error("the log quotes a secret")
	}
}

func TestLineWithoutNewline(t *testing.T) {
	path := serve(t, &backend{}, Options{})
	p := dial(t, path)
	p.send([]byte(`{"op":"pause_state"}`))
	p.Conn.(*net.UnixConn).CloseWrite()
	if b, err := io.ReadAll(p.r); err != nil || string(b) != "{\"ok\":true}\n" {
		t.Errorf("got %q, %v", b, err)
	}
}

func TestLineTooLong(t *testing.T) {
	p := dial(t, serve(t, &backend{}, Options{}))
	chunk := bytes.Repeat([]byte(" "), 1<<20)
	for range maxLine>>20 + 2 {
		if _, err := p.Write(chunk); err != nil {
			break
		}
	}
	if got, err := p.r.ReadString('\n'); err != nil || !strings.Contains(got, "longer than") {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestProbesCloseQuietly(t *testing.T) {
	var log lockedBuffer
	path := serve(t, &backend{}, Options{Log: slog.New(slog.NewTextHandler(&log, nil)), Setup: 50 * time.Millisecond, Stall: 50 * time.Millisecond})
	for range 20 {
		dial(t, path).Close()
	}
	dial(t, path).closed() // silent from the first byte on
	for _, begin := range []string{"{", "\x00", "\x00\x00\x00"} {
		p := dial(t, path)
		p.send([]byte(begin))
		p.closed()
	}
	if log.String() != "" {
		t.Errorf("log: %s", log.String())
	}
}

func TestRequestsThatAreWrong(t *testing.T) {
	path := serve(t, &backend{}, Options{})
	frameOf := func(id uint32, flags, v uint8, name string, payload any) []byte {
		b, err := control.AppendFrame(nil, id, flags, v, name, payload)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	body := func(id uint32, hexBody string) []byte {
		b, err := hex.DecodeString(strings.ReplaceAll(hexBody, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		if b, err = frame.Append(nil, id, 0, b); err != nil {
			t.Fatal(err)
		}
		return b
	}
	many := make([]control.Change, control.MaxChanges+1)
	for i := range many {
		many[i] = control.Change{Change: control.ChangeRemove, Name: "A"}
	}
	for _, tt := range []struct {
		name string
		wire []byte
		code string // "" = the connection ends
	}{
		{"other generation", frameOf(7, 0, 2, control.TypeCapabilities, control.Empty{}), control.CodeInvalidRequest},
		{"flags", frameOf(7, 1, 1, control.TypeCapabilities, control.Empty{}), control.CodeInvalidRequest},
		{"agent flags", frameOf(7, 2, 1, control.TypeCapabilities, control.Empty{}), control.CodeInvalidRequest},
		{"unknown name", frameOf(7, 0, 1, "control.checkpoint.create", control.Empty{}), control.CodeUnsupportedOperation},
		{"long unknown name", frameOf(7, 0, 1, strings.Repeat("x", 100_000), control.Empty{}), control.CodeUnsupportedOperation},
		{"a reply", frameOf(7, 0, 1, control.TypeCapabilitiesResult, control.Capabilities{}), control.CodeUnsupportedOperation},
		{"an agent message", frameOf(7, 0, 1, "core.ping", control.Empty{}), control.CodeUnsupportedOperation},
		{"payload of another", frameOf(7, 0, 1, control.TypeMemoryTarget, control.CPUTarget{Online: 1}), control.CodeInvalidRequest},
		{"u32 too large", frameOf(7, 0, 1, control.TypeCPUTarget, struct {
			Online uint64 `cbor:"online"`
		}{1 << 32}), control.CodeInvalidRequest},
		{"too many changes", frameOf(7, 0, 1, control.TypeSecretsUpdate, control.SecretsUpdate{Changes: many}), control.CodeInvalidRequest},
		{"empty payload", body(7, "a3 6176 01 6174 74 636f6e74726f6c2e6361706162696c6974696573 6170 40"), control.CodeInvalidRequest},
		{"id 0", frameOf(0, 0, 1, control.TypeCapabilities, control.Empty{}), ""},
		{"second hello", frameOf(7, 0, 1, control.TypeHello, control.DefaultHello()), ""},
		{"a welcome", frameOf(7, 0, 1, control.TypeWelcome, control.Welcome{}), ""},
		{"too large", []byte{0, 0x40, 0, 1, 0, 0, 0, 7, 0}, ""},
		{"too short", []byte{0, 0, 0, 4, 0, 0, 0, 7, 0}, ""},
		{"no envelope", body(7, "ff"), ""},
		{"payload as an array", body(7, "a3 6176 01 6174 6161 6170 8118a0"), ""},
		{"p twice", body(7, "a4 6176 01 6174 6161 6170 41a0 6170 41a0"), ""},
		{"trailing byte", body(7, "a3 6176 01 6174 6161 6170 41a0 00"), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := dial(t, path).welcome()
			p.send(tt.wire)
			if tt.code == "" {
				p.closed()
				return
			}
			if why := p.failure(7); why.Code != tt.code || why.Effect != control.EffectNone {
				t.Errorf("got %+v", why)
			}
			p.send(request(t, 7, control.TypeCapabilities, control.Empty{})) // the session goes on, its id is free
			p.frame()
		})
	}
}

func TestIdsInFlight(t *testing.T) {
	b := &backend{entered: make(chan string, 8), released: make(chan struct{})}
	path := serve(t, b, Options{})
	p := dial(t, path).welcome()
	p.send(request(t, 1, control.TypeMemoryState, control.Empty{}))
	<-b.entered
	p.send(request(t, 1, control.TypeCapabilities, control.Empty{}))
	p.closed()

	h := control.DefaultHello()
	h.MaxInFlight = 2
	p = dial(t, path)
	p.send(request(t, 0, control.TypeHello, h))
	p.frame()
	for id := range uint32(3) {
		p.send(request(t, id+1, control.TypeMemoryState, control.Empty{}))
	}
	p.closed()
	close(b.released)

	p = dial(t, path).welcome()
	for range 100 { // an id is free as soon as its reply is there
		p.send(request(t, 5, control.TypeCapabilities, control.Empty{}))
		p.frame()
	}
}

// TestTurns: one connection with many requests does not hold up another.
func TestTurns(t *testing.T) {
	b := &backend{entered: make(chan string, 100), released: make(chan struct{}, 100)}
	s, path := serveWith(t, b, Options{})
	waiting := func(n int) func() bool {
		return func() bool {
			s.queue.mu.Lock()
			defer s.queue.mu.Unlock()
			return s.queue.total == n
		}
	}
	greedy, modest := dial(t, path).welcome(), dial(t, path).welcome()
	for id := range uint32(50) {
		greedy.send(request(t, id+1, control.TypeMemoryState, control.Empty{}))
	}
	<-b.entered // the first is being carried out
	waitFor(t, waiting(49))
	modest.send(request(t, 1, control.TypeMemoryTarget, control.MemoryTarget{TotalMiB: 1}))
	waitFor(t, waiting(50))
	for range 3 {
		b.released <- struct{}{}
	}
	var order []string
	for len(order) < 3 {
		order = append(order, <-b.entered)
	}
	if !strings.Contains(strings.Join(order, " "), "target") {
		t.Errorf("order %v", order)
	}
	close(b.released)
	modest.frame()
	for range 50 {
		greedy.frame()
	}
}

func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); {
		if time.Now().After(end) {
			t.Fatal("it does not happen")
		}
		time.Sleep(time.Millisecond)
	}
}

func TestBusy(t *testing.T) {
	b := &backend{entered: make(chan string, 1000), released: make(chan struct{})}
	path := serve(t, b, Options{})
	var peers []*peer
	for range 6 {
		p := dial(t, path).welcome()
		for id := range uint32(64) {
			p.send(request(t, id+1, control.TypeMemoryState, control.Empty{}))
		}
		peers = append(peers, p)
	}
	// 384 requests: one is carried out, 256 wait, the others hear that the server is busy.
	busy := 0
	for busy < 384-257 {
		for _, p := range peers {
			p.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
			if _, err := p.r.Peek(1); err != nil {
				continue
			}
			p.SetReadDeadline(time.Now().Add(time.Minute))
			raw := p.frame()
			if !bytes.Contains(raw, []byte(control.CodeBusy)) {
				t.Fatalf("got %x", raw)
			}
			busy++
		}
	}
	if got := line(t, path, `{"op":"memory_state"}`+"\n"); !strings.Contains(got, "too many requests") {
		t.Errorf("got %s", got)
	}
	if got := line(t, path, `{"op":"pause_state"}`+"\n"); got != "{\"ok\":true}\n" {
		t.Errorf("got %s", got)
	}
	close(b.released)
}

// TestBytesUnderWay: requests beyond the budget of a connection are refused, and
// the budget comes back.
func TestBytesUnderWay(t *testing.T) {
	b := &backend{entered: make(chan string, 100), released: make(chan struct{}), secrets: control.SecretsResult{Outcome: control.OutcomeComplete}}
	path := serve(t, b, Options{})
	blocker := dial(t, path).welcome()
	blocker.send(request(t, 1, control.TypeMemoryState, control.Empty{}))
	<-b.entered
	value := strings.Repeat("x", 3<<20)
	large := control.SecretsUpdate{Changes: []control.Change{{Change: control.ChangeRotate, Name: "A", Value: &value}}}
	p := dial(t, path).welcome()
	for id := range uint32(3) {
		p.send(request(t, id+1, control.TypeSecretsUpdate, large))
	}
	if why := p.failure(3); why.Code != control.CodeBusy || why.Effect != control.EffectNone {
		t.Errorf("got %+v", why)
	}
	close(b.released)
	p.frame()
	p.frame()
	p.send(request(t, 9, control.TypeSecretsUpdate, large))
	if f, _ := frame.Parse(p.frame()); f.ID != 9 || bytes.Contains(f.Body, []byte(control.CodeBusy)) {
		t.Errorf("got %x", f.Raw)
	}
}

func TestSlowClients(t *testing.T) {
	const short = time.Second // for a whole frame, however busy the machine is
	path := serve(t, &backend{}, Options{Frame: short})
	silent := dial(t, path).welcome() // a hello, then nothing
	half := dial(t, path).welcome()
	half.send(request(t, 1, control.TypeCapabilities, control.Empty{})[:8])
	half.closed() // after longer than the bound
	silent.send(request(t, 1, control.TypeCapabilities, control.Empty{}))
	silent.frame() // an idle session does not end
}

// TestDeafClient: one that does not read its replies loses its connection, and
// nobody else waits for it.
func TestDeafClient(t *testing.T) {
	s := New(&backend{}, Options{Stall: 200 * time.Millisecond})
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() { s.execute(ctx) })
	defer work.Wait()
	defer cancel()
	connect := func() (net.Conn, <-chan struct{}) {
		ours, theirs := net.Pipe() // without a buffer: a reply that is not read is not written
		t.Cleanup(func() { ours.Close() })
		ours.SetDeadline(time.Now().Add(time.Minute))
		gone := make(chan struct{})
		work.Go(func() { s.serveConn(ctx, theirs); theirs.Close(); close(gone) })
		return ours, gone
	}
	welcomed := func() (net.Conn, <-chan struct{}) {
		for {
			c, gone := connect()
			c.Write(request(t, 0, control.TypeHello, control.DefaultHello()))
			if _, err := readFrame(c); err == nil {
				return c, gone
			} // this test itself was too slow
		}
	}
	deaf, gone := welcomed()
	for id := range uint32(20) {
		if _, err := deaf.Write(request(t, id+1, control.TypeCapabilities, control.Empty{})); err != nil {
			break
		}
	}
	for answered := false; !answered; {
		c, _ := connect()
		fmt.Fprintln(c, `{"op":"capabilities"}`)
		b, _ := io.ReadAll(c)
		answered = bytes.Contains(b, []byte(`"ok":true`))
	}
	select {
	case <-gone:
	case <-time.After(time.Minute):
		t.Error("a client that does not read keeps its connection")
	}
	if held := s.frames.used.Load(); held != 0 {
		t.Errorf("%d bytes are still held", held)
	}
}

func TestManyConnections(t *testing.T) {
	path := serve(t, &backend{}, Options{})
	var served, refused int
	var open []*peer
	for range 200 {
		p := dial(t, path)
		p.Write(request(t, 0, control.TypeHello, control.DefaultHello())) // may be closed already
		if _, err := readFrame(p.r); err == nil {
			served++
			open = append(open, p)
		} else {
			refused++
		}
	}
	if served != maxConns || refused != 200-maxConns {
		t.Errorf("%d served, %d refused", served, refused)
	}
	var work sync.WaitGroup
	for _, p := range open {
		work.Go(func() {
			for id := range uint32(20) {
				if _, err := p.Write(request(t, id+1, control.TypeCapabilities, control.Empty{})); err != nil {
					t.Error(err)
					return
				}
				if _, err := readFrame(p.r); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	work.Wait()
	for _, p := range open {
		p.Close()
	}
	waitFor(t, func() bool {
		p := dial(t, path)
		p.Write([]byte(`{"op":"pause_state"}` + "\n"))
		b, _ := io.ReadAll(p.r)
		return len(b) > 0
	})
}

func TestClientThatHangsUpAfterItsRequests(t *testing.T) {
	b := &backend{}
	p := dial(t, serve(t, b, Options{})).welcome()
	for id := range uint32(10) {
		p.send(request(t, id+1, control.TypeMemoryTarget, control.MemoryTarget{TotalMiB: uint64(id)}))
	}
	p.Conn.(*net.UnixConn).CloseWrite()
	for range 10 {
		p.frame()
	}
	p.closed()
	if len(b.targets) != 10 || b.targets[9] != 9 {
		t.Errorf("targets %v", b.targets)
	}
}

func TestPanicsAndLongErrors(t *testing.T) {
	var log lockedBuffer
	b := &backend{panics: true, err: errors.New(strings.Repeat("ä", 10_000))}
	path := serve(t, b, Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	p := dial(t, path).welcome()
	p.send(request(t, 1, control.TypeMemoryState, control.Empty{}))
	if why := p.failure(1); why.Code != control.CodeInternal || why.Effect != control.EffectUnknown {
		t.Errorf("got %+v", why)
	}
	if got := line(t, path, `{"op":"memory_state"}`+"\n"); !strings.Contains(got, "the runtime failed") {
		t.Errorf("got %s", got)
	}
	p.send(request(t, 2, control.TypeCPUState, control.Empty{}))
	if why := p.failure(2); why.Effect != control.EffectNone || !strings.HasSuffix(why.Message, "ä") {
		t.Errorf("got %+v", why)
	}
	p.send(request(t, 3, control.TypeCPUTarget, control.CPUTarget{Online: 1}))
	if why := p.failure(3); why.Effect != control.EffectUnknown {
		t.Errorf("got %+v", why)
	}
	if strings.Contains(log.String(), "of a secret") {
		t.Error("the log quotes a panic")
	}
}

// TestConcurrentChanges: two clients that change at once are served one after
// the other.
func TestConcurrentChanges(t *testing.T) {
	b := &backend{}
	path := serve(t, b, Options{})
	var work sync.WaitGroup
	for i := range 8 {
		work.Go(func() {
			if got := line(t, path, fmt.Sprintf(`{"op":"memory_target","total_mib":%d}`, i)+"\n"); !strings.Contains(got, `"ok":true`) {
				t.Errorf("got %s", got)
			}
		})
	}
	work.Wait()
	if len(b.targets) != 8 {
		t.Errorf("targets %v", b.targets)
	}
}

func FuzzConnection(f *testing.F) {
	hello, _ := control.AppendFrame(nil, 0, 0, 1, control.TypeHello, control.DefaultHello())
	f.Add([]byte(`{"op":"memory_target","total_mib":1024}` + "\n"))
	f.Add(hello)
	for _, v := range vectors(f) {
		f.Add(append(bytes.Clone(hello), v.raw...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s := New(&backend{}, Options{Setup: time.Second, Frame: time.Second, Stall: time.Second})
		ctx, cancel := context.WithCancel(context.Background())
		ours, theirs := net.Pipe()
		var work sync.WaitGroup
		work.Go(func() { s.execute(ctx) })
		work.Go(func() { s.serveConn(ctx, theirs); theirs.Close() })
		work.Go(func() { io.Copy(io.Discard, ours) })
		ours.SetWriteDeadline(time.Now().Add(time.Minute))
		ours.Write(b)
		ours.Close()
		cancel()
		work.Wait()
		if held := s.frames.used.Load() + s.lines.used.Load(); held != 0 {
			t.Errorf("%d bytes are still held", held)
		}
	})
}

package agentclient

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

func readyFrame(t testing.TB, v uint8, payload any) []byte {
	b, err := agent.AppendFrame(nil, 0, agent.Ready, v, payload)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func words(w ...uint32) []byte {
	var b []byte
	for _, x := range w {
		b = binary.BigEndian.AppendUint32(b, x)
	}
	return b
}

func TestHandshake(t *testing.T) {
	ready := readyFrame(t, 9, agent.ReadyPayload{BootTimeNS: 1})
	pong, _ := agent.AppendFrame(nil, 0, agent.Pong, 9, agent.Empty{})
	// A later guest with fields that this build does not know.
	future := readyFrame(t, 12, agent.EncodedPayload("\xa5\x6cboot_time_ns\x01\x6cinit_time_ns\x02\x6dready_time_ns\x03\x63new\x81\x01\x65other\xa0"))
	cases := map[string]struct {
		bytes      []byte
		start, end uint32
		format     WireFormat
		gate, emit uint8
		want       string // in the error
	}{
		"slot 0":            {bytes: append(words(1, 33554431), ready...), start: 1, end: 33554431, gate: 9, emit: 9},
		"slot 1":            {bytes: append(words(33554432, 67108862), ready...), start: 33554432, end: 67108862, gate: 9, emit: 9},
		"start 0 is 1":      {bytes: append(words(0, 5000000), ready...), start: 1, end: 5000000, gate: 9, emit: 9},
		"generation 7":      {bytes: append(words(1, 33554431), readyFrame(t, 7, agent.ReadyPayload{})...), start: 1, end: 33554431, gate: 7, emit: 9},
		"generation 12":     {bytes: append(words(1, 33554431), future...), start: 1, end: 33554431, gate: 9, emit: 9},
		"small range":       {bytes: append(words(100, 200), ready...), start: 100, end: 200, gate: 9, emit: 9},
		"legacy, offset 0":  {bytes: append(words(0), readyFrame(t, 1, agent.ReadyPayload{})...), start: 1, end: legacyRange, format: WireLegacyV1, gate: 1, emit: 1},
		"legacy, offset":    {bytes: append(words(2*legacyRange), ready...), start: 2*legacyRange + 1, end: 3 * legacyRange, format: WireLegacyV1, gate: 1, emit: 1},
		"legacy, saturated": {bytes: append(words(0xfffffff0), ready...), start: 0xfffffff1, end: 0xffffffff, format: WireLegacyV1, gate: 1, emit: 1},

		"legacy, no ids":     {bytes: append(words(0xffffffff), ready...), want: "no usable ids"},
		"empty range":        {bytes: append(words(33554431, 33554431), ready...), want: "no usable ids"},
		"range turned round": {bytes: append(words(67108862, 33554432), ready...), want: "no usable ids"},
		"only id 0":          {bytes: append(words(0, 1), ready...), want: "no usable ids"},
		"no slot free":       {want: "128 clients"},
		"cut prologue":       {bytes: words(1), want: "prologue"},
		"cut ready":          {bytes: append(words(1, 33554431), ready[:20]...), want: "ready frame"},
		"no ready":           {bytes: words(1, 33554431), want: "ready frame"},
		"other message":      {bytes: append(words(1, 33554431), pong...), want: "core.pong"},
		"garbage":            {bytes: append(words(1, 33554431), wireFrame([]byte("garbage"))...), want: "ready frame"},
		"no payload":         {bytes: append(words(1, 33554431), readyFrame(t, 9, nil)...), want: "core.ready"},
		"too long":           {bytes: append(words(1, 33554431), words(frame.MaxLength+1, 0)...), want: "too large"},
		"too short":          {bytes: append(words(1, 33554431), words(4, 0)...), want: "too short"},
		"http":               {bytes: []byte("HTTP/1.1 400 Bad Request\r\n\r\n"), want: "prologue"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			a, b := net.Pipe()
			go func() {
				b.Write(tc.bytes)
				if tc.want != "" {
					b.Close()
				}
			}()
			c, err := New(within(t), a)
			if tc.want != "" {
				var failed *HandshakeError
				if !errors.As(err, &failed) || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("error %v, want %q", err, tc.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			defer b.Close()
			r := c.Ready()
			if r.IDStart != tc.start || r.IDEnd != tc.end || r.WireFormat != tc.format || r.NegotiatedVersion != tc.gate || r.EmittedVersion != tc.emit {
				t.Errorf("%+v", r)
			}
			if !bytes.HasSuffix(tc.bytes, r.ReadyBytes()) || len(r.ReadyBytes()) < len(tc.bytes)-8 {
				t.Error("the ready frame was not kept as it was")
			}
		})
	}
}

func wireFrame(body []byte) []byte {
	b, _ := frame.Append(nil, 0, 0, body)
	return b
}

// A relay that says nothing does not hold a caller for ever.
func TestHandshakeSilence(t *testing.T) {
	a, b := net.Pipe()
	defer b.Close()
	_, err := New(context.Background(), a, WithHandshakeTimeout(10*time.Millisecond))
	var failed *HandshakeError
	if !errors.As(err, &failed) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	a, b2 := net.Pipe()
	defer b2.Close()
	ctx, cancel := context.WithCancel(context.Background())
	go func() { b2.Write(words(1)); cancel() }()
	if _, err := New(ctx, a); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestDial(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.sock")
	if _, err := Dial(within(t), path); err == nil {
		t.Error("connected to nothing")
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		conn, err := l.Accept()
		if err == nil {
			conn.Write(append(words(1, 33554431), readyFrame(t, 9, agent.ReadyPayload{})...))
			io.Copy(io.Discard, conn)
			conn.Close()
		}
	}()
	c, err := Dial(within(t), path)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

// The exact packets of a graceful shutdown, current and legacy.
func TestShutdownPacket(t *testing.T) {
	for _, tc := range []struct {
		legacy bool
		hex    string
	}{
		{false, "0000001d" + "00000000" + "04" + "a3" + "617609" + "61746d" + hex.EncodeToString([]byte("core.shutdown")) + "617041f6"},
		{true, "0000001d" + "00000000" + "04" + "a3" + "617601" + "61746d" + hex.EncodeToString([]byte("core.shutdown")) + "617041f6"},
	} {
		a, b := net.Pipe()
		prologue := words(1, 33554431)
		if tc.legacy {
			prologue = words(0)
		}
		go b.Write(append(prologue, readyFrame(t, 9, agent.ReadyPayload{})...))
		c, err := New(within(t), a)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- c.Shutdown(within(t)) }()
		want, _ := hex.DecodeString(tc.hex)
		got := make([]byte, len(want))
		io.ReadFull(b, got[:len(got)-1])
		select {
		case err := <-done:
			t.Errorf("returned before the packet was written: %v", err)
		default:
		}
		io.ReadFull(b, got[len(got)-1:])
		if err := <-done; err != nil || !bytes.Equal(got, want) {
			t.Errorf("%v, packet\n%x, want\n%x", err, got, want)
		}
		c.Close()
		b.Close()
	}
}

// A refused operation sends nothing and disturbs nothing.
func TestGate(t *testing.T) {
	c, s := newScript(t, 5)
	e := make(chan error, 1)
	go func() {
		x, err := c.Exec(within(t), ExecSpec{Cmd: "x"})
		if err == nil {
			_, err = x.Wait()
		}
		e <- err
	}()
	id := s.expect(agent.ExecRequest).ID
	_, err := c.Ping(within(t))
	var old *UnsupportedOperationError
	if !errors.As(err, &old) || old.Type != agent.Ping || old.Needs != 6 || old.Negotiated != 5 {
		t.Errorf("error %#v", err)
	}
	if !strings.Contains(err.Error(), "restart the sandbox") {
		t.Errorf("no advice: %v", err)
	}
	if err := c.Ready().EnsureVersionCompat(agent.BulkCredit); !errors.As(err, &old) {
		t.Errorf("error %v", err)
	}
	if err := EnsureVersionCompatFor(5, agent.TCPConnect); err != nil {
		t.Error(err)
	}
	// The engine has the same gate, and passes names that it does not know.
	stream, err := c.Engine().Open(1)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(within(t), "core.ping", agent.Empty{}); !errors.As(err, &old) {
		t.Errorf("engine: %v", err)
	}
	if err := stream.Send(within(t), "msb.future", agent.Empty{}); err != nil {
		t.Error(err)
	}
	if f := s.next(); f.ID != stream.ID() {
		t.Errorf("something was sent: %+v", f)
	}
	s.send(id, agent.ExecStarted, agent.ExecStartedPayload{PID: 1})
	s.send(id, agent.ExecExited, agent.ExecExitedPayload{})
	if err := <-e; err != nil {
		t.Error(err)
	}
}

func FuzzHandshake(f *testing.F) {
	ready := readyFrame(f, 9, agent.ReadyPayload{BootTimeNS: 1})
	f.Add(append(words(1, 33554431), ready...))
	f.Add(append(words(0), ready...))
	f.Add(append(words(1, 2), words(frame.MaxLength, 0, 0)...))
	f.Fuzz(func(t *testing.T, stream []byte) {
		c, err := New(context.Background(), &deafPeer{r: bytes.NewReader(stream)})
		if err != nil {
			return
		}
		if r := c.Ready(); r.IDStart == 0 || r.IDStart >= r.IDEnd || r.NegotiatedVersion > agent.Generation {
			t.Errorf("%+v", r)
		}
		<-c.Done()
	})
}

// deafPeer has said everything and takes everything.
type deafPeer struct{ r io.Reader }

func (p *deafPeer) Read(b []byte) (int, error)  { return p.r.Read(b) }
func (p *deafPeer) Write(b []byte) (int, error) { return len(b), nil }
func (p *deafPeer) Close() error                { return nil }

// FuzzGuest lets a guest say anything to a client that has one operation of
// each kind under way. Every operation ends when the guest has finished.
func FuzzGuest(f *testing.F) {
	add := func(frames ...[]byte) { f.Add(bytes.Join(frames, nil)) }
	msg := func(id uint32, typ agent.Type, payload any) []byte {
		b, err := agent.AppendFrame(nil, id, typ, 9, payload)
		if err != nil {
			f.Fatal(err)
		}
		return b
	}
	record := func(id uint32, kind uint8, off uint64, n int) []byte {
		b, _ := frame.AppendBulk(nil, frame.Bulk{ID: id, Kind: kind, Flow: 2, Offset: off, Payload: make([]byte, n)})
		return b
	}
	accepted := func(id uint32, kind, flows uint8, in, out uint64, max uint32) []byte {
		return msg(id, agent.BulkAccepted, agent.BulkAcceptedPayload{Kind: kind, Flows: flows, Format: 1, MaxRecordPayload: max, GuestToHostCreditLimit: out, HostToGuestCreditLimit: in})
	}
	ok := agent.FSResponsePayload{OK: true}
	add(msg(1, agent.ExecStarted, agent.ExecStartedPayload{PID: 1}), msg(1, agent.ExecStdout, agent.Data{Data: []byte("x")}), msg(1, agent.ExecExited, agent.ExecExitedPayload{}))
	add(accepted(2, 1, 2, 0, 8<<20, 64<<10), record(2, 1, 0, 1000), msg(2, agent.BulkFinish, agent.BulkFinishPayload{Kind: 1, Flow: 2, FinalOffset: 1000}), msg(2, agent.FSResponse, ok))
	add(accepted(3, 1, 1, 1<<20, 0, 64<<10), msg(3, agent.BulkCredit, agent.BulkCreditPayload{Kind: 1, Flow: 1, ConsumedOffset: 5, CreditLimit: 2 << 20}), msg(3, agent.FSResponse, ok))
	add(accepted(4, 1, 2, 0, 8<<20, 64<<10), record(4, 1, 0, 1000), msg(4, agent.FSResponse, ok))
	add(msg(5, agent.TCPConnected, agent.Empty{}), accepted(5, 2, 3, 1<<20, 8<<20, 64<<10), record(5, 2, 0, 9), msg(5, agent.TCPClosed, agent.Empty{}))
	add(msg(6, agent.FSResponse, agent.FSResponsePayload{OK: true, Data: agent.FSHandle(4)}))
	add(msg(6, agent.Error, agent.ErrorPayload{Kind: "k", Message: "m"}))
	f.Fuzz(fuzzGuest)
}

func fuzzGuest(t *testing.T, stream []byte) {
	// The guest speaks when all six requests are on their way.
	gate := make(chan struct{})
	in := io.MultiReader(bytes.NewReader(append(words(1, 33554431), readyFrame(t, 9, agent.ReadyPayload{})...)), gateReader{gate}, bytes.NewReader(stream))
	peer := &countingPeer{deafPeer: deafPeer{in}, want: 6, gate: gate}
	c, err := New(context.Background(), peer, WithSpool("", 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	file := &File{handle: handle{c: c, id: 1}}
	done := make(chan struct{}, 6)
	run := func(op func()) {
		id := c.engine.IDsLeft()
		go func() { op(); done <- struct{}{} }()
		for c.engine.IDsLeft() == id && c.Err() == nil {
			runtime.Gosched()
		}
	}
	run(func() {
		if e, err := c.Exec(ctx, ExecSpec{Cmd: "x"}); err == nil {
			io.Copy(io.Discard, e.Stdout())
			e.Wait()
		}
	})
	run(func() { file.ReadAt(ctx, make([]byte, 1<<20), 0) })
	run(func() { file.WriteAt(ctx, make([]byte, 1<<20), 0) })
	run(func() { file.Download(ctx, io.Discard, 0, nil) })
	run(func() {
		if conn, err := c.DialTCP(ctx, "h", 1); err == nil {
			go conn.Write(make([]byte, 2<<20))
			io.Copy(io.Discard, conn)
			conn.Close()
		}
	})
	run(func() { c.FS().OpenFile(ctx, "/", agent.OpenOptions{}) })
	for range 6 {
		select {
		case <-done:
		case <-time.After(time.Minute):
			t.Fatal("an operation hangs")
		}
	}
	c.Close()
	if n := c.bulk.Load(); n != 0 {
		t.Errorf("%d bulk operations held", n)
	}
}

type gateReader struct{ gate chan struct{} }

func (g gateReader) Read([]byte) (int, error) { <-g.gate; return 0, io.EOF }

// countingPeer opens its gate after some frames.
type countingPeer struct {
	deafPeer
	want int
	gate chan struct{}
}

func (p *countingPeer) Write(b []byte) (int, error) {
	for rest := b; len(rest) >= frame.Overhead && p.want > 0; {
		rest = rest[min(len(rest), 4+int(binary.BigEndian.Uint32(rest))):]
		if p.want--; p.want == 0 {
			close(p.gate)
		}
	}
	return len(b), nil
}

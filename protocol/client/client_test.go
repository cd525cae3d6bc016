package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"msb/protocol/frame"
)

// toy is a protocol whose envelope is "name payload". Its opening is one
// greeting frame from the peer.
type toy struct {
	ids      IDSpace
	greeting []byte
}

func (p *toy) Setup(ctx context.Context, o *Opening) (IDSpace, error) {
	raw, err := o.ReadFrame(64)
	if err != nil {
		return IDSpace{}, err
	}
	p.greeting = raw
	return p.ids, nil
}

var errUnsupported = errors.New("unsupported")

func (p *toy) Prepare(name string) (Outbound, error) {
	if name == "future" {
		return Outbound{}, errUnsupported
	}
	return Outbound{Name: name, Version: 5}, nil
}

func (p *toy) Encode(payload any) ([]byte, error) { return []byte(fmt.Sprint(payload)), nil }

func (p *toy) AppendFrame(dst []byte, id uint32, out Outbound, payload []byte) ([]byte, error) {
	return frame.Append(dst, id, out.Flags, append([]byte(out.Name+" "), payload...))
}

func (p *toy) Decode(h Header, body []byte) (Message, error) {
	name, payload, ok := bytes.Cut(body, []byte(" "))
	if !ok {
		return Message{}, errors.New("bad envelope")
	}
	return Message{ID: h.ID, Flags: h.Flags, Name: string(name), Payload: payload}, nil
}

func wire(id uint32, flags uint8, body string) []byte {
	b, _ := frame.Append(nil, id, flags, []byte(body))
	return b
}

// connect returns a client and the peer's end, over a synchronous pipe.
func connect(t *testing.T, ids IDSpace) (*Client[*toy], net.Conn) {
	t.Helper()
	goroutines := runtime.NumGoroutine()
	a, b := net.Pipe()
	go b.Write(wire(0, 0, "hi"))
	c, err := New(within(t), a, &toy{ids: ids})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		b.Close()
		for end := time.Now().Add(time.Minute); runtime.NumGoroutine() > goroutines; {
			if time.Now().After(end) {
				buf := make([]byte, 1<<20)
				t.Fatalf("goroutines left:\n%s", buf[:runtime.Stack(buf, true)])
			}
			time.Sleep(time.Millisecond)
		}
	})
	return c, b
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// serve answers each frame with reply until the pipe ends.
func serve(conn net.Conn, reply func(f frame.Frame) []byte) {
	r := frame.NewReader(conn)
	for {
		f, err := r.Next()
		if err != nil {
			return
		}
		if b := reply(f); b != nil {
			if _, err := conn.Write(b); err != nil {
				return
			}
		}
	}
}

func TestCall(t *testing.T) {
	c, peer := connect(t, AllIDs(false))
	go serve(peer, func(f frame.Frame) []byte {
		return wire(f.ID, frame.FlagTerminal, "re:"+string(f.Body))
	})
	if got := string(c.Protocol().greeting[frame.Overhead:]); got != "hi" {
		t.Errorf("setup read %q", got)
	}
	for i := 1; i <= 3; i++ {
		m, err := c.Call(within(t), "hello", i)
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprint(i); m.Name != "re:hello" || string(m.Payload) != want || m.ID != uint32(i) {
			t.Errorf("answer %+v", m)
		}
	}
	if n := c.Active(); n != 0 {
		t.Errorf("%d streams left", n)
	}
}

// A refused message is not sent and its stream stays usable.
func TestPrepareRefuses(t *testing.T) {
	c, peer := connect(t, AllIDs(false))
	got := make(chan string, 10)
	go serve(peer, func(f frame.Frame) []byte { got <- string(f.Body); return nil })
	s, err := c.Open(1)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(within(t), "future", 1); err != errUnsupported {
		t.Errorf("error %v", err)
	}
	if err := s.SendEncoded(within(t), "now", []byte{1, 2, 3}); err != nil {
		t.Error(err)
	}
	if err := s.SendRaw(within(t), 0x42, []byte("raw")); err != nil {
		t.Error(err)
	}
	for _, want := range []string{"now \x01\x02\x03", "raw"} {
		if b := <-got; b != want {
			t.Errorf("peer got %q, want %q", b, want)
		}
	}
}

// One stream sees its frames in order, undecoded, and those of others do not
// reach it; late frames of a finished stream vanish.
func TestRouting(t *testing.T) {
	c, peer := connect(t, IDSpace{First: 10, Last: 20})
	a, _ := c.Open(8)
	b, _ := c.Open(8)
	go func() {
		for _, f := range [][]byte{
			wire(10, 0, "one a"), wire(11, 0, "one b"), wire(99, 0, "nobody x"), wire(0, 1, "zero x"),
			wire(10, 8, "two a"), wire(10, frame.FlagTerminal, "last a"), wire(10, 0, "late a"), wire(10, 1, "late a"),
			wire(11, 0, strings.Repeat("x", 3<<20)+" big"), wire(11, 9, "two b"),
		} {
			peer.Write(f)
		}
	}()
	for _, want := range []string{"one", "two", "last"} {
		if m, err := a.Recv(within(t)); err != nil || m.Name != want {
			t.Fatalf("a got %q, %v; want %q", m.Name, err, want)
		}
	}
	if _, err := a.Recv(within(t)); err != io.EOF {
		t.Errorf("after the terminal: %v", err)
	}
	if m, err := b.Recv(within(t)); err != nil || m.Name != "one" {
		t.Fatal(m, err)
	}
	if h, body, err := b.RecvFrame(within(t)); err != nil || h.Len != 3<<20+4 || len(body) != h.Len {
		t.Fatal(h, err)
	}
	if m, err := b.Recv(within(t)); err != nil || m.Name != "two" || m.Terminal() {
		t.Errorf("a raw record's flags are no terminal: %+v, %v", m, err)
	}
	b.Close()
	if _, err := b.Recv(within(t)); err != ErrStreamClosed {
		t.Errorf("after Close: %v", err)
	}
	if err := b.Send(within(t), "x", 1); err != ErrStreamClosed {
		t.Errorf("send after Close: %v", err)
	}
}

func TestIDsRunOut(t *testing.T) {
	c, peer := connect(t, IDSpace{First: 4294967294, Last: 4294967295})
	go serve(peer, func(f frame.Frame) []byte { return wire(f.ID, frame.FlagTerminal, "ok -") })
	for _, want := range []uint32{4294967294, 4294967295} {
		if m, err := c.Call(within(t), "a", ""); err != nil || m.ID != want {
			t.Fatal(m, err)
		}
	}
	if _, err := c.Call(within(t), "a", ""); !errors.Is(err, ErrIDsExhausted) {
		t.Errorf("error %v", err)
	}
	if c.Err() != nil || c.IDsLeft() != 0 {
		t.Errorf("connection: %v, %d ids left", c.Err(), c.IDsLeft())
	}
}

// A reusable id comes back after its terminal answer and not before, even when
// its owner has left.
func TestReusableIDs(t *testing.T) {
	c, peer := connect(t, IDSpace{First: 1, Last: 2, Reusable: true})
	r := frame.NewReader(peer)
	send := func() *Stream {
		t.Helper()
		s, err := c.Open(1)
		if err != nil {
			t.Fatal(err)
		}
		go s.Send(within(t), "x", "")
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
		return s
	}
	one, two := send(), send()
	one.Close()
	if _, err := c.Open(1); !errors.Is(err, ErrIDsExhausted) {
		t.Fatalf("id 1 is owed an answer: %v", err)
	}
	peer.Write(wire(1, frame.FlagTerminal, "late answer"))
	peer.Write(wire(2, 0, "sync x"))
	two.Recv(within(t))
	again := send()
	if again.ID() != 1 {
		t.Errorf("id %d", again.ID())
	}
	peer.Write(wire(1, frame.FlagTerminal, "own answer"))
	if m, err := again.Recv(within(t)); err != nil || m.Name != "own" {
		t.Errorf("%+v, %v", m, err)
	}
}

// WritePacket sends exactly the bytes and returns when they are out.
func TestWritePacket(t *testing.T) {
	c, peer := connect(t, AllIDs(false))
	packet := []byte("any bytes at all, not even a frame")
	done := make(chan error, 1)
	go func() { done <- c.WritePacket(within(t), packet) }()
	got := make([]byte, len(packet)-1)
	io.ReadFull(peer, got)
	select {
	case err := <-done:
		t.Fatalf("returned before the last byte was taken: %v", err)
	default:
	}
	io.ReadFull(peer, got[:1])
	if err := <-done; err != nil {
		t.Error(err)
	}
	if c.Active() != 0 || c.IDsLeft() != 1<<32-1 {
		t.Error("a packet took an id")
	}
}

type counter struct {
	mu     sync.Mutex
	lost   []error
	frames int
}

func (k *counter) Frame(Header, *Body) { k.mu.Lock(); k.frames++; k.mu.Unlock() }
func (k *counter) Lost(err *LostError) { k.mu.Lock(); k.lost = append(k.lost, err); k.mu.Unlock() }

// Losing the connection ends every stream with one typed error, once.
func TestLost(t *testing.T) {
	cases := map[string]struct {
		end   func(c *Client[*toy], peer net.Conn)
		cause error
	}{
		"peer closes":        {func(_ *Client[*toy], p net.Conn) { p.Close() }, io.EOF},
		"inside a frame":     {func(_ *Client[*toy], p net.Conn) { p.Write(wire(1, 1, "abc def")[:12]); p.Close() }, io.ErrUnexpectedEOF},
		"inside a header":    {func(_ *Client[*toy], p net.Conn) { p.Write([]byte{0, 0, 0}); p.Close() }, io.ErrUnexpectedEOF},
		"frame too large":    {func(_ *Client[*toy], p net.Conn) { p.Write([]byte{0, 0x40, 0, 1, 0, 0, 0, 0, 1}) }, frame.ErrTooLarge},
		"frame too short":    {func(_ *Client[*toy], p net.Conn) { p.Write([]byte{0, 0, 0, 4}) }, frame.ErrTooShort},
		"closed on our side": {func(c *Client[*toy], _ net.Conn) { c.Close() }, ErrClosed},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c, peer := connect(t, AllIDs(false))
			var k [3]counter
			for i := range k {
				if _, err := c.Subscribe(&k[i]); err != nil {
					t.Fatal(err)
				}
			}
			queued, _ := c.Open(1)
			go tc.end(c, peer)
			<-c.Done()
			for i := range k {
				var lost *LostError
				if len(k[i].lost) != 1 || !errors.As(k[i].lost[0], &lost) || !errors.Is(lost, tc.cause) {
					t.Errorf("stream %d ended with %v", i, k[i].lost)
				}
			}
			_, recvErr := queued.Recv(within(t))
			_, openErr := c.Open(1)
			for _, err := range []error{recvErr, openErr, c.Err(), c.WritePacket(within(t), []byte("x"))} {
				if !IsLost(err) || !errors.Is(err, tc.cause) {
					t.Errorf("error %v", err)
				}
			}
			c.Close()
			c.Close()
		})
	}
}

// A peer that reads nothing stops senders at the queue's bound; they can give
// up, and then nothing of theirs is sent.
func TestBackPressure(t *testing.T) {
	c, peer := connect(t, AllIDs(false))
	ctx, cancel := context.WithCancel(within(t))
	payload := bytes.Repeat([]byte("p"), 64<<10)
	var wg sync.WaitGroup
	errs := make(chan error, 100)
	for range 40 { // 2.5 MiB where 1 MiB fits
		s, err := c.Open(1)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() { errs <- s.SendEncoded(ctx, "big", payload) })
	}
	admitted := 0
	for range 15 {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
		admitted++
	}
	cancel()
	wg.Wait()
	close(errs)
	for err := range errs {
		if err == nil {
			admitted++
		} else if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	if admitted > 20 {
		t.Errorf("%d packets of 64 KiB were admitted", admitted)
	}
	s, _ := c.Open(1)
	go s.Send(within(t), "end", "")
	r := frame.NewReader(peer)
	for i := 0; ; i++ {
		f, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if f.ID == s.ID() {
			if i != admitted {
				t.Errorf("%d packets came, %d were admitted", i, admitted)
			}
			return
		}
	}
}

// A full queue of data does not hold up control.
func TestControlPassesData(t *testing.T) {
	c, peer := connect(t, AllIDs(false))
	data, _ := c.Open(1)
	for range 4 {
		p := NewPacket(200 << 10)
		p.B = append(p.B, wire(data.ID(), 0, strings.Repeat("d", 200<<10))...)
		if err := data.SendPacket(within(t), Data, p); err != nil {
			t.Fatal(err)
		}
	}
	ctl, _ := c.Open(1)
	if err := ctl.Send(within(t), "now", ""); err != nil {
		t.Fatal(err)
	}
	r := frame.NewReader(peer)
	for i := range 5 {
		f, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if f.ID == ctl.ID() {
			if i > 1 { // one packet may have been on its way
				t.Errorf("control came after %d packets of data", i)
			}
			return
		}
	}
}

func TestCallCancelled(t *testing.T) {
	c, peer := connect(t, AllIDs(false))
	ctx, cancel := context.WithCancel(within(t))
	go serve(peer, func(frame.Frame) []byte { cancel(); return nil })
	if _, err := c.Call(ctx, "x", ""); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if c.Active() != 0 || c.Err() != nil {
		t.Errorf("%d streams, %v", c.Active(), c.Err())
	}
}

// Setup that never ends is stopped by its context.
func TestSetupBounded(t *testing.T) {
	a, b := net.Pipe()
	defer b.Close()
	ctx, cancel := context.WithCancel(context.Background())
	go func() { b.Write([]byte{0}); cancel() }()
	if _, err := New(ctx, a, &toy{ids: AllIDs(false)}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if _, err := b.Write([]byte("x")); err == nil {
		t.Error("the connection was left open")
	}
}

// Many streams at once, over one connection, each get their own answers.
func TestConcurrent(t *testing.T) {
	c, peer := connect(t, AllIDs(false))
	go serve(peer, func(f frame.Frame) []byte { return wire(f.ID, frame.FlagTerminal, string(f.Body)) })
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			for j := range 20 {
				want := fmt.Sprint(i, j)
				m, err := c.Call(within(t), "echo", want)
				if err != nil || string(m.Payload) != want {
					t.Errorf("%q, %v; want %q", m.Payload, err, want)
				}
			}
		})
	}
	wg.Wait()
}

func FuzzFrames(f *testing.F) {
	f.Add(wire(1, 1, "a b"))
	f.Add(append(wire(1, 0, "a b"), wire(2, 8, "")...))
	f.Add([]byte{0, 0x40, 0, 1, 0, 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, stream []byte) {
		in := append(wire(0, 0, "hi"), stream...)
		c, err := New(context.Background(), &script{r: bytes.NewReader(in)}, &toy{ids: AllIDs(false)})
		if err != nil {
			t.Fatal(err)
		}
		c.Subscribe(&counter{})
		s, err := c.Open(1000)
		if err == nil {
			s.Close()
		}
		<-c.Done()
		c.Close()
	})
}

// script is a peer that has said everything and takes everything.
type script struct{ r io.Reader }

func (s *script) Read(p []byte) (int, error)  { return s.r.Read(p) }
func (s *script) Write(p []byte) (int, error) { return len(p), nil }
func (s *script) Close() error                { return nil }

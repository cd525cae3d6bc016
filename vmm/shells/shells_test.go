package shells

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience bounds what cannot be told to be over.
const patience = 60 * time.Second

// program is a program under the test's hand. What is typed is echoed.
type program struct {
	out    *io.PipeWriter
	in     *io.PipeReader
	once   sync.Once
	done   chan struct{}
	result End

	mu    sync.Mutex
	typed strings.Builder
	sizes []string
	deaf  bool // to SIGHUP
}

func (p *program) Read(b []byte) (int, error) { return p.in.Read(b) }
func (p *program) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.typed.Write(b)
}
func (p *program) Resize(_ context.Context, rows, cols uint16) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sizes = append(p.sizes, fmt.Sprintf("%dx%d", rows, cols))
	return nil
}
func (p *program) Signal(_ context.Context, sig syscall.Signal) error {
	if !p.deaf {
		p.exit(End{Code: -1, Signal: int(sig)})
	}
	return nil
}
func (p *program) Wait() End { <-p.done; return p.result }
func (p *program) Close()    { p.exit(End{Code: -1, Signal: 9}) }
func (p *program) exit(e End) {
	p.once.Do(func() {
		p.result = e
		p.out.Close()
		close(p.done)
	})
}
func (p *program) prints(s string) { _, _ = io.WriteString(p.out, s) }

func (p *program) lastSize() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.sizes) == 0 {
		return ""
	}
	return p.sizes[len(p.sizes)-1]
}

func (p *program) sawTyped() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.typed.String()
}

// rig is a keeper on a socket.
type rig struct {
	t        *testing.T
	path     string
	keeper   *Keeper
	programs chan *program
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, path: filepath.Join(t.TempDir(), "s"), programs: make(chan *program, 100)}
	r.keeper = New(func(_ context.Context, s Spec) (Program, error) {
		if s.Argv[0] == "missing" {
			return nil, fmt.Errorf("%w: no such file", ErrCommand)
		}
		in, out := io.Pipe()
		p := &program{in: in, out: out, done: make(chan struct{})}
		r.programs <- p
		return p, nil
	}, nil)
	l, err := Listen(r.path)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- r.keeper.Serve(l) }()
	t.Cleanup(func() {
		r.keeper.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *rig) open(rows, cols uint16) (*Front, *program) {
	r.t.Helper()
	f, err := Open(r.t.Context(), r.path, Spec{Argv: []string{"sh"}, Rows: rows, Cols: cols})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { f.Close() })
	return f, <-r.programs
}

func (r *rig) attach(id uint32, rows, cols uint16) *Front {
	r.t.Helper()
	f, err := Attach(r.t.Context(), r.path, id, rows, cols)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { f.Close() })
	return f
}

// sees reads until want was drawn and returns everything.
func sees(t *testing.T, f *Front, want string) string {
	t.Helper()
	var all strings.Builder
	buf := make([]byte, 4096)
	for !strings.Contains(all.String(), want) {
		n, err := f.Read(buf)
		all.Write(buf[:n])
		if err != nil {
			t.Fatalf("%v before %q; drawn: %q", err, want, all.String())
		}
	}
	return all.String()
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never: " + what)
		}
	}
}

// A front end leaves, the shell lives on, and who comes back sees what it missed.
func TestShellOutlivesItsFrontEnd(t *testing.T) {
	r := newRig(t)
	f, p := r.open(24, 80)
	p.prints("before\r\n")
	if s := sees(t, f, "before"); strings.Contains(s, "\x1b") {
		t.Errorf("a new shell was drawn over what the terminal shows: %q", s)
	}
	f.Close()
	until(t, "it left", func() bool { return r.keeper.List()[0].Attached == 0 })
	p.prints("meanwhile\r\n")
	f = r.attach(0, 24, 80)
	if s := sees(t, f, "meanwhile"); !strings.HasPrefix(s, clearScreen) || !strings.Contains(s, "before") {
		t.Errorf("drawn: %q", s)
	}
	if _, err := f.Write([]byte("ls\r")); err != nil {
		t.Fatal(err)
	}
	until(t, "it was typed", func() bool { return p.sawTyped() == "ls\r" })
	p.prints("bye")
	p.exit(End{Code: 7})
	rest, err := io.ReadAll(f)
	if e, rerr := f.Result(); err != nil || rerr != nil || e.Code != 7 || !strings.HasSuffix(string(rest), "bye") {
		t.Errorf("%q, %v, %+v, %v", rest, err, e, rerr)
	}
	until(t, "it was forgotten", func() bool { return len(r.keeper.List()) == 0 })
}

// A shell that ends with nobody there keeps its last words and its exit code.
func TestEndUnseen(t *testing.T) {
	r := newRig(t)
	f, p := r.open(24, 80)
	f.Close()
	p.prints("last words")
	p.exit(End{Code: 3})
	until(t, "it ended", func() bool { l := r.keeper.List(); return len(l) == 1 && l[0].Ended != nil && l[0].Attached == 0 })
	if _, err := Attach(t.Context(), r.path, 0, 1, 1); !errors.Is(err, ErrNotFound) {
		t.Errorf("the last shell that lives: %v", err)
	}
	f = r.attach(1, 24, 80)
	all, err := io.ReadAll(f)
	if e, _ := f.Result(); err != nil || e.Code != 3 || !strings.Contains(string(all), "last words") {
		t.Errorf("%q %v %+v", all, err, e)
	}
	until(t, "it was forgotten", func() bool { return len(r.keeper.List()) == 0 })
}

// The terminal has the size of the front end that was used last.
func TestSizeOfTheLastActive(t *testing.T) {
	r := newRig(t)
	f, p := r.open(24, 80)
	g := r.attach(1, 40, 120)
	until(t, "the size of who came last", func() bool { return p.lastSize() == "40x120" })
	if _, err := f.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	until(t, "the size of who typed last", func() bool { return p.lastSize() == "24x80" })
	if err := g.Resize(41, 121); err != nil {
		t.Fatal(err)
	}
	until(t, "the size of who was resized last", func() bool { return p.lastSize() == "41x121" })
	var mu sync.Mutex
	var told string
	f.Sized = func(rows, cols uint16) {
		mu.Lock()
		defer mu.Unlock()
		told = fmt.Sprintf("%dx%d", rows, cols)
	}
	p.prints("here")
	sees(t, f, "here")
	mu.Lock()
	if told != "41x121" {
		t.Errorf("the other front end was told %q", told)
	}
	mu.Unlock()
	g.Close()
	until(t, "the size of who is left", func() bool { return p.lastSize() == "24x80" })
}

// A program that draws the whole screen is made to draw it anew.
func TestRedraw(t *testing.T) {
	r := newRig(t)
	f, p := r.open(24, 80)
	p.prints("\x1b[?1049h\x1b[?1000hfull")
	sees(t, f, "full")
	if got, want := f.Leave(), "\x1b[?1000l\x1b[?1049l\x1b[0m"; got != want {
		t.Errorf("leaves with %q, want %q", got, want)
	}
	f.Close()
	until(t, "it left", func() bool { return r.keeper.List()[0].Attached == 0 })
	r.attach(1, 24, 80)
	until(t, "two sizes", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return strings.HasSuffix(strings.Join(p.sizes, " "), "24x79 24x80")
	})
}

// The past asks nothing, and neither does a shell whose user sits elsewhere.
func TestOnlyTheOneInUseIsAsked(t *testing.T) {
	r := newRig(t)
	f, p := r.open(24, 80)
	const ask = "\x1b[6n\x1b[c\x1bZ\x1b]52;c;eA==\a\x1b]11;?\x1b\\\x1bP$qm\x1b\\\a\x05"
	p.prints("one" + ask + "two")
	if s := sees(t, f, "two"); !strings.Contains(s, ask) {
		t.Errorf("the terminal in use was not asked: %q", s)
	}
	g := r.attach(1, 24, 80)
	if s := sees(t, g, "two"); strings.TrimPrefix(s, clearScreen) != "onetwo" {
		t.Errorf("the past: %q", s)
	}
	p.prints(ask + "three")
	if s := sees(t, g, "three"); s != ask+"three" {
		t.Errorf("in use: %q", s)
	}
	if s := sees(t, f, "three"); s != "three" {
		t.Errorf("not in use: %q", s)
	}
}

// What is kept is bounded, begins at a whole sequence, and in the modes of then.
func TestScrollbackIsBounded(t *testing.T) {
	r := newRig(t)
	f, p := r.open(24, 80)
	f.Close()
	p.prints("\x1b[?2004h\x1b[?25l")
	line := "\x1b[31m" + strings.Repeat("x", 90) + "\x1b[0m\r\n"
	for range 20000 {
		p.prints(line)
	}
	p.prints("\x1b[?25hend")
	if kept := r.keeper.List()[0].Kept; kept > maxKept {
		t.Errorf("%d bytes are kept", kept)
	}
	s := sees(t, r.attach(1, 24, 80), "end")
	begin := clearScreen + "\x1b[?25l\x1b[?2004h"
	if !strings.HasPrefix(s, begin) {
		t.Fatalf("it begins with %q", s[:60])
	}
	for l := range strings.SplitSeq(strings.TrimSuffix(s[len(begin):], "\x1b[?25hend"), "\n") {
		if l = strings.TrimLeft(l, "x"); l != "" && l != "\r" && l != "\x1b[0m\r" && l+"\n" != line && !strings.HasPrefix(l, "\x1b[31mx") && !strings.HasPrefix(l, "\x1b[31m") {
			t.Fatalf("a piece of a sequence: %q", l)
		}
	}
}

// A front end that takes nothing holds nobody up for long, and is shown the rest
// when it comes to itself.
func TestSlowFrontEnd(t *testing.T) {
	r := newRig(t)
	slow, p := r.open(24, 80)
	fast := r.attach(1, 24, 80)
	go func() {
		chunk := strings.Repeat("y", 1023) + "\n"
		for range 3000 {
			p.prints(chunk)
		}
		p.prints("finished")
	}()
	sees(t, fast, "finished")
	sees(t, slow, "finished")
}

func TestKillAndWatch(t *testing.T) {
	r := newRig(t)
	lists := make(chan []Info, 100)
	ctx, cancel := context.WithCancel(t.Context())
	watched := make(chan error, 1)
	go func() { watched <- Watch(ctx, r.path, func(l []Info) { lists <- l }) }()
	wait := func(what string, ok func([]Info) bool) {
		t.Helper()
		for end := time.After(patience); ; {
			select {
			case l := <-lists:
				if ok(l) {
					return
				}
			case <-end:
				t.Fatal("never: " + what)
			}
		}
	}
	wait("none", func(l []Info) bool { return len(l) == 0 })
	f, p := r.open(24, 80)
	wait("one", func(l []Info) bool { return len(l) == 1 })
	p.prints("\x1b]2;v\xff\x07")
	wait("a title", func(l []Info) bool { return len(l) == 1 && l[0].Title != "" })
	p.prints("\x1b]0;vim x\x07")
	wait("another title", func(l []Info) bool { return len(l) == 1 && l[0].Title == "vim x" })
	if err := Kill(t.Context(), r.path, 1); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, f)
	if e, err := f.Result(); err != nil || e.Signal != int(syscall.SIGHUP) {
		t.Errorf("%+v %v", e, err)
	}
	wait("none again", func(l []Info) bool { return len(l) == 0 })
	_, p = r.open(24, 80)
	p.deaf = true
	if err := Kill(t.Context(), r.path, 2); err != nil {
		t.Fatal(err)
	}
	if e := p.Wait(); e.Signal != 9 {
		t.Errorf("%+v", e)
	}
	if err := Kill(t.Context(), r.path, 9); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	cancel()
	if err := <-watched; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestBounds(t *testing.T) {
	r := newRig(t)
	_, first := r.open(1, 2)
	for range MaxShells - 1 {
		r.open(1, 2)
	}
	if _, err := Open(t.Context(), r.path, Spec{Argv: []string{"sh"}}); !errors.Is(err, ErrTooMany) {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), r.path, Spec{Argv: []string{"missing"}}); !errors.Is(err, ErrTooMany) {
		t.Fatal(err)
	}
	first.exit(End{})
	until(t, "room", func() bool { return len(r.keeper.List()) < MaxShells || r.keeper.List()[0].Ended != nil })
	if _, err := Open(t.Context(), r.path, Spec{Argv: []string{"missing"}}); err != nil && !errors.Is(err, ErrCommand) && !errors.Is(err, ErrTooMany) {
		t.Fatal(err)
	}
	for _, s := range []Spec{{}, {Argv: make([]string, 100)}, {Argv: []string{strings.Repeat("x", 40<<10)}}} {
		if _, err := Open(t.Context(), r.path, s); err == nil {
			t.Errorf("%d words were taken", len(s.Argv))
		}
	}
}

// The sandbox ends under its front ends.
func TestKeeperEnds(t *testing.T) {
	r := newRig(t)
	f, _ := r.open(24, 80)
	r.keeper.Close()
	if _, err := io.Copy(io.Discard, f); err != nil {
		t.Log(err) // it may be cut off
	}
	if e, err := f.Result(); err == nil && e.Code == 0 {
		t.Errorf("%+v", e)
	}
}

func TestHostileFrontEnds(t *testing.T) {
	r := newRig(t)
	r.open(24, 80)
	for _, b := range []string{"", "q", "q\x00\x00\x00\x02{}", "q\xff\xff\xff\xff", "i\x00\x00\x00\x00", "q\x00\x00\x00\x05hello",
		"q\x00\x00\x00\x0c{\"op\":\"open\"}", "q\x00\x00\x00\x15{\"op\":\"attach\",\"id\":1}s\x00\x00\x00\x01x",
		"q\x00\x00\x00\x15{\"op\":\"attach\",\"id\":1}z\x00\x00\x00\x00"} {
		c, err := net.Dial("unix", r.path)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, b)
		_ = c.(*net.UnixConn).CloseWrite()
		_, _ = io.Copy(io.Discard, c)
		c.Close()
	}
	if l, err := List(t.Context(), r.path); err != nil || len(l) != 1 {
		t.Errorf("%v %v", l, err)
	}
}

func FuzzFilter(f *testing.F) {
	f.Add([]byte("a\x1b[31mb\x1b]0;t\x07c\x1bP$q\x1b\\\xc2\x9b6n"), 3)
	f.Add([]byte("\x1b[?1049h\x1b[>1u\xc2\x1b[c"), 1)
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		n = max(1, min(n, 64))
		var whole, split filter
		var m Modes
		want := string(whole.pass(b, false))
		var got []byte
		for p := b; len(p) > 0; p = p[min(n, len(p)):] {
			got = append(got, split.pass(p[:min(n, len(p))], false)...)
		}
		if string(got) != want {
			t.Fatalf("in pieces of %d: %q, at once: %q", n, got, want)
		}
		m.Write(b)
		if s := m.Enter() + m.Leave(); len(s) > 4096 {
			t.Fatalf("%q", s)
		}
		for _, ask := range []string{"\x1b[6n", "\x1b[c", "\x1b]52;", "\x1bZ", "\x1bP", "\a\a", "\xc2\x9bc", "\x05"} {
			if strings.Contains(want, ask) {
				t.Fatalf("%q lets %q through", b, ask)
			}
		}
	})
}

// Package shell holds terminals into a sandbox. What a program in there prints
// is read by an emulator, and nobody else: it draws into its own cells and
// nowhere else. Only here programs may draw at all.
package shell

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	tea "charm.land/bubbletea/v2"
	uv "github.com/charmbracelet/ultraviolet"
	"github.com/charmbracelet/x/vt"

	"msb/tui/foreign"
	"msb/tui/pane"
)

// Process is a program on a terminal of the sandbox.
type Process interface {
	io.ReadWriter
	Resize(ctx context.Context, rows, cols uint16) error
	// Wait returns when the program has ended, or was left.
	Wait() (code int, err error)
	// Close ends it, or leaves it where the runtime keeps it.
	Close() error
}

// Opener starts a program on a terminal of a size.
type Opener func(ctx context.Context, rows, cols uint16) (Process, error)

// Messages of a shell.
type (
	// OutputMsg is what a program printed.
	OutputMsg struct {
		ID   int
		Data []byte
	}
	// EndedMsg says that it has ended, or could not be started.
	EndedMsg struct {
		ID   int
		Code int
		Err  error
	}
	// StartedMsg says that it runs. Kept is its id where the runtime keeps it.
	StartedMsg struct {
		ID   int
		Kept uint32
	}
	// SizedMsg says what size the terminal has: another front end may be the one
	// that decides.
	SizedMsg struct {
		ID         int
		Rows, Cols int
	}
)

// keptProcess is a process that outlives its front ends.
type keptProcess interface {
	Process
	Kept() uint32
	// OnSize, called before the first Read, sets who learns the terminal's size.
	OnSize(func(rows, cols uint16))
}

const (
	scrollback = 2000 // lines
	inputQueue = 256  // pieces
	readSize   = 32 << 10
	maxOutput  = 128 << 10 // of one message
	gather     = 8 * time.Millisecond
)

// States of a shell.
const (
	starting = "starting"
	running  = "running"
	ended    = "ended"
)

// Shell is one terminal. Its methods but Close are for the one goroutine that
// draws.
type Shell struct {
	ID    int
	state string
	why   string
	title string
	emu   *vt.Emulator
	bell  bool

	rows, cols int // that it is drawn in
	back       int // lines scrolled back
	send       func(tea.Msg)
	ctx        context.Context
	end        context.CancelFunc
	work       sync.WaitGroup
	input      chan []byte
	size       chan [2]uint16
}

// Open starts a shell of a size.
func Open(id int, open Opener, rows, cols int, send func(tea.Msg)) *Shell {
	s := &Shell{ID: id, state: starting, rows: max(rows, 1), cols: max(cols, 2), send: send,
		input: make(chan []byte, inputQueue), size: make(chan [2]uint16, 1)}
	s.ctx, s.end = context.WithCancel(context.Background())
	s.reset()
	s.work.Go(func() { s.run(open) })
	return s
}

// reset makes a fresh emulator, and a reader of its answers.
func (s *Shell) reset() {
	if s.emu != nil {
		closeInput(s.emu)
	}
	e := vt.NewEmulator(s.cols, s.rows)
	e.SetScrollbackSize(scrollback)
	e.SetCallbacks(vt.Callbacks{
		Title: func(t string) { s.title = foreign.Text(clip(t)) },
		Bell:  func() { s.bell = true },
	})
	s.emu = e
	// Keys and answers of the emulator come out here. This never waits, so that
	// neither drawing nor typing ever does.
	s.work.Go(func() {
		buf := make([]byte, 4096)
		for {
			n, err := e.Read(buf)
			if n > 0 {
				select {
				case s.input <- append([]byte(nil), buf[:n]...):
				default: // a program that reads nothing loses what is typed
				}
			}
			if err != nil {
				return
			}
		}
	})
}

func closeInput(e *vt.Emulator) {
	if c, ok := e.InputPipe().(io.Closer); ok {
		c.Close()
	}
}

func clip(s string) string {
	if len(s) > 200 {
		return s[:200]
	}
	return s
}

// run starts the program and carries its bytes.
func (s *Shell) run(open Opener) {
	p, err := open(s.ctx, uint16(s.rows), uint16(s.cols))
	if err != nil {
		s.send(EndedMsg{ID: s.ID, Code: -1, Err: err})
		return
	}
	defer p.Close()
	defer context.AfterFunc(s.ctx, func() { p.Close() })()
	started := StartedMsg{ID: s.ID}
	if k, ok := p.(keptProcess); ok {
		started.Kept = k.Kept()
		k.OnSize(func(rows, cols uint16) { s.send(SizedMsg{s.ID, int(rows), int(cols)}) })
	}
	s.send(started)
	ctx, cancel := context.WithCancel(s.ctx)
	var work sync.WaitGroup
	work.Go(func() {
		for {
			select {
			case b := <-s.input:
				if _, err := p.Write(b); err != nil {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	})
	work.Go(func() {
		for {
			select {
			case z := <-s.size:
				_ = p.Resize(ctx, z[0], z[1])
			case <-ctx.Done():
				return
			}
		}
	})
	s.carry(p)
	code, err := p.Wait()
	cancel()
	p.Close()
	work.Wait()
	s.send(EndedMsg{ID: s.ID, Code: code, Err: err})
}

// carry hands output on in pieces as large as they come.
func (s *Shell) carry(r io.Reader) {
	pieces := make(chan []byte, 8)
	var reader sync.WaitGroup
	reader.Go(func() {
		defer close(pieces)
		for {
			buf := make([]byte, readSize)
			n, err := r.Read(buf)
			if n > 0 {
				select {
				case pieces <- buf[:n]:
				case <-s.ctx.Done():
					return
				}
			}
			if err != nil {
				return
			}
		}
	})
	defer reader.Wait()
	for p := range pieces {
		wait := time.NewTimer(gather)
	more:
		for len(p) < maxOutput {
			select {
			case q, ok := <-pieces:
				if !ok {
					break more
				}
				p = append(p, q...)
			case <-wait.C:
				break more
			}
		}
		wait.Stop()
		s.send(OutputMsg{s.ID, p})
	}
}

// Close ends the program and waits.
func (s *Shell) Close() {
	s.end()
	closeInput(s.emu)
	s.work.Wait()
}

// Started takes note that the program runs.
func (s *Shell) Started() { s.state = running }

// Ended takes note of the end.
func (s *Shell) Ended(m EndedMsg) {
	s.state = ended
	switch {
	case m.Err != nil:
		s.why = foreign.Text(m.Err.Error())
	default:
		s.why = fmt.Sprintf("ended with exit code %d", m.Code)
	}
}

// Starting tells whether it is not known yet what became of it.
func (s *Shell) Starting() bool { return s.state == starting }

// Over tells whether the program has ended.
func (s *Shell) Over() bool { return s.state == ended }

// Output lets the emulator read what the program printed.
func (s *Shell) Output(b []byte) {
	defer func() {
		if r := recover(); r != nil { // of the emulator: it begins anew
			s.reset()
			s.why = "the terminal was reset: it could not draw what the program printed"
		}
	}()
	if s.back > 0 {
		before := s.emu.ScrollbackLen()
		defer func() { s.back = min(s.back+s.emu.ScrollbackLen()-before, s.emu.ScrollbackLen()) }()
	}
	_, _ = s.emu.Write(b)
}

// Key types a key.
func (s *Shell) Key(k tea.KeyPressMsg) {
	s.back = 0
	if k.Text != "" && k.Mod&tea.ModAlt == 0 {
		s.emu.SendText(k.Text)
		return
	}
	s.emu.SendKey(uv.KeyPressEvent(uv.Key{Text: k.Text, Mod: k.Mod, Code: k.Code, ShiftedCode: k.ShiftedCode, BaseCode: k.BaseCode}))
}

// Paste pastes.
func (s *Shell) Paste(text string) {
	s.back = 0
	s.emu.Paste(text)
}

// Mouse hands a mouse event at a place of the emulator on; the wheel scrolls
// where the program does not want it.
func (s *Shell) Mouse(m uv.MouseEvent) {
	s.emu.SendMouse(m)
}

// Scroll goes back by lines.
func (s *Shell) Scroll(lines int) {
	s.back = max(0, min(s.back-lines, s.emu.ScrollbackLen()))
}

// Back tells how many lines the view is scrolled back.
func (s *Shell) Back() int { return s.back }

// Full tells whether a program draws on the whole screen.
func (s *Shell) Full() bool { return s.emu.IsAltScreen() }

// Bell tells once that the bell was rung.
func (s *Shell) Bell() bool {
	b := s.bell
	s.bell = false
	return b
}

// Title is what the program calls itself, safe.
func (s *Shell) Title() string { return s.title }

// Note says what there is to say about the shell.
func (s *Shell) Note() string {
	switch {
	case s.state == starting:
		return "opening a shell …"
	case s.back > 0:
		return fmt.Sprintf("%d lines back", s.back)
	}
	return s.why
}

// Resize changes the size.
func (s *Shell) Resize(w, h int) {
	w, h = max(w, 2), max(h, 1)
	if w == s.cols && h == s.rows {
		return
	}
	s.cols, s.rows = w, h
	s.emu.Resize(w, h)
	select {
	case <-s.size:
	default:
	}
	select {
	case s.size <- [2]uint16{uint16(h), uint16(w)}:
	default:
	}
}

// Sized takes note of the terminal's size, which is that of the front end in use.
func (s *Shell) Sized(m SizedMsg) {
	const most = 1000 // cells either way
	w, h := max(2, min(m.Cols, most)), max(1, min(m.Rows, most))
	if w != s.emu.Width() || h != s.emu.Height() {
		s.emu.Resize(w, h)
	}
}

// View draws the terminal; cursor is nil when it is hidden. A terminal that is
// larger is cut.
func (s *Shell) View(w, h int) (lines []string, cursor *tea.Cursor) {
	s.Resize(w, h)
	if s.back > 0 {
		sb := s.emu.Scrollback()
		first := max(sb.Len()-s.back, 0)
		for i := first; i < sb.Len() && len(lines) < h; i++ {
			lines = append(lines, foreign.Styled(sb.Line(i).Render()))
		}
	}
	p := s.emu.CursorPosition()
	skip := 0
	if s.back == 0 {
		skip = max(0, min(p.Y-h+1, s.emu.Height()-h))
	}
	p.Y -= skip
	for l := range lineSeq(foreign.Styled(s.emu.Render())) {
		if len(lines) == h {
			break
		}
		if skip > 0 {
			skip--
			continue
		}
		lines = append(lines, l)
	}
	if s.back == 0 && !s.emu.CursorHidden() && s.state == running {
		if p.X < w && p.Y < h {
			cursor = tea.NewCursor(p.X, p.Y)
			cursor.Blink = false
		}
	}
	return pane.Block(lines, w, h), cursor
}

func lineSeq(s string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for s != "" {
			i := 0
			for i < len(s) && s[i] != '\n' {
				i++
			}
			if !yield(s[:i]) {
				return
			}
			if i == len(s) {
				return
			}
			s = s[i+1:]
		}
	}
}

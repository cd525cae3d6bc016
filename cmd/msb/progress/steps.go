// Package progress shows what a long command does: aligned lines, one a step, with a bar or a spinner while a step
// runs on a terminal and plain lines everywhere else.
package progress

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"msb/cmd/msb/terminal"
)

// Steps prints steps to one writer. Its methods may be called from several goroutines.
type Steps struct {
	w      io.Writer
	live   bool // a terminal: a line may be drawn again
	colour bool
	quiet  bool
	width  func() int
	now    func() time.Time

	mu     sync.Mutex
	active *Step
}

// New returns steps on w, which is drawn on as a terminal when tty is set. Quiet steps print nothing.
func New(s *terminal.Streams, w io.Writer, tty, quiet bool) *Steps {
	return &Steps{w: w, live: tty && s.Env("TERM") != "dumb", colour: tty && s.Colour(), quiet: quiet, width: s.Width, now: time.Now}
}

const indent = "           " // under the text of a step

// Line prints one finished step.
func (s *Steps) Line(stage, format string, args ...any) {
	if s.quiet {
		return
	}
	s.print(fmt.Sprintf("  %-8s %s", stage, terminal.Indented(fmt.Sprintf(format, args...), indent)))
}

// More prints a further line of the step before.
func (s *Steps) More(format string, args ...any) {
	if s.quiet {
		return
	}
	s.print(indent + terminal.Indented(fmt.Sprintf(format, args...), indent))
}

// Warn prints a line that stands out.
func (s *Steps) Warn(stage, format string, args ...any) {
	if s.quiet {
		return
	}
	text := terminal.Indented(fmt.Sprintf(format, args...), indent)
	if s.colour {
		text = "\x1b[33m" + text + "\x1b[0m"
	}
	s.print(fmt.Sprintf("  %-8s %s", stage, text))
}

func (s *Steps) print(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.erase()
	fmt.Fprintln(s.w, line)
	if s.active != nil {
		s.active.drawLocked()
	}
}

// erase takes the line of the running step off the terminal.
func (s *Steps) erase() {
	if s.active != nil && s.active.drawn {
		fmt.Fprint(s.w, "\r\x1b[K")
		s.active.drawn = false
	}
}

// Step is one that takes a while.
type Step struct {
	steps    *Steps
	stage    string
	started  time.Time
	text     string
	fraction float64
	drawn    bool
	stop     chan struct{}
	ended    sync.WaitGroup
	once     sync.Once
}

// Start begins a step and ends the one before it silently.
func (s *Steps) Start(stage, format string, args ...any) *Step {
	st := &Step{steps: s, stage: stage, started: s.now(), text: fmt.Sprintf(format, args...), fraction: -1, stop: make(chan struct{})}
	s.mu.Lock()
	before := s.active
	s.mu.Unlock()
	if before != nil {
		before.Drop()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active = st
	if s.quiet || !s.live {
		return st
	}
	st.drawLocked()
	st.ended.Go(st.animate)
	return st
}

// Update says how far the step is; a negative fraction means that nobody knows.
func (st *Step) Update(text string, fraction float64) {
	st.steps.mu.Lock()
	defer st.steps.mu.Unlock()
	plain := !st.steps.live && !st.steps.quiet && text != st.text
	st.text, st.fraction = text, fraction
	if plain && st.steps.active == st {
		fmt.Fprintf(st.steps.w, "  %-8s %s\n", st.stage, terminal.Clean(text))
	}
}

// Note says what happens now: on a terminal a running step that the next one replaces, else a plain line.
func (s *Steps) Note(stage, text string) {
	if s.live && !s.quiet {
		s.Start(stage, "%s", text)
		return
	}
	s.Line(stage, "%s", text)
}

// End ends the step that Note or Start began, without a line of its own.
func (s *Steps) End() {
	s.mu.Lock()
	st := s.active
	s.mu.Unlock()
	if st != nil {
		st.Drop()
	}
}

// Done ends the step with its final line; the elapsed time is added when it took a second or more.
func (st *Step) Done(format string, args ...any) {
	took := st.steps.now().Sub(st.started)
	st.Drop()
	text := fmt.Sprintf(format, args...)
	if took >= time.Second {
		text += fmt.Sprintf("  (%s)", Seconds(took))
	}
	st.steps.Line(st.stage, "%s", text)
}

// Drop ends the step without a line; an error message follows.
func (st *Step) Drop() {
	st.once.Do(func() {
		close(st.stop)
		st.ended.Wait()
		st.steps.mu.Lock()
		defer st.steps.mu.Unlock()
		if st.steps.active == st {
			st.steps.erase()
			st.steps.active = nil
		}
	})
}

func (st *Step) animate() {
	tick := time.NewTicker(120 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-st.stop:
			return
		case <-tick.C:
			st.steps.mu.Lock()
			if st.steps.active == st {
				st.drawLocked()
			}
			st.steps.mu.Unlock()
		}
	}
}

const barCells = 20

// drawLocked draws the running step's line over itself.
func (st *Step) drawLocked() {
	s := st.steps
	if s.quiet || !s.live {
		return
	}
	took := s.now().Sub(st.started)
	line := fmt.Sprintf("  %-8s %s ", st.stage, terminal.Clean(strings.ReplaceAll(st.text, "\n", " ")))
	if st.fraction >= 0 {
		line += fmt.Sprintf("%s %3.0f %%  %s", Bar(st.fraction, barCells), 100*min(st.fraction, 1), Seconds(took))
	} else {
		frames := []rune("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")
		line += string(frames[int(took/(120*time.Millisecond))%len(frames)])
		if took >= time.Second {
			line += "  " + Seconds(took)
		}
	}
	fmt.Fprint(s.w, "\r", Cut(line, s.width()-1), "\x1b[K")
	st.drawn = true
}

// Bar is a bar of cells columns.
func Bar(fraction float64, cells int) string {
	full := int(min(max(fraction, 0), 1)*float64(cells) + 0.5)
	return strings.Repeat("█", full) + strings.Repeat("░", cells-full)
}

// Cut shortens text to width runes, which is what the lines of this package need to stay on one row.
func Cut(text string, width int) string {
	if width <= 0 || utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:width-1]) + "…"
}

// Seconds is a duration as the step lines show it.
func Seconds(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	}
	return fmt.Sprintf("%d min %02d s", int(d.Minutes()), int(d.Seconds())%60)
}

// Bytes is a size as people read it.
func Bytes(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	v, i := float64(n), 0
	for v >= 1024 && i < len(units)-1 {
		v /= 1024
		i++
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.4g %s", v, units[i])
}

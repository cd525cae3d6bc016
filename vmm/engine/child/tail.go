package child

import (
	"strings"
	"sync"
	"unicode"
)

// Tail keeps the last bytes written to it. Safe for concurrent use.
type Tail struct {
	mu    sync.Mutex
	limit int
	buf   []byte
}

// NewTail keeps limit bytes.
func NewTail(limit int) *Tail { return &Tail{limit: limit} }

// Write never fails.
func (t *Tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(p)
	if len(p) > t.limit {
		p = p[len(p)-t.limit:]
	}
	if over := len(t.buf) + len(p) - t.limit; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	t.buf = append(t.buf, p...)
	return n, nil
}

// String is what is kept, as it was written.
func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf)
}

// Line is what is kept as one line fit for a terminal: control characters gone, lines joined by "; ".
func (t *Tail) Line() string { return Printable(t.String()) }

// Printable makes one line of s that is safe to show: control and format characters and invalid UTF-8 are dropped,
// line ends become "; ".
func Printable(s string) string {
	var lines []string
	for line := range strings.Lines(strings.ToValidUTF8(s, "")) {
		line = strings.Map(func(r rune) rune {
			if r == '\t' {
				return ' '
			}
			if !unicode.IsPrint(r) {
				return -1
			}
			return r
		}, line)
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "; ")
}

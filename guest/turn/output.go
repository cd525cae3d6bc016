package turn

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"msb/protocol/turnrpc"
)

// keptOutput keeps the beginning and the end of a stream in bounded memory.
type keptOutput struct {
	limit int
	head  []byte
	tail  []byte // a ring once it is full
	at    int    // where the ring begins
	total int64
}

func (k *keptOutput) write(b []byte) {
	k.total += int64(len(b))
	if room := k.limit/2 - len(k.head); room > 0 {
		n := min(room, len(b))
		k.head, b = append(k.head, b[:n]...), b[n:]
	}
	ring := k.limit - k.limit/2
	if len(b) > ring {
		b = b[len(b)-ring:]
	}
	if n := min(ring-len(k.tail), len(b)); n > 0 {
		k.tail, b = append(k.tail, b[:n]...), b[n:]
	}
	for len(b) > 0 {
		n := copy(k.tail[k.at:], b)
		b, k.at = b[n:], (k.at+n)%len(k.tail)
	}
}

func (k *keptOutput) cut() bool { return k.total > int64(len(k.head)+len(k.tail)) }

// String is the output with a mark where the middle was. What is no UTF-8 is replaced.
func (k *keptOutput) String() string {
	tail := string(k.tail[k.at:]) + string(k.tail[:k.at])
	if !k.cut() {
		return strings.ToValidUTF8(string(k.head)+tail, "\uFFFD")
	}
	head := string(k.head)
	for i := 0; i < utf8.UTFMax && len(tail) > 0 && !utf8.RuneStart(tail[0]); i++ {
		tail = tail[1:]
	}
	if i := strings.LastIndexFunc(head, func(r rune) bool { return r != utf8.RuneError }); i >= 0 && len(head)-i <= 2*utf8.UTFMax {
		_, n := utf8.DecodeRuneInString(head[i:])
		head = head[:i+n]
	}
	gone := k.total - int64(len(head)+len(tail))
	return strings.ToValidUTF8(head, "\uFFFD") + fmt.Sprintf("\n… [%d bytes left out] …\n", gone) + strings.ToValidUTF8(tail, "\uFFFD")
}

// outputStream is one output of a running command.
type outputStream struct {
	name string
	kept keptOutput
}

func newOutput(name string, keep int) *outputStream {
	return &outputStream{name: name, kept: keptOutput{limit: keep}}
}

// Output is handed on in pieces of at least some size or age, so that a command that prints byte by byte makes no
// event of each.
const (
	livePiece = 16 << 10
	livePause = 50 * time.Millisecond
)

// pump reads until the output ends. With live, a second goroutine hands on what has come while this one reads; at most
// four pieces wait.
func (o *outputStream) pump(ctx context.Context, r io.Reader, live func(stream, text string) error) {
	buf := make([]byte, livePiece)
	if live == nil {
		for {
			n, err := r.Read(buf)
			o.kept.write(buf[:n])
			if err != nil {
				return
			}
		}
	}
	pieces := make(chan []byte, 4)
	var sending sync.WaitGroup
	sending.Go(func() { o.handOn(pieces, live) })
	for {
		n, err := r.Read(buf)
		o.kept.write(buf[:n])
		if n > 0 {
			select {
			case pieces <- append([]byte{}, buf[:n]...):
			case <-ctx.Done(): // it is being killed; what it still prints is kept only
			}
		}
		if err != nil {
			break
		}
	}
	close(pieces)
	sending.Wait()
}

// handOn joins pieces and sends them, whole characters only.
func (o *outputStream) handOn(pieces <-chan []byte, live func(stream, text string) error) {
	var pending []byte
	var failed error
	timer := time.NewTimer(0)
	<-timer.C
	defer timer.Stop()
	waiting := false // the timer runs
	send := func(all bool) {
		whole := pending
		if !all {
			whole = pending[:wholeRunes(pending)]
		}
		if len(whole) > 0 && failed == nil {
			failed = live(o.name, strings.ToValidUTF8(string(whole), "\uFFFD"))
		}
		pending = append([]byte{}, pending[len(whole):]...)
		waiting = false
	}
	for {
		select {
		case piece, ok := <-pieces:
			if !ok {
				send(true)
				return
			}
			pending = append(pending, piece...)
			if len(pending) >= livePiece {
				timer.Stop()
				send(false)
			} else if !waiting {
				timer.Reset(livePause)
				waiting = true
			}
		case <-timer.C:
			send(false)
		}
	}
}

// wholeRunes is the length of b without the beginning of a character at its end.
func wholeRunes(b []byte) int {
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		if c := b[len(b)-i]; utf8.RuneStart(c) {
			if !utf8.FullRune(b[len(b)-i:]) {
				return len(b) - i
			}
			break
		}
	}
	return len(b)
}

// maxLive bounds what is shown of one command as it comes; the end is shown in any case.
const (
	maxLive  = 1 << 20
	liveTail = 8 << 10
)

// live sends a command's output to the host as events.
type live struct {
	t    *turn
	call toolCall

	mu   sync.Mutex // keeps the order of the two streams
	sent int
	tail map[string]*keptOutput // of a stream, after maxLive
}

func newLive(t *turn, c toolCall) *live {
	return &live{t: t, call: c, tail: make(map[string]*keptOutput)}
}

func (l *live) send(stream, text string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sent >= maxLive {
		k := l.tail[stream]
		if k == nil {
			k = &keptOutput{limit: liveTail}
			l.tail[stream] = k
		}
		k.write([]byte(text))
		return nil
	}
	l.sent += len(text)
	return l.event(stream, text)
}

func (l *live) event(stream, text string) error {
	return l.t.emit(turnrpc.AgentEvent{Kind: turnrpc.EventOutput, Tool: l.call.name, ToolID: l.call.id, Stream: stream, Text: text})
}

// end shows the end of what was too long.
func (l *live) end() {
	for _, stream := range []string{"stdout", "stderr"} {
		if k := l.tail[stream]; k != nil && k.total > 0 {
			_ = l.event(stream, k.String())
		}
	}
}

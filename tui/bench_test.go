package tui

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"msb/protocol/turnrpc"
	"msb/turn"
)

// BenchmarkFrame draws a full screen over a conversation of the largest size
// that is held.
func BenchmarkFrame(b *testing.B) {
	a := newApp(b.Context(), Options{Host: &rig{}})
	a.w, a.h = 120, 40
	var events []turn.Event
	for i := range 1500 {
		e := turn.Event{Seq: uint64(i + 1), Turn: "1", AgentEvent: turnrpc.AgentEvent{Kind: "tool", Tool: "read_file", ToolID: fmt.Sprint(i),
			ToolArgs: `{"path":"a/b/c.go"}`, Status: "ok", Text: "package c"}}
		if i%3 == 0 {
			e.AgentEvent = turnrpc.AgentEvent{Kind: "text", Text: "Some **words** about `it`.\n\n* one\n* two\n"}
		}
		events = append(events, e)
	}
	a.conv.Add(events)
	a.View()
	for b.Loop() {
		a.frame++
		a.View()
	}
}

// BenchmarkKey is the time from a key to its picture on the terminal while a
// command prints 50 MB.
func BenchmarkKey(b *testing.B) {
	s := open(b, 120, 40)
	s.until("Show me around")
	s.press("ctrl+u", "flood 50", "enter")
	s.until("cat big")
	var took []time.Duration
	typed := ""
	for b.Loop() {
		key := string(rune('a' + len(typed)%26))
		typed += key
		begun := time.Now()
		s.press(key)
		for !strings.Contains(s.text(), "› "+typed) {
			time.Sleep(200 * time.Microsecond)
		}
		took = append(took, time.Since(begun))
		if len(typed) == 80 {
			s.press("ctrl+u")
			typed = ""
			s.gone("› abc")
		}
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "ms-median")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "ms-p99")
}

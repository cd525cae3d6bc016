package turn_test

import (
	"fmt"
	"strings"
	"testing"

	"msb/guest/turn/turntest"
	"msb/protocol/turnrpc"
)

// windowed is a host whose model has a window: it counts a token for so many bytes, and refuses what does not fit.
type windowed struct {
	window     int     // tokens; 0: it does not say
	refuse     int     // tokens that it refuses from; 0: none
	tokenBytes float64 // of its tokenizer
	largest    int     // tokens of the largest request
	answered   int
	refused    int
	orphans    []string
}

func (w *windowed) script(answer func(n int) []turnrpc.ProviderEvent) turntest.Script {
	return turntest.Script{
		Hello:  extensions,
		Window: w.window,
		Model: func(_ int, r turnrpc.ProviderRequest) []turnrpc.ProviderEvent {
			size := 0
			for i, m := range r.Messages {
				size += len(m.Content) + len(m.ToolArgs) + len(m.ToolResult) + len(m.ToolName)
				if m.Role == turnrpc.RoleTool && (i == 0 || r.Messages[i-1].ToolID != m.ToolID) {
					w.orphans = append(w.orphans, m.ToolID)
				}
				if m.ToolName != "" && (i+1 == len(r.Messages) || r.Messages[i+1].ToolID != m.ToolID) {
					w.orphans = append(w.orphans, m.ToolID)
				}
			}
			for _, t := range r.Tools {
				size += len(t.Name) + len(t.Description) + len(t.Parameters)
			}
			tokens := int(float64(size) / w.tokenBytes)
			w.largest = max(w.largest, tokens)
			if w.refuse > 0 && tokens > w.refuse {
				w.refused++
				return []turnrpc.ProviderEvent{{Type: turnrpc.ProviderError, Err: "the provider answered 400 (the request is too long for the model's context window)"}}
			}
			events := answer(w.answered)
			w.answered++
			return append([]turnrpc.ProviderEvent{{Type: turnrpc.ProviderUsage, Usage: &turnrpc.Usage{InputTokens: int64(tokens)}}}, events...)
		},
	}
}

// A conversation is compacted before it overflows the window of the model, whatever its tokens are like, and no result
// is ever without its call.
func TestWindow(t *testing.T) {
	for _, c := range []struct {
		window     int
		tokenBytes float64
	}{{4096, 3.5}, {16_000, 4}, {16_000, 3}, {32_000, 2.7}} {
		t.Run(fmt.Sprintf("%d tokens of %v bytes", c.window, c.tokenBytes), func(t *testing.T) {
			w := &windowed{window: c.window, refuse: c.window, tokenBytes: c.tokenBytes}
			a := start(t, w.script(func(n int) []turnrpc.ProviderEvent {
				if n%4 == 3 {
					return turntest.Say(strings.Repeat("I think. ", 200))
				}
				return turntest.Use([2]string{"read_file", fmt.Sprintf(`{"path":"file","start_line":%d}`, n+1)}, [2]string{"list_files", `{"path":"."}`})
			}))
			a.write(t, "file", strings.Repeat("some words of a file\n", 1500)) // 31 KiB, which two calls in a row bring whole
			for i := range 12 {
				if _, err := a.Start(turnrpc.UserTurn{Text: fmt.Sprintf("task %d", i), RichEvents: true}).Wait(); err != nil {
					t.Fatalf("turn %d: %v", i, err)
				}
			}
			if w.refused > 0 || w.largest > c.window {
				t.Errorf("%d requests were too large, the largest has %d tokens", w.refused, w.largest)
			}
			if w.largest < c.window/3 {
				t.Errorf("the largest request has only %d of %d tokens", w.largest, c.window)
			}
			if len(w.orphans) > 0 {
				t.Errorf("orphans: %q", w.orphans)
			}
		})
	}
}

// When nobody said how large the window is, a refusal makes the conversation smaller, once.
func TestUnknownWindow(t *testing.T) {
	w := &windowed{refuse: 20_000, tokenBytes: 4}
	a := start(t, w.script(func(n int) []turnrpc.ProviderEvent {
		if n%3 == 2 {
			return turntest.Say("so")
		}
		return turntest.Use([2]string{"read_file", fmt.Sprintf(`{"path":"file","start_line":%d}`, n+1)})
	}))
	a.write(t, "file", strings.Repeat("some words of a file\n", 1500))
	for i := range 6 {
		if _, err := a.Start(turnrpc.UserTurn{Text: fmt.Sprintf("task %d", i), RichEvents: true}).Wait(); err != nil {
			t.Fatalf("turn %d: %v", i, err)
		}
	}
	if w.refused != 1 || len(w.orphans) > 0 { // the lesson is remembered
		t.Errorf("%d refusals, orphans %q", w.refused, w.orphans)
	}
}

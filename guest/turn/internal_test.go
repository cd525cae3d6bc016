package turn

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"msb/guest/turn/tree"
	"msb/protocol/turnrpc"
)

func TestKeptOutput(t *testing.T) {
	for _, c := range []struct {
		limit  int
		writes []string
		want   string
	}{
		{10, []string{"abc", "def"}, "abcdef"},
		{10, []string{"abcde", "fghij"}, "abcdefghij"},
		{10, []string{"abcdefghijk"}, "abcde\n… [1 bytes left out] …\nghijk"},
		{10, []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m"}, "abcde\n… [3 bytes left out] …\nijklm"},
		{10, []string{"é", "éééééééééé"}, "éé\n… [14 bytes left out] …\néé"},
	} {
		k := keptOutput{limit: c.limit}
		for _, w := range c.writes {
			k.write([]byte(w))
		}
		if got := k.String(); got != c.want {
			t.Errorf("%q: %q, want %q", c.writes, got, c.want)
		}
	}
}

// Whatever a conversation looks like, it fits after compaction and no result is without its call.
func TestCompact(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for round := range 60 {
		var messages []turnrpc.Message
		for n := range r.IntN(300) + 1 {
			switch r.IntN(4) {
			case 0:
				messages = append(messages, turnrpc.Message{Role: turnrpc.RoleUser, Content: strings.Repeat("€", r.IntN(3000))})
			case 1:
				messages = append(messages, turnrpc.Message{Role: turnrpc.RoleAssistant, Content: strings.Repeat("t", r.IntN(3000))})
			default:
				id := fmt.Sprint(n)
				messages = append(messages,
					turnrpc.Message{Role: turnrpc.RoleAssistant, ToolID: id, ToolName: "x", ToolArgs: `{"a":"` + strings.Repeat("a", r.IntN(9000)) + `"}`},
					turnrpc.Message{Role: turnrpc.RoleTool, ToolID: id, ToolResult: strings.Repeat("é", r.IntN(30000))})
			}
		}
		before, _ := json.Marshal(messages)
		for _, budget := range []int{400 << 10, 100 << 10, 20 << 10} {
			got := compact(messages, budget)
			if size := requestSize(got); size > budget {
				t.Fatalf("round %d: %d bytes of %d are more than %d", round, size, requestSize(messages), budget)
			}
			if len(whole(got)) != len(got) {
				t.Fatalf("round %d: calls and results do not match", round)
			}
			for _, m := range got {
				if !utf8.ValidString(m.Content+m.ToolResult) || (m.ToolArgs != "" && !json.Valid([]byte(m.ToolArgs))) {
					t.Fatalf("round %d: a broken message %+v", round, m)
				}
			}
			if again := compact(got, budget); len(again) != len(got) {
				t.Fatalf("round %d: compacted again, %d messages of %d are left", round, len(again), len(got))
			}
		}
		if after, _ := json.Marshal(messages); string(after) != string(before) {
			t.Fatal("the original was changed")
		}
	}
}

func TestCompactKeepsWhatMatters(t *testing.T) {
	var messages []turnrpc.Message
	for i := range 100 {
		messages = append(messages, turnrpc.Message{Role: turnrpc.RoleUser, Content: fmt.Sprintf("request %d %s", i, strings.Repeat("x", 2000))},
			turnrpc.Message{Role: turnrpc.RoleAssistant, Content: "ok"})
	}
	messages = append(messages, turnrpc.Message{Role: turnrpc.RoleUser, Content: "the last word"})
	got := compact(compact(messages, 100<<10), 20<<10)
	if last := got[len(got)-1]; last.Content != "the last word" {
		t.Errorf("%+v", last)
	}
	if !strings.HasPrefix(got[0].Content, compactedPrefix) || !strings.Contains(got[0].Content, "- request 8") || strings.Count(fmt.Sprint(got), compactedPrefix) != 1 {
		t.Errorf("%s", got[0].Content)
	}
}

func TestConversationOnAFullDisk(t *testing.T) {
	dir := t.TempDir()
	c, err := openConversation(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	c.User("before")
	c.dir = dir + "/none" // any error of the disk
	c.User("after")
	if err := c.Save(); err == nil {
		t.Error("saved to nowhere")
	}
	c.dir = dir
	if err := c.Save(); err != nil {
		t.Fatal(err)
	}
	again, err := openConversation(dir, slog.New(slog.DiscardHandler))
	if err != nil || len(again.messages) != 2 {
		t.Errorf("%+v, %v", again.messages, err)
	}
	if names, _ := os.ReadDir(dir); len(names) != 1 {
		t.Errorf("left over: %v", names)
	}
}

func TestHistoryIsTrimmed(t *testing.T) {
	c, _ := openConversation(t.TempDir(), slog.New(slog.DiscardHandler))
	for i := range 40 {
		c.User(fmt.Sprintf("%d %s", i, strings.Repeat("<", 20_000)))
	}
	b, _ := json.Marshal(c.Trimmed())
	if len(b) > turnrpc.MaxHistory || !strings.Contains(string(b), "39 ") {
		t.Errorf("%d bytes", len(b))
	}
}

type noRunner struct{}

func (noRunner) Start(context.Context, Command) (Process, error) {
	return nil, fmt.Errorf("no commands here")
}
func (noRunner) Freeze(*os.File) error    { return nil }
func (noRunner) Thaw() error              { return nil }
func (noRunner) SetClock(time.Time) error { return nil }

// FuzzHost feeds the agent frames of a hostile host. It must end with the connection and never panic.
func FuzzHost(f *testing.F) {
	frame := func(s string) []byte {
		return append([]byte{0, 0, byte(len(s) >> 8), byte(len(s))}, s...)
	}
	f.Add(frame(`{"v":4,"id":"1","method":"user_turn","params":{"text":"x"}}`))
	f.Add(append(frame(`{"v":4,"id":"1","method":"user_turn","params":{"text":"x"}}`), frame(`{"id":"g-1","result":{"tools":[{}]}}`)...))
	f.Add(append(frame(`{"id":"1","method":"user_turn","params":{"text":"x","timeout_sec":-5}}`), frame(`{"id":"1-cancel","method":"cancel_turn","params":{"id":"1"}}`)...))
	f.Add(frame(`{"id":"2","method":"read_file","params":{"path":"a","start_line":-1}}`))
	f.Add(frame(`{"id":"2","method":"archive_chunk","params":{"offset":-1,"data":"eA==","last":true}}`))
	f.Add(frame(`{"id":"2","method":"apply_patch","params":{"patch":"--- a\n+++ b\n@@\n+"}}`))
	f.Add(frame(`{"id":"h-1","method":"provider_event","params":{"stream_id":"s1","type":"done"}}`))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{0, 0, 0, 0})
	repo := f.TempDir()
	files, err := tree.New(repo, 2, nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(files.Close)
	f.Fuzz(func(t *testing.T, in []byte) {
		ours, theirs := net.Pipe()
		done := make(chan struct{})
		cfg := Config{
			Guest:   turnrpc.GuestConfig{SessionID: "s", Capability: "c", RepoDir: repo},
			ImageID: "i", Tree: files, Runner: noRunner{}, Machine: noRunner{}, State: t.TempDir(),
		}
		go func() {
			defer close(done)
			_ = Serve(context.Background(), theirs, cfg)
		}()
		if _, err := turnrpc.Read(ours); err != nil {
			t.Fatal(err)
		}
		ack := frame(`{"v":4,"id":"hello","result":{"accepted":true,"protocol":4,"extensions":{"output":1}}}`)
		_, _ = ours.Write(ack)
		read := make(chan struct{})
		go func() {
			defer close(read)
			for {
				if _, err := turnrpc.Read(ours); err != nil {
					return
				}
			}
		}()
		_ = ours.SetWriteDeadline(time.Now().Add(time.Minute))
		_, _ = ours.Write(in)
		ours.Close()
		<-read
		<-done
	})
}

package provider

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"msb/protocol/turnrpc"
	"msb/turn/config"
)

type canned []byte

func (c canned) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: io.NopCloser(bytes.NewReader(c))}, nil
}

// FuzzAnswer feeds both decoders: whatever a server sends ends in one end.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte("data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"a\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},\"finish_reason\":\"tool_calls\"}]}\n\ndata: [DONE]\n\n"), true)
	f.Add([]byte("event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":1,\"content_block\":{\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"f\",\"input\":{}}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"), false)
	f.Fuzz(func(t *testing.T, b []byte, chat bool) {
		zero := 0
		m := config.Model{Name: "m", Provider: "x", Model: "m", API: config.APIMessages, BaseURL: "https://a.example", Hosts: []string{"a.example"}, Retries: &zero,
			Timeouts: config.Timeouts{Connect: time.Minute, FirstByte: time.Minute, Idle: time.Minute, Total: time.Minute}}
		if chat {
			m.API = config.APIChat
		}
		done := 0
		r := request{model: m, transport: canned(b), log: slog.New(slog.DiscardHandler), rich: true}
		err := r.do(context.Background(), turnrpc.ProviderRequest{Messages: []turnrpc.Message{{Role: "user", Content: "x"}}}, func(e turnrpc.ProviderEvent) error {
			if done > 0 {
				t.Error("an event after the end")
			}
			if e.Type == turnrpc.ProviderDone {
				done++
			}
			return nil
		})
		if (err == nil) != (done == 1) {
			t.Errorf("%d ends, error %v", done, err)
		}
	})
}

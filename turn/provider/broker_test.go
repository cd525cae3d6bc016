package provider_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"msb/protocol/turnrpc"
	"msb/turn/config"
	"msb/turn/creds"
	"msb/turn/provider"
)

func scripted() config.Model {
	return config.Model{Name: "m", Provider: config.ProviderDemo, Model: "scripted"}
}

func TestOpen(t *testing.T) {
	ctx := context.Background()
	m := scripted()
	offline := false
	selected := "m"
	b := provider.New(provider.Options{Model: func(name string) (config.Model, error) {
		switch name {
		case "real":
			return config.Model{Name: "real", Provider: "openai"}, nil
		case "m":
			return m, nil
		}
		return config.Model{}, errors.New("/secret/path:3:1: wrong")
	}, Offline: func() bool { return offline }}, func() string { return selected }, func(turnrpc.ProviderEvent) error { return nil })
	defer b.Close()
	fails := func(alias, want string) {
		t.Helper()
		if _, err := b.Open(ctx, alias, false); err == nil || err.Error() != want {
			t.Errorf("open %q: %v, want %s", alias, err, want)
		}
	}
	fails("", "model alias required")
	fails(" \t", "model alias required")
	fails("x", `model profile "x" is not selected for this session`)
	fails("real", `model profile "real" is not selected for this session`)
	selected = "gone"
	fails("gone", "model profile \"gone\" is not available: see `msb model ls` on the host")
	offline, selected = true, "real"
	fails("real", "offline mode: provider access is disabled")
	selected = "m" // the script needs no network
	for _, want := range []string{"s1", "s2"} {
		if o, err := b.Open(ctx, "m", false); err != nil || o.StreamID != want {
			t.Errorf("%q, %v", o.StreamID, err)
		}
	}
	fails("m", "too many open provider streams")
	b.Cancel("s1")
	if o, err := b.Open(ctx, "m", false); err != nil || o.StreamID != "s3" {
		t.Errorf("after a cancel: %q, %v", o.StreamID, err)
	}
	b.Close()
	fails("m", "provider broker closed")
}

func TestCapsOfARequest(t *testing.T) {
	ctx := context.Background()
	many := func(messages, tools int) []byte {
		req := turnrpc.ProviderRequest{Messages: make([]turnrpc.Message, messages), Tools: make([]turnrpc.Tool, tools)}
		for i := range req.Messages {
			req.Messages[i] = turnrpc.Message{Role: "user", Content: "x"}
		}
		for i := range req.Tools {
			req.Tools[i].Name = fmt.Sprint("t", i)
		}
		b, _ := json.Marshal(req)
		return b
	}
	args, _ := json.Marshal(turnrpc.ProviderRequest{Messages: []turnrpc.Message{{Role: "assistant", ToolName: "f", ToolArgs: strings.Repeat("x", turnrpc.MaxToolArgs+1)}}})
	for _, c := range []struct {
		name   string
		chunks [][]byte
		want   string // "": it is taken
	}{
		{"largest chunk", [][]byte{append(many(1, 0), bytes.Repeat([]byte(" "), turnrpc.MaxProviderChunk-len(many(1, 0)))...)}, ""},
		{"chunk too large", [][]byte{bytes.Repeat([]byte(" "), 262145)}, "provider chunk too large"},
		{"4096 messages, 256 tools", split(many(4096, 256)), ""},
		{"4097 messages", split(many(4097, 0)), "too many provider messages: 4097, allowed are 4096"},
		{"257 tools", split(many(1, 257)), "too many provider tools: 257, allowed are 256"},
		{"large arguments", split(args), "provider tool arguments too large"},
		{"no JSON", [][]byte{[]byte("{")}, "provider request is not valid JSON"},
		{"nothing", [][]byte{nil}, "provider request is not valid JSON"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, scripted())
			o, err := r.Open(ctx, "m", false)
			id := o.StreamID
			if err != nil {
				t.Fatal(err)
			}
			for i, chunk := range c.chunks {
				if err = r.Send(ctx, id, chunk, i == len(c.chunks)-1); err != nil {
					break
				}
			}
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				if e := r.collect(); e[len(e)-1].Type != turnrpc.ProviderDone {
					t.Error(show(e))
				}
				return
			}
			if err == nil || err.Error() != c.want {
				t.Errorf("got %v", err)
			}
			if err := r.Send(ctx, id, nil, false); err == nil || !strings.Contains(err.Error(), "unknown provider stream") {
				t.Errorf("the stream lives on: %v", err)
			}
		})
	}
	t.Run("4 MiB", func(t *testing.T) {
		r := newRig(t, scripted())
		o, _ := r.Open(ctx, "m", false)
		id := o.StreamID
		for _, chunk := range split(bytes.Repeat([]byte(" "), 4<<20-4)) {
			if err := r.Send(ctx, id, chunk, false); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.Send(ctx, id, make([]byte, 8), false); err == nil || err.Error() != "provider request too large" {
			t.Errorf("got %v", err)
		}
	})
}

func split(b []byte) [][]byte {
	var chunks [][]byte
	for len(b) > turnrpc.MaxProviderChunk {
		chunks, b = append(chunks, b[:turnrpc.MaxProviderChunk]), b[turnrpc.MaxProviderChunk:]
	}
	return append(chunks, b)
}

func TestSecondLast(t *testing.T) {
	s := serve(t, stream(chatAnswer, 1))
	r := newRig(t, profile(s, config.APIChat))
	id := r.start(user("hi"))
	for _, last := range []bool{false, true} {
		err := r.Send(context.Background(), id, []byte("{}"), last)
		if err == nil || err.Error() != "provider stream already started" && !strings.Contains(err.Error(), "unknown provider stream") {
			t.Errorf("got %v", err)
		}
	}
	if got := show(r.collect()); got != bothSay {
		t.Errorf("the stream is disturbed: %s", got)
	}
}

func TestKeyIsResolvedForEveryRequest(t *testing.T) {
	s := serve(t, stream(chatAnswer, 1000))
	r := newRig(t, profile(s, config.APIChat))
	for range 3 {
		r.ask(user("hi"))
	}
	if r.creds.calls != 3 {
		t.Errorf("%d times for 3 requests", r.creds.calls)
	}
	r.creds.fail = errors.New("the variable CANARY_VARIABLE is not set")
	o, _ := r.Open(context.Background(), "m", true)
	id := o.StreamID
	err := r.Send(context.Background(), id, []byte("{}"), true)
	if err == nil || err.Error() != "credential for model \"m\": not available; run `msb model test m` on the host" {
		t.Errorf("got %v", err)
	}
	if !strings.Contains(r.log.String(), "CANARY_VARIABLE is not set") {
		t.Error("the log does not say why")
	}
	if len(s.seen()) != 3 {
		t.Error("asked without a key")
	}
}

func TestPlainStream(t *testing.T) {
	s := serve(t, stream(chatAnswer, 1000))
	r := newRig(t, profile(s, config.APIChat))
	o, _ := r.Open(context.Background(), "m", false)
	id := o.StreamID
	if err := r.Send(context.Background(), id, []byte(`{"messages":[{"role":"user","content":"q"}]}`), true); err != nil {
		t.Fatal(err)
	}
	events := r.collect()
	last, _ := json.Marshal(events[len(events)-1])
	if string(last) != `{"stream_id":"s1","type":"done"}` {
		t.Errorf("the end is %s", last)
	}
	if strings.Contains(show(events), "usage") {
		t.Error("usage was not asked for")
	}
	if _, ok := s.seen()[0].body["stream_options"]; ok {
		t.Error("usage was asked of the model")
	}
}

func TestIdleRequestIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := provider.New(provider.Options{Model: func(string) (config.Model, error) { return scripted(), nil }},
			func() string { return "m" }, func(turnrpc.ProviderEvent) error { return nil })
		defer b.Close()
		o, err := b.Open(t.Context(), "m", false)
		id := o.StreamID
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(provider.IdleTimeout - time.Second)
		if err := b.Send(t.Context(), id, []byte(" "), false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(provider.IdleTimeout - time.Second)
		if err := b.Send(t.Context(), id, []byte(" "), false); err != nil {
			t.Fatal("a chunk does not reset the timer:", err)
		}
		time.Sleep(provider.IdleTimeout + time.Second)
		if err := b.Send(t.Context(), id, []byte(" "), false); err == nil {
			t.Error("the stream is still there")
		}
	})
}

func TestTrial(t *testing.T) {
	s := serve(t, stream(chatAnswer, 1000), status(401, "", `{"error":{"message":"no such key `+canary+`"}}`))
	m := profile(s, config.APIChat)
	report, err := provider.Test(context.Background(), m, &resolver{})
	if err != nil || report.Text != "I look at both. ☂" || report.Usage.InputTokens != 31 || report.First == 0 {
		t.Errorf("%+v %v", report, err)
	}
	_, err = provider.Test(context.Background(), m, &resolver{})
	if err == nil || !strings.Contains(err.Error(), "401") || !strings.Contains(err.Error(), "no such key [redacted]") {
		t.Errorf("got %v", err)
	}
	_, err = provider.Test(context.Background(), m, creds.Open(t.TempDir()))
	if err == nil || !strings.Contains(err.Error(), "CANARY_VARIABLE is not set") {
		t.Errorf("got %v", err)
	}
}

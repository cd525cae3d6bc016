package provider

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/anthropics/anthropic-sdk-go/v2"
	"github.com/anthropics/anthropic-sdk-go/v2/option"

	"msb/protocol/turnrpc"
	"msb/turn/config"
)

// messages asks a server with the interface of Anthropic's messages.
func messages(ctx context.Context, u *upstream, c *conversation, s *sink) error {
	// The service alone: a client would take keys and addresses from the environment.
	service := anthropic.NewMessageService(
		option.WithoutEnvironmentDefaults(),
		option.WithoutOpenTelemetry(),
		option.WithBaseURL(strings.TrimRight(u.model.BaseURL, "/")+"/"),
		option.WithHTTPClient(u.client()),
		option.WithMaxRetries(*u.model.Retries),
		option.WithHeader("anthropic-version", "2023-06-01"),
	)
	stream := service.NewStreaming(ctx, messageParams(u.model, c))
	defer stream.Close()
	whole := false
	inputs := make(map[int64]string) // what a call began with, by index
	for stream.Next() {
		e := stream.Current()
		switch e.Type {
		case "message_start":
			n := e.Message.Usage
			s.usage.InputTokens = n.InputTokens + n.CacheCreationInputTokens + n.CacheReadInputTokens
			s.usage.OutputTokens = n.OutputTokens
		case "content_block_start":
			b := e.ContentBlock
			switch b.Type {
			case "text":
				if err := s.text(b.Text); err != nil {
					return err
				}
			case "tool_use":
				if err := s.add(s.call(e.Index, b.ID), b.ID, b.Name, ""); err != nil {
					return err
				}
				if begun := b.JSON.Input.Raw(); begun != "" && begun != "{}" && begun != "null" {
					inputs[e.Index] = begun
				}
			}
		case "content_block_delta":
			switch e.Delta.Type {
			case "text_delta":
				if err := s.text(e.Delta.Text); err != nil {
					return err
				}
			case "input_json_delta":
				if e.Delta.PartialJSON == "" {
					break
				}
				delete(inputs, e.Index)
				if err := s.add(s.call(e.Index, ""), "", "", e.Delta.PartialJSON); err != nil {
					return err
				}
			}
		case "content_block_stop":
			if begun, ok := inputs[e.Index]; ok {
				delete(inputs, e.Index)
				if err := s.add(s.call(e.Index, ""), "", "", begun); err != nil {
					return err
				}
			}
		case "message_delta":
			n := e.Usage
			if in := n.InputTokens + n.CacheCreationInputTokens + n.CacheReadInputTokens; in > 0 {
				s.usage.InputTokens = in
			}
			if n.OutputTokens > 0 {
				s.usage.OutputTokens = n.OutputTokens
			}
			if r := string(e.Delta.StopReason); r != "" {
				s.stop = clip(r)
			}
		case "message_stop":
			whole = true
		}
	}
	if err := stream.Err(); err != nil {
		var inside *anthropic.Error
		if ctx.Err() == nil && errors.As(err, &inside) && inside.StatusCode == 200 {
			return reported(inside.RawJSON(), u.secret.Redact(inside.RawJSON()))
		}
		return u.failure(ctx, err)
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if !whole {
		return fail(classBrokeOff)
	}
	return s.finish()
}

func messageParams(m config.Model, c *conversation) anthropic.MessageNewParams {
	p := anthropic.MessageNewParams{Model: m.Model, MaxTokens: m.MaxTokens}
	if p.MaxTokens == 0 {
		p.MaxTokens = config.DefaultMaxTokens
	}
	if m.Provider == config.ProviderAnthropic {
		// The conversation so far is the same in every request of a turn.
		p.CacheControl = anthropic.NewCacheControlEphemeralParam()
	}
	if c.system != "" {
		p.System = []anthropic.TextBlockParam{{Text: c.system}}
	}
	if c.groups[0].role != turnrpc.RoleUser {
		p.Messages = append(p.Messages, anthropic.NewUserMessage(anthropic.NewTextBlock("(the beginning of the conversation is left out)")))
	}
	for i, g := range c.groups {
		var blocks []anthropic.ContentBlockParamUnion
		switch g.role {
		case turnrpc.RoleUser:
			blocks = append(blocks, anthropic.NewTextBlock(blank(g.text, "(nothing)")))
			if i > 0 && c.groups[i-1].role == turnrpc.RoleTool { // one message of the user's side
				last := p.Messages[len(p.Messages)-1].OfUser
				last.Content = append(last.Content, blocks...)
				continue
			}
			p.Messages = append(p.Messages, anthropic.NewUserMessage(blocks...))
		case turnrpc.RoleAssistant:
			if strings.TrimSpace(g.text) != "" {
				blocks = append(blocks, anthropic.NewTextBlock(strings.TrimRight(g.text, " \t\r\n")))
			}
			for _, k := range g.calls {
				blocks = append(blocks, anthropic.NewToolUseBlock(k.id, json.RawMessage(k.args), k.name))
			}
			if len(blocks) > 0 {
				p.Messages = append(p.Messages, anthropic.NewAssistantMessage(blocks...))
			}
		case turnrpc.RoleTool:
			for _, r := range g.results {
				blocks = append(blocks, anthropic.NewToolResultBlock(r.id, blank(r.text, "(no output)"), strings.HasPrefix(r.text, "error: ")))
			}
			p.Messages = append(p.Messages, anthropic.NewUserMessage(blocks...))
		}
	}
	for _, t := range c.tools {
		schema := anthropic.ToolInputSchemaParam{Properties: t.schema["properties"], ExtraFields: make(map[string]any)}
		for key, value := range t.schema {
			switch key {
			case "type", "properties", "oneOf", "anyOf", "allOf": // the last three are refused at the top
			case "required":
				_ = json.Unmarshal(value, &schema.Required) // else nothing is
			default:
				schema.ExtraFields[key] = value
			}
		}
		param := anthropic.ToolParam{Name: t.name, InputSchema: schema}
		if t.description != "" {
			param.Description = anthropic.String(t.description)
		}
		p.Tools = append(p.Tools, anthropic.ToolUnionParam{OfTool: &param})
	}
	return p
}

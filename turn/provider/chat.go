package provider

import (
	"context"
	"errors"
	"strings"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/ssestream"
	"github.com/openai/openai-go/v3/shared"

	"msb/protocol/turnrpc"
	"msb/turn/config"
)

// chat asks a server with the interface of OpenAI's chat completions.
func chat(ctx context.Context, u *upstream, c *conversation, s *sink) error {
	// The service alone: a client would take keys and addresses from the environment.
	service := openai.NewChatCompletionService(
		option.WithBaseURL(strings.TrimRight(u.model.BaseURL, "/")+"/"),
		option.WithHTTPClient(u.client()),
		option.WithMaxRetries(*u.model.Retries),
	)
	stream := service.NewStreaming(ctx, chatParams(u.model, c, s.rich))
	defer stream.Close()
	for stream.Next() {
		chunk := stream.Current()
		if n := chunk.Usage; n.PromptTokens > 0 || n.CompletionTokens > 0 {
			s.usage = turnrpc.Usage{InputTokens: n.PromptTokens, OutputTokens: n.CompletionTokens}
		}
		for _, choice := range chunk.Choices {
			if choice.Index != 0 {
				continue
			}
			if err := s.text(choice.Delta.Content + choice.Delta.Refusal); err != nil {
				return err
			}
			for _, d := range choice.Delta.ToolCalls {
				if err := s.add(s.call(d.Index, d.ID), d.ID, d.Function.Name, d.Function.Arguments); err != nil {
					return err
				}
			}
			if choice.FinishReason != "" {
				s.stop = chatStop(choice.FinishReason)
			}
		}
	}
	if err := stream.Err(); err != nil {
		var inside *ssestream.StreamError
		if ctx.Err() == nil && errors.As(err, &inside) {
			return reported(string(inside.Event.Data), u.secret.Redact(inside.Message))
		}
		return u.failure(ctx, err)
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if s.stop == "" && !u.sawDone() {
		return fail(classBrokeOff)
	}
	return s.finish()
}

func chatParams(m config.Model, c *conversation, usage bool) openai.ChatCompletionNewParams {
	p := openai.ChatCompletionNewParams{Model: m.Model}
	if usage {
		p.StreamOptions.IncludeUsage = openai.Bool(true)
	}
	switch {
	case m.MaxTokens == 0:
	case m.Provider == config.ProviderOpenAI:
		p.MaxCompletionTokens = openai.Int(m.MaxTokens)
	default: // what other servers know
		p.MaxTokens = openai.Int(m.MaxTokens)
	}
	if c.system != "" {
		p.Messages = append(p.Messages, openai.SystemMessage(c.system))
	}
	for _, g := range c.groups {
		switch g.role {
		case turnrpc.RoleUser:
			p.Messages = append(p.Messages, openai.UserMessage(blank(g.text, "(nothing)")))
		case turnrpc.RoleAssistant:
			var a openai.ChatCompletionAssistantMessageParam
			if g.text != "" {
				a.Content.OfString = openai.String(g.text)
			}
			for _, k := range g.calls {
				a.ToolCalls = append(a.ToolCalls, openai.ChatCompletionMessageToolCallUnionParam{
					OfFunction: &openai.ChatCompletionMessageFunctionToolCallParam{
						ID:       k.id,
						Function: openai.ChatCompletionMessageFunctionToolCallFunctionParam{Name: k.name, Arguments: k.args},
					},
				})
			}
			p.Messages = append(p.Messages, openai.ChatCompletionMessageParamUnion{OfAssistant: &a})
		case turnrpc.RoleTool:
			for _, r := range g.results {
				p.Messages = append(p.Messages, openai.ToolMessage(blank(r.text, "(no output)"), r.id))
			}
		}
	}
	for _, t := range c.tools {
		f := shared.FunctionDefinitionParam{Name: t.name, Parameters: shared.FunctionParameters{}}
		if t.description != "" {
			f.Description = openai.String(t.description)
		}
		for key, value := range t.schema {
			f.Parameters[key] = value
		}
		p.Tools = append(p.Tools, openai.ChatCompletionFunctionTool(f))
	}
	return p
}

func chatStop(reason string) string {
	switch reason {
	case "stop":
		return stopEnd
	case "tool_calls", "function_call":
		return stopTool
	case "length":
		return stopMaxTokens
	case "content_filter":
		return stopRefusal
	}
	return clip(reason)
}

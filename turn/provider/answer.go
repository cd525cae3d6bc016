package provider

import (
	"encoding/json"
	"strings"

	"msb/protocol/turnrpc"
)

// Reasons why a model stopped, the same for every interface.
const (
	stopEnd       = "end_turn"
	stopTool      = "tool_use"
	stopMaxTokens = "max_tokens"
	stopRefusal   = "refusal"
)

// sink takes the pieces of one answer. Text goes on at once; calls wait until
// the answer is known to be whole.
type sink struct {
	emit  func(turnrpc.ProviderEvent) error
	rich  bool
	names names
	calls []*piece
	usage turnrpc.Usage
	stop  string
}

// piece is a tool call that is being assembled.
type piece struct {
	key      int64 // the server's index of it
	id, name string
	args     strings.Builder
}

func (s *sink) text(text string) error {
	if text == "" {
		return nil
	}
	return s.emit(turnrpc.ProviderEvent{Type: turnrpc.ProviderText, Text: text})
}

// call returns the call with an index. A server that gives every call the same
// index tells them apart by ids.
func (s *sink) call(key int64, id string) *piece {
	for i := len(s.calls) - 1; i >= 0; i-- {
		if c := s.calls[i]; c.key == key {
			if id != "" && c.id != "" && id != c.id {
				break
			}
			return c
		}
	}
	c := &piece{key: key}
	s.calls = append(s.calls, c)
	return c
}

// maxCalls bounds the calls of one answer.
const maxCalls = 128

func (s *sink) add(c *piece, id, name, args string) error {
	if c.id == "" {
		c.id = id
	}
	if c.name == "" {
		c.name = name
	}
	if c.args.Len()+len(args) > turnrpc.MaxToolArgs || len(c.id) > 4096 || len(c.name) > 4096 || len(s.calls) > maxCalls {
		return fail(classArgs)
	}
	c.args.WriteString(args)
	return nil
}

// finish emits the calls, the usage and the end of an answer that is whole.
func (s *sink) finish() error {
	for _, c := range s.calls {
		args := c.args.String()
		if strings.TrimSpace(args) == "" {
			args = "{}"
		}
		if s.stop == stopMaxTokens && !json.Valid([]byte(args)) {
			return fail(classCutCall)
		}
		if err := s.emit(turnrpc.ProviderEvent{Type: turnrpc.ProviderTool, ToolID: c.id, ToolName: s.names.given(c.name), ToolArgs: args}); err != nil {
			return err
		}
	}
	done := turnrpc.ProviderEvent{Type: turnrpc.ProviderDone}
	if s.rich {
		if s.usage != (turnrpc.Usage{}) {
			usage := s.usage
			if err := s.emit(turnrpc.ProviderEvent{Type: turnrpc.ProviderUsage, Usage: &usage, StopReason: s.stop}); err != nil {
				return err
			}
		}
		done.StopReason = s.stop
	}
	return s.emit(done)
}

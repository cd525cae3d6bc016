package turn

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"msb/protocol/turnrpc"
)

// conversation is what was said in a session: the messages for the model, which are compacted before they overflow,
// and the lines for people. It is on disk before the model or a person hears of it. Safe for concurrent use.
type conversation struct {
	dir string
	log *slog.Logger

	saving   sync.Mutex // one writer of the file at a time
	mu       sync.Mutex
	messages []turnrpc.Message
	history  []turnrpc.AgentEvent
}

// stored is the file.
type stored struct {
	Version  int                  `json:"version"`
	Messages []turnrpc.Message    `json:"messages"`
	History  []turnrpc.AgentEvent `json:"history"`
}

const (
	storedVersion = 1
	storedName    = "context.json"
	maxStored     = 64 << 20 // more than the results of one answer's calls, escaped
)

// openConversation reads a session's file. One that is damaged is put aside, and the session starts with nothing: the
// host has the transcript.
func openConversation(dir string, log *slog.Logger) (*conversation, error) {
	c := &conversation{dir: dir, log: log}
	path := filepath.Join(dir, storedName)
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the session's conversation: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxStored))
	if err != nil {
		return nil, fmt.Errorf("read the session's conversation: %w", err)
	}
	var s stored
	err = json.Unmarshal(b, &s)
	if err == nil && s.Version != storedVersion {
		err = fmt.Errorf("version %d is not known", s.Version)
	}
	if err != nil {
		log.Error("the session's conversation is damaged and was put aside", "file", path+".damaged", "err", err)
		if err := os.Rename(path, path+".damaged"); err != nil {
			return nil, fmt.Errorf("put the damaged conversation aside: %w", err)
		}
		return c, nil
	}
	c.messages, c.history = whole(s.Messages), s.History
	return c, nil
}

// Trimmed returns the newest lines of the history that fit in a hello.
func (c *conversation) Trimmed() []turnrpc.AgentEvent {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]turnrpc.AgentEvent{}, turnrpc.TrimHistory(c.history, turnrpc.MaxHistory)...)
}

// User adds what the user said.
func (c *conversation) User(text string) {
	c.add([]turnrpc.AgentEvent{{Kind: turnrpc.EventUser, Text: text}}, turnrpc.Message{Role: turnrpc.RoleUser, Content: text})
}

// Assistant adds text of the model.
func (c *conversation) Assistant(text string) {
	c.add([]turnrpc.AgentEvent{{Kind: turnrpc.EventText, Text: text}}, turnrpc.Message{Role: turnrpc.RoleAssistant, Content: text})
}

// Tool adds a call and its result, which always stay together.
func (c *conversation) Tool(call toolCall, result string) {
	c.add(
		[]turnrpc.AgentEvent{{Kind: turnrpc.EventTool, Tool: call.name, Status: turnrpc.StatusOK, Text: clip(result, turnrpc.MaxEventText)}},
		turnrpc.Message{Role: turnrpc.RoleAssistant, ToolID: call.id, ToolName: call.name, ToolArgs: call.args},
		turnrpc.Message{Role: turnrpc.RoleTool, ToolID: call.id, ToolResult: result},
	)
}

// add adds and saves. A full disk does not end a turn: the conversation goes on in memory and is saved when it can be.
func (c *conversation) add(lines []turnrpc.AgentEvent, messages ...turnrpc.Message) {
	c.mu.Lock()
	c.messages = append(c.messages, messages...)
	c.history = append(c.history, lines...)
	// Trim in steps, not at every line.
	if size := historySize(c.history); size > 2*turnrpc.MaxHistory {
		c.history = append([]turnrpc.AgentEvent{}, turnrpc.TrimHistory(c.history, turnrpc.MaxHistory)...)
	}
	c.mu.Unlock()
	if err := c.Save(); err != nil {
		c.log.Error("save the conversation", "err", err)
	}
}

func historySize(history []turnrpc.AgentEvent) int {
	n := 0
	for i := range history {
		n += len(history[i].Text) + len(history[i].Tool) + 64
	}
	return n
}

// Save writes the file in one step: after a crash it is the old one or the new one.
func (c *conversation) Save() error {
	c.saving.Lock()
	defer c.saving.Unlock()
	c.mu.Lock()
	b, err := json.Marshal(stored{Version: storedVersion, Messages: c.messages, History: c.history})
	c.mu.Unlock()
	if err != nil {
		return err
	}
	path := filepath.Join(c.dir, storedName)
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(path+".new"))
	}
	dir, err := os.Open(c.dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// Messages returns what to send, compacted to budget bytes. What was compacted stays so.
func (c *conversation) Messages(budget int) []turnrpc.Message {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.messages = compact(c.messages, budget)
	return append([]turnrpc.Message{}, c.messages...)
}

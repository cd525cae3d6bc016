package mcp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"msb/protocol/turnrpc"
	"msb/turn/config"
)

// server is a configured server: not connected, being connected, or connected.
type server struct {
	b    *Broker
	conf config.Server
	log  *slog.Logger

	mu      sync.Mutex
	closed  bool
	link    *link         // nil: not connected
	stale   bool          // the list of tools has changed
	attempt chan struct{} // closed when the attempt under way has ended; nil: there is none
	tools   []Tool
	hidden  int
	err     error // of the last attempt
}

func newServer(b *Broker, c config.Server) *server {
	return &server{b: b, conf: c, log: b.log.With("server", c.Name)}
}

// discover returns the tools, after it connected if that is needed. A server
// that failed before gets only a moment if brief is set.
func (s *server) discover(ctx context.Context, brief bool) ([]Tool, error) {
	s.mu.Lock()
	if s.link != nil && !s.stale && s.attempt == nil {
		defer s.mu.Unlock()
		return s.tools, nil
	}
	if s.closed {
		s.mu.Unlock()
		return nil, errClosed
	}
	var patience <-chan time.Time
	if brief && s.err != nil {
		t := time.NewTimer(retryWait)
		defer t.Stop()
		patience = t.C
	}
	if s.attempt == nil {
		s.attempt = make(chan struct{})
		s.b.work.Add(1)
		go s.try(s.attempt)
	}
	attempt := s.attempt
	s.mu.Unlock()
	select {
	case <-attempt:
	case <-patience:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tools, s.err
}

// try connects, if that is needed, and lists the tools.
func (s *server) try(attempt chan struct{}) {
	defer s.b.work.Done()
	ctx, cancel := context.WithTimeoutCause(s.b.ctx, ConnectTimeout, fmt.Errorf("no answer in %v", ConnectTimeout))
	defer cancel()
	s.mu.Lock()
	l := s.link
	s.stale = false
	s.mu.Unlock()
	var tools []Tool
	var hidden int
	var err error
	if l != nil {
		if tools, hidden, err = s.list(ctx, l); err != nil {
			s.drop(l)
			l = nil
		}
	}
	if l == nil {
		if l, err = s.connect(ctx); err == nil {
			if tools, hidden, err = s.list(ctx, l); err != nil {
				l.close()
				l = nil
			}
		}
	}
	if err != nil {
		s.log.Warn("MCP server is not available", "err", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attempt, s.err = nil, err
	close(attempt)
	if err == nil && s.closed {
		s.b.work.Go(l.close)
		return
	}
	s.link, s.tools, s.hidden = l, tools, hidden
	if l != nil && !l.watched {
		l.watched = true
		s.b.work.Go(func() { s.watch(l) })
	}
}

// watch forgets a connection when it is gone.
func (s *server) watch(l *link) {
	_ = l.session.Wait() // the next call connects anew; that error counts
	s.drop(l)
}

// drop ends a connection, if it is still the server's.
func (s *server) drop(l *link) {
	s.mu.Lock()
	if s.link == l {
		s.link, s.tools = nil, nil
	}
	s.mu.Unlock()
	l.close()
}

// maxPages bounds the pages of a list of tools.
const maxPages = 100

// list asks for all tools and keeps those that may and can be used.
func (s *server) list(ctx context.Context, l *link) (tools []Tool, hidden int, err error) {
	cursors := map[string]bool{"": true}
	names := make(map[string]bool)
	for cursor := ""; ; {
		page, err := l.session.ListTools(ctx, &sdk.ListToolsParams{Cursor: cursor})
		if err != nil {
			return nil, 0, l.explain(ctx, err)
		}
		for _, offered := range page.Tools {
			t, err := usable(offered)
			switch {
			case err != nil:
				s.log.Warn("MCP tool is left out", "tool", clip(offered.Name, 64), "err", err)
				hidden++
			case names[t.Name] || !s.conf.Allows(t.Name):
				hidden++
			case len(tools) >= turnrpc.MaxMCPTools:
				return tools, hidden + 1, nil
			default:
				names[t.Name] = true
				tools = append(tools, t)
			}
		}
		cursor = page.NextCursor
		if cursor == "" {
			return tools, hidden, nil
		}
		if cursors[cursor] || len(cursors) > maxPages {
			return nil, 0, errors.New("its list of tools does not end")
		}
		cursors[cursor] = true
	}
}

// tool returns a tool that was discovered.
func (s *server) tool(name string) (Tool, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tools {
		if t.Name == name {
			return t, true
		}
	}
	return Tool{}, false
}

// call runs a tool. Errors are for the guest.
func (s *server) call(ctx context.Context, c turnrpc.MCPCall) (turnrpc.MCPResult, error) {
	var none turnrpc.MCPResult
	if !s.conf.Allows(c.Tool) {
		return none, fmt.Errorf("the tool %q of MCP server %q is not allowed", clip(c.Tool, 64), s.conf.Name)
	}
	for again := false; ; again = true {
		if _, err := s.discover(ctx, false); err != nil {
			return none, s.tell(ctx, nil, err)
		}
		if _, ok := s.tool(c.Tool); !ok {
			return none, fmt.Errorf("MCP server %q has no tool %q", s.conf.Name, clip(c.Tool, 64))
		}
		s.mu.Lock()
		l := s.link
		s.mu.Unlock()
		if l == nil {
			if again {
				return none, fmt.Errorf("MCP server %q closed the connection", s.conf.Name)
			}
			continue
		}
		params := &sdk.CallToolParams{Name: c.Tool}
		if len(c.Arguments) > 0 {
			params.Arguments = c.Arguments
		}
		r, err := l.session.CallTool(ctx, params)
		switch {
		case err == nil && r.NeedsInput():
			return none, fmt.Errorf("MCP server %q asks for input, which it cannot have here", s.conf.Name)
		case err == nil:
			return text(r), nil
		case errors.Is(err, sdk.ErrSessionMissing) && !again:
			// It says that it forgot the session, so the call was not run.
			s.drop(l)
			continue
		}
		err = l.explain(ctx, err)
		s.log.Warn("MCP call failed", "tool", c.Tool, "err", err)
		if broken(err) {
			s.drop(l)
		}
		return none, s.tell(ctx, l, err)
	}
}

func (s *server) status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Status{Server: s.conf, Connected: s.link != nil, Err: s.err, Tools: s.tools, Hidden: s.hidden}
}

// close ends the connection for good.
func (s *server) close() {
	s.mu.Lock()
	s.closed = true
	l := s.link
	s.link, s.tools = nil, nil
	s.mu.Unlock()
	if l != nil {
		l.close()
	}
}

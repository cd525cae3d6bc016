// Package mcp brokers MCP servers for a sandbox. The sandbox names a configured
// server and a tool; the broker holds the address, the token and the process.
// Every call has been approved before it comes here. A server is as foreign as
// a model: what it says about its tools is checked and bounded.
package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"time"

	"msb/protocol/turnrpc"
	"msb/turn/config"
	"msb/turn/creds"
)

// Time limits.
const (
	ConnectTimeout = 30 * time.Second // to connect and list the tools
	CallTimeout    = 60 * time.Second
	// retryWait is how long a list waits for a server that failed before. The
	// attempt goes on after that, for the next list.
	retryWait = 2 * time.Second
)

// Options configures a Broker. Servers is needed; Credentials too, if a server
// has any.
type Options struct {
	// Servers are the configured ones; it is called for every list, and what
	// changed is connected anew.
	Servers     func() ([]config.Server, error)
	Offline     func() bool // true: no server but the built-in one; nil: false
	Credentials *creds.Store
	// Self is the program and first arguments that the built-in server is
	// started with; empty: the running program.
	Self []string
	Log  *slog.Logger
}

// Broker brokers the servers of one session. It is safe for concurrent use and
// implements turn.MCP.
type Broker struct {
	o    Options
	log  *slog.Logger
	ctx  context.Context
	end  context.CancelFunc
	work sync.WaitGroup

	mu      sync.Mutex
	servers []*server // in the order of the configuration
	calls   map[string]context.CancelFunc
	closed  bool
}

// New returns a broker that has not connected to anything yet.
func New(o Options) *Broker {
	b := &Broker{o: o, log: o.Log, calls: make(map[string]context.CancelFunc)}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	b.ctx, b.end = context.WithCancel(context.Background())
	return b
}

var errClosed = errors.New("MCP broker closed")

// reload takes the configuration as it is now.
func (b *Broker) reload() ([]*server, error) {
	configured, err := b.o.Servers()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, errClosed
	}
	if err != nil {
		b.log.Error("settings cannot be read; MCP servers stay as they are", "err", err)
		return b.servers, nil
	}
	offline := b.o.Offline != nil && b.o.Offline()
	old := b.servers
	b.servers = nil
	for _, c := range configured {
		if offline && !c.Builtin() {
			continue
		}
		var s *server
		for i, o := range old {
			if o != nil && reflect.DeepEqual(o.conf, c) {
				s, old[i] = o, nil
			}
		}
		if s == nil {
			s = newServer(b, c)
		}
		b.servers = append(b.servers, s)
	}
	for _, o := range old {
		if o != nil {
			o.close()
		}
	}
	return b.servers, nil
}

// List returns the tools of all servers that can be reached. Servers are
// connected when first needed, all at once; one that fails costs its own tools.
func (b *Broker) List(ctx context.Context) ([]turnrpc.MCPTool, error) {
	servers, err := b.reload()
	if err != nil {
		return nil, err
	}
	found := make([][]Tool, len(servers))
	var wait sync.WaitGroup
	for i, s := range servers {
		wait.Go(func() { found[i], _ = s.discover(ctx, true) }) // Status tells why one has none
	}
	wait.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	list := []turnrpc.MCPTool{}
	for i, s := range servers {
		for _, t := range found[i] {
			if len(list) == turnrpc.MaxMCPTools {
				b.log.Warn("too many MCP tools; the rest is left out", "server", s.conf.Name, "limit", turnrpc.MaxMCPTools)
				return list, nil
			}
			list = append(list, turnrpc.MCPTool{
				Server: s.conf.Name, Name: t.Name, Prefixed: s.conf.Name + turnrpc.MCPSeparator + t.Name,
				Description: t.Description, Parameters: t.Parameters,
			})
		}
	}
	return list, nil
}

// find returns a server that is configured and, unless offline, may be used.
func (b *Broker) find(name string) (*server, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.servers {
		if s.conf.Name == name {
			return s, nil
		}
	}
	if b.o.Offline != nil && b.o.Offline() {
		return nil, errors.New("offline mode: MCP access is disabled")
	}
	return nil, fmt.Errorf("unknown MCP server %q", clip(name, 64))
}

// Call runs a tool that has been approved. An error is about the call; what a
// tool says about its own failure is a result.
func (b *Broker) Call(ctx context.Context, c turnrpc.MCPCall) (turnrpc.MCPResult, error) {
	var none turnrpc.MCPResult
	switch {
	case len(c.Arguments) > turnrpc.MaxMCPArguments:
		return none, fmt.Errorf("MCP arguments too large: %d bytes, allowed are %d", len(c.Arguments), turnrpc.MaxMCPArguments)
	case len(c.Arguments) > 0 && !json.Valid(c.Arguments):
		return none, errors.New("MCP arguments are not valid JSON")
	}
	s, err := b.find(c.Server)
	if err != nil {
		return none, err
	}
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	defer context.AfterFunc(b.ctx, cancel)()
	if err := b.enter(c.CallID, cancel); err != nil {
		return none, err
	}
	defer b.leave(c.CallID)
	return s.call(ctx, c)
}

// enter notes a call under way.
func (b *Broker) enter(id string, cancel context.CancelFunc) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return errClosed
	case id == "":
		return errors.New("MCP call id required")
	case len(b.calls) >= turnrpc.MaxMCPCalls:
		return errors.New("too many concurrent MCP calls")
	}
	if _, twice := b.calls[id]; twice {
		return fmt.Errorf("MCP call id %q is in use", clip(id, 64))
	}
	b.calls[id] = cancel
	b.work.Add(1)
	return nil
}

func (b *Broker) leave(id string) {
	b.mu.Lock()
	delete(b.calls, id)
	b.mu.Unlock()
	b.work.Done()
}

// Cancel ends a call; an unknown one is ignored.
func (b *Broker) Cancel(id string) {
	b.mu.Lock()
	cancel := b.calls[id]
	b.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

// Close ends all calls, connections and server processes and waits for them.
func (b *Broker) Close() error {
	b.mu.Lock()
	b.closed = true
	servers := b.servers
	b.mu.Unlock()
	b.end()
	for _, s := range servers {
		s.close()
	}
	b.work.Wait()
	return nil
}

// Status is a server as its user wants to know it.
type Status struct {
	Server    config.Server
	Connected bool
	Err       error  // why it is not, for the user of the host
	Tools     []Tool // those that may be used
	Hidden    int    // tools that the settings leave out or that cannot be used
}

// Status returns what is known of every server. It connects to none.
func (b *Broker) Status() []Status {
	b.mu.Lock()
	servers := b.servers
	b.mu.Unlock()
	var list []Status
	for _, s := range servers {
		list = append(list, s.status())
	}
	return list
}

// Claim is what a server says one of its tools does; "" for nothing, and for a
// tool that was not discovered.
func (b *Broker) Claim(server, tool string) string {
	s, err := b.find(server)
	if err != nil {
		return ""
	}
	t, _ := s.tool(tool)
	return t.Claim
}

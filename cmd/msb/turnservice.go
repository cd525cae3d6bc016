package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"msb/agentclient"
	"msb/protocol/turnrpc"
	"msb/turn"
	"msb/turn/approval"
	"msb/turn/config"
	"msb/turn/creds"
	"msb/turn/mcp"
	"msb/turn/provider"
	"msb/turn/socket"
	"msb/turn/workspace"
	"msb/vmm/runtime"
	"msb/vmm/secrets"
)

// turnService serves turn.sock of a sandbox beside its relay: sessions, brokers and approvals live in the runtime's
// process.
func turnService(vault *secrets.Vault) runtime.Service {
	var l *net.UnixListener
	prepare := func(_ context.Context, s runtime.Sandbox) (err error) {
		l, err = socket.Listen(s.Home.TurnSocket(s.Config.Name))
		return err
	}
	return runtime.Service{Name: "turns", Prepare: prepare, Run: func(ctx context.Context, s runtime.Sandbox) error {
		guest := agentGuest{socket: s.Home.AgentSocket(s.Config.Name), work: workspace.At(workspaceDir(s.Home, s.Config.Name)), log: s.Log}
		e, err := newTurnEngine(engineParts{
			name: s.Config.Name, dir: s.Home.SandboxDir(s.Config.Name), settings: s.Home.Config,
			dial: guest.dial, before: guest.before, secrets: vault.Use, log: s.Log,
		})
		if err != nil {
			l.Close()
			return err
		}
		defer e.close()
		return serveTurns(ctx, e.Engine, l, s.Log)
	}}
}

// serveTurns serves an engine until ctx ends.
func serveTurns(ctx context.Context, e *turn.Engine, l *net.UnixListener, log *slog.Logger) error {
	server := socket.NewServer(e, log)
	defer context.AfterFunc(ctx, server.Close)()
	return server.Serve(l)
}

// engineParts is what a turn engine is made of here.
type engineParts struct {
	name     string
	dir      string // sessions, rules and the audit log are below it
	settings string // the user's settings file, read whenever it is needed
	dial     func(ctx context.Context, c turnrpc.GuestConfig) (io.ReadWriteCloser, error)
	before   func(ctx context.Context, i turn.Info) error
	secrets  func(name, host string) (string, error) // of the sandbox; nil = it has none
	log      *slog.Logger
}

// turnEngine is an engine with what has to be closed after it.
type turnEngine struct {
	*turn.Engine
	gate  *approval.Gate
	audit *approval.Audit
}

func (e *turnEngine) close() {
	e.gate.Close()
	e.Engine.Close()
	e.audit.Close()
}

func rulesPath(dir string) string    { return filepath.Join(dir, "rules.json") }
func auditPath(dir string) string    { return filepath.Join(dir, "audit.jsonl") }
func sessionsPath(dir string) string { return filepath.Join(dir, "sessions") }

// DemoPaceEnv overrides the scripted model's pause between two words, such as 0s.
const DemoPaceEnv = "MSB_DEMO_PACE"

func demoPace() time.Duration {
	if d, err := time.ParseDuration(os.Getenv(DemoPaceEnv)); err == nil && d >= 0 {
		return d
	}
	return 25 * time.Millisecond
}

// newTurnEngine composes the engine: the settings are read anew for every use, so a change needs no restart.
func newTurnEngine(p engineParts) (*turnEngine, error) {
	rules, err := approval.OpenRules(rulesPath(p.dir))
	if err != nil {
		return nil, err
	}
	audit, err := approval.OpenAudit(auditPath(p.dir))
	if err != nil {
		return nil, err
	}
	patience := func() time.Duration {
		c, err := config.Load(p.settings)
		if err != nil {
			return 0
		}
		return c.Approvals.Timeout
	}
	gate, err := approval.New(approval.Options{Audit: audit, Rules: rules, Timeout: patience, Tool: func(server, tool string) string {
		c, err := config.Load(p.settings)
		if err != nil {
			return config.PolicyDeny // what cannot be read allows nothing
		}
		return c.Policy(server, tool)
	}})
	if err != nil {
		audit.Close()
		return nil, err
	}
	store := creds.Open(config.CredentialsDir(p.settings)).ForSandbox(p.secrets)
	offline := func() bool {
		c, err := config.Load(p.settings)
		return err != nil || c.Offline
	}
	e := turn.NewEngine(turn.EngineOptions{
		Sandbox: p.name, Store: turn.OpenStore(sessionsPath(p.dir)), Gate: gate, Dial: p.dial,
		Model: func(profile string) (turnrpc.GuestModel, error) {
			m, err := loadModel(p.settings, profile)
			return m.Guest(), err
		},
		Models: func() []string {
			c, err := config.Load(p.settings)
			if err != nil {
				return nil
			}
			return c.ModelNames()
		},
		Provider: func(selected func() string, emit func(turnrpc.ProviderEvent) error) turn.Provider {
			return provider.New(provider.Options{
				Model:   func(name string) (config.Model, error) { return loadModel(p.settings, name) },
				Offline: offline, Credentials: store, Pace: demoPace(), Log: p.log,
			}, selected, emit)
		},
		MCP: func() (turn.MCP, error) {
			return mcp.New(mcp.Options{Servers: func() ([]config.Server, error) {
				c, err := config.Load(p.settings)
				if err != nil {
					return nil, err
				}
				return c.MCPServers, nil
			}, Offline: offline, Credentials: store, Log: p.log}), nil
		},
		BeforeTurn: p.before, CommandUser: runtime.DefaultUser, Log: p.log,
	})
	return &turnEngine{Engine: e, gate: gate, audit: audit}, nil
}

func loadModel(settings, profile string) (config.Model, error) {
	c, err := config.Load(settings)
	if err != nil {
		return config.Model{}, err
	}
	return c.Model(profile)
}

// agentGuest starts turn agents in a sandbox through its agent socket.
type agentGuest struct {
	socket string
	work   *workspace.Workspace
	log    *slog.Logger
}

func (g agentGuest) dial(ctx context.Context, c turnrpc.GuestConfig) (io.ReadWriteCloser, error) {
	client, err := agentclient.Dial(ctx, g.socket)
	if err != nil {
		return nil, err
	}
	if err := g.work.Make(ctx, client); err != nil {
		client.Close()
		return nil, fmt.Errorf("make %s: %w", workspace.Root, err)
	}
	c.RepoDir = workspace.Root
	rwc, err := turn.Stdio{User: "root", Log: g.log}.Dial(ctx, client, c) // it gives up being root by itself
	if err != nil {
		client.Close()
		return nil, err
	}
	return &withClient{rwc, client}, nil
}

// withClient closes the connection that a stream came over.
type withClient struct {
	io.ReadWriteCloser
	client *agentclient.Client
}

func (w *withClient) Close() error { return errors.Join(w.ReadWriteCloser.Close(), w.client.Close()) }

// before keeps the workspace as it is before a turn. That this fails is remembered by the workspace and stops no turn.
func (g agentGuest) before(ctx context.Context, i turn.Info) error {
	client, err := agentclient.Dial(ctx, g.socket)
	if err != nil {
		return err
	}
	defer client.Close()
	err = g.work.Snapshot(ctx, client, workspace.Snapshot{Session: i.ID, Turn: i.Turn, Title: i.Title})
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		g.log.Warn("the turn cannot be undone", "error", err)
	}
	return nil
}

// turnSocket connects to the turn engine of a running sandbox.
func (a *app) turnSocket(ctx context.Context, name string) (*socket.Client, error) {
	h, err := a.ownSandbox(name)
	if err != nil {
		return nil, err
	}
	c, err := socket.Dial(ctx, h.TurnSocket(name))
	if err == nil || ctx.Err() != nil {
		return c, err
	}
	if h.Locked(name) {
		return nil, fmt.Errorf("%w; was sandbox %q started by an older msb? `msb restart %s`", err, name, name)
	}
	return nil, fmt.Errorf("sandbox %q is not running; start it with `msb start %s`", name, name)
}

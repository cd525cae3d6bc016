package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"msb/cmd/msb/progress"
	"msb/turn"
	"msb/turn/approval"
	"msb/turn/socket"
)

// exitDenied is the code of a turn that was denied something it needed.
const exitDenied = 3

// turnOptions are the flags of turn.
type turnOptions struct {
	prompt   string
	model    string
	session  string
	maxTurns int
	timeout  time.Duration
	approve  string
	json     bool
	project  workspaceOptions
	rpc      rpcOptions
}

func newTurnCmd(app *app) *cobra.Command {
	var o turnOptions
	cmd := &cobra.Command{
		Use:   "turn NAME [--prompt TEXT | -]",
		Short: "Give the agent in a sandbox a task",
		Long: `Run one turn of the agent in a running sandbox and print what it says: its words on standard
output, what it does on standard error; with --json every event as one line of JSON on standard
output. The prompt is --prompt or, with -, standard input. The turn ends with you: Ctrl-C cancels it.

What the agent wants to run or to call is decided by --approve: "ask" asks on this terminal and
everyone with ` + "`msb approvals`" + ` open (the default on a terminal), "deny" denies everything (the default
elsewhere), anything else is a policy file. Nothing is ever allowed because nobody answered.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 denied something it needed, 124 timed out, 130 cancelled.`,
		Example: `  msb turn demo --prompt "fix the failing test"
  msb turn demo --session 3f2a --prompt "now the docs"
  git log -1 --format=%B | msb turn demo - --approve policy.yaml --json --timeout 10m`,
		Args:              cobra.RangeArgs(0, 2),
		ValidArgsFunction: app.completeNames(1),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			return app.turn(ctx, args, &o)
		}),
	}
	f := cmd.Flags()
	f.StringVarP(&o.prompt, "prompt", "p", "", "what to do")
	f.StringVar(&o.model, "model", "", "model profile (default: the session's, or the first one of the settings)")
	f.StringVar(&o.session, "session", "", "go on with a session: its name, its id, or the start of it")
	f.IntVar(&o.maxTurns, "max-turns", 0, "how often the model may be asked (default 16)")
	f.Var(durationValue{&o.timeout}, "timeout", "cancel the turn after this long and exit 124")
	f.StringVar(&o.approve, "approve", "", "ask, deny, or a policy file (default: ask on a terminal, else deny)")
	f.BoolVar(&o.json, "json", false, "events as JSON, one a line")
	o.project.flags(cmd)
	o.rpc.flags(cmd)
	return cmd
}

// turnArgs checks the arguments and reads the prompt.
func (a *app) turnArgs(args []string, o *turnOptions) (name string, err error) {
	stdin := false
	if n := len(args); n > 0 && args[n-1] == "-" {
		stdin, args = true, args[:n-1]
	}
	switch {
	case len(args) > 1:
		return "", &usageError{fmt.Errorf("what is %q? the prompt is given with --prompt", args[1])}
	case len(args) == 0 && o.rpc.socket == "":
		return "", &usageError{errors.New("which sandbox? give its NAME")}
	case len(args) == 1 && o.rpc.socket != "":
		return "", &usageError{errors.New("--rpc-socket stands in place of NAME")}
	case o.prompt != "" && stdin:
		return "", &usageError{errors.New("give --prompt or -, not both")}
	case o.prompt == "" && !stdin:
		return "", &usageError{errors.New("what is to be done? give --prompt TEXT, or - to read it from standard input")}
	case o.maxTurns < 0 || o.timeout < 0:
		return "", &usageError{errors.New("--max-turns and --timeout cannot be negative")}
	}
	if err := o.project.check(); err != nil {
		return "", err
	}
	if o.rpc.socket != "" && o.project.dir != "" {
		return "", &usageError{errors.New("--workspace is for sandboxes of msb's own; a guest at --rpc-socket has its own files")}
	}
	if stdin {
		b, err := io.ReadAll(io.LimitReader(a.io.In, 1<<20))
		if err != nil {
			return "", fmt.Errorf("read the prompt: %w", err)
		}
		if o.prompt = string(b); len(b) == 0 {
			return "", &usageError{errors.New("the prompt on standard input is empty")}
		}
	}
	if o.approve == "" {
		o.approve = "deny"
		if !o.json && a.io.InTTY() && a.io.ErrTTY() && !stdin {
			o.approve = "ask"
		}
	}
	if len(args) == 1 {
		name = args[0]
	}
	return name, nil
}

func (a *app) turn(ctx context.Context, args []string, o *turnOptions) error {
	name, err := a.turnArgs(args, o)
	if err != nil {
		return err
	}
	policy, err := approval.LoadPolicy(o.approve)
	if err != nil {
		return &usageError{err}
	}
	if o.rpc.socket != "" {
		return a.withForeignGuest(ctx, &o.rpc, func(c *socket.Client) error { return a.runTurn(ctx, c, o, policy) })
	}
	if o.project.dir != "" {
		steps := progress.New(a.io, a.io.Err, a.io.ErrTTY(), false)
		if err := a.bringWorkspace(ctx, name, o.project, steps); err != nil {
			return err
		}
	}
	c, err := a.turnSocket(ctx, name)
	if err != nil {
		return err
	}
	defer c.Close()
	return a.runTurn(ctx, c, o, policy)
}

// runTurn runs a turn in a session that is opened for it, and closed after it unless others had it open.
func (a *app) runTurn(ctx context.Context, c *socket.Client, o *turnOptions, policy *approval.Policy) error {
	open := socket.OpenParams{Session: o.session, Model: o.model}
	wasOpen := false
	if o.session != "" {
		i, err := c.Show(ctx, o.session)
		if err != nil {
			return err
		}
		wasOpen = i.State != turn.StateClosed
	}
	info, err := c.Open(ctx, open)
	if err != nil {
		return err
	}
	if !wasOpen {
		defer func() {
			closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closePatience)
			defer cancel()
			c.CloseSession(closing, info.ID)
		}()
	}
	if !o.json {
		fmt.Fprintf(a.io.Err, "session %s, model %s\n", short(info), info.Model)
	}
	ask, err := a.askWhile(ctx, c, policy)
	if err != nil {
		return err
	}
	defer ask.stop()
	started, err := c.StartTurn(ctx, socket.TurnParams{
		Session: info.ID, Text: o.prompt, MaxTurns: o.maxTurns, Timeout: o.timeout, Rich: true, Lease: true, Policy: policy,
	})
	if err != nil {
		return err
	}
	ask.begin(info.ID, started.Turn)
	f := &follower{app: a, c: c, session: info.ID, turn: started.Turn, json: o.json, ask: ask}
	return f.follow(ctx, started.From)
}

const (
	// closePatience bounds the farewell to a session's guest.
	closePatience = 10 * time.Second
	// cancelPatience is how long a cancelled turn may take to end.
	cancelPatience = turn.CancelTimeout + 3*time.Second
)

// short is how a session is called.
func short(i turn.Info) string {
	if i.Name != "" {
		return i.Name
	}
	return i.ID[:min(len(i.ID), 8)]
}

// follower prints the events of a turn and says how it ended.
type follower struct {
	app     *app
	c       *socket.Client
	session string
	turn    string
	json    bool
	ask     *asker
	out     eventPrinter
	denied  map[string]bool // what was denied and not allowed later
}

// follow returns when the turn has ended. When ctx ends it cancels the turn and goes on to its end.
func (f *follower) follow(ctx context.Context, from uint64) error {
	f.denied = make(map[string]bool)
	f.out = newEventPrinter(f.app, f.json)
	events, err := f.c.Subscribe(ctx, f.session, from)
	if err != nil {
		return err
	}
	defer events.Close()
	reading, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, func() {
		bound, cancel := context.WithTimeout(reading, cancelPatience)
		defer cancel()
		if err := f.c.CancelTurn(bound, f.session, f.turn); err != nil {
			stop()
			return
		}
		<-bound.Done()
		stop()
	})()
	for {
		e, err := events.Next(reading)
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if errors.Is(err, io.EOF) {
				err = errors.New("the session was removed")
			}
			return fmt.Errorf("the turn's events: %w", err)
		}
		if e.Turn != f.turn {
			continue
		}
		if err := f.event(e); err != nil {
			return err
		}
		if e.Kind == turn.KindEnd {
			return f.end(ctx, e)
		}
	}
}

// event prints an event and notes what was denied.
func (f *follower) event(e turn.Event) error {
	if e.Request != nil && e.Outcome != nil {
		what := e.Request.Kind + "\x00" + e.Request.Command + "\x00" + e.Request.Server + "\x00" + e.Request.MCPTool
		if e.Outcome.Allowed {
			delete(f.denied, what)
		} else {
			f.denied[what] = true
		}
	}
	f.ask.around(func() { f.out.event(e) })
	return f.out.failed()
}

// end is the turn's end as an error with its exit code.
func (f *follower) end(ctx context.Context, e turn.Event) error {
	say := func(code int, text string) error {
		if f.json {
			return &exitError{code, nil}
		}
		return &exitError{code, errors.New(text)}
	}
	switch {
	case e.Status == turn.StatusTimedOut:
		return say(exitTimeout, "the turn was cancelled: it took longer than --timeout")
	case ctx.Err() != nil:
		return say(exitInterrupted, "the turn was cancelled")
	case e.Status == turn.StatusCanceled:
		return say(exitInterrupted, "the turn was cancelled by someone else")
	case e.Code != "":
		return say(exitFailure, "the turn failed: "+e.Err)
	case len(f.denied) > 0:
		return say(exitDenied, "the agent was denied something it asked for")
	}
	return nil
}

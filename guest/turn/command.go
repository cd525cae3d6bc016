package turn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"msb/protocol/turnrpc"
)

// Limits of a model's command.
const (
	defaultCommandTime = 60 * time.Second
	maxCommandTime     = 600 * time.Second
	modelOutput        = 24 << 10 // of each stream, for the model
	drainPatience      = 2 * time.Second
)

// job is a command to run to its end.
type job struct {
	command Command
	stdin   []byte
	timeout time.Duration
	keep    int // bytes of each stream; more is cut in the middle
	// live gets output as it comes, if it is not nil. While it blocks, the command's output waits.
	live func(stream, text string) error
}

// outcome is how a job ended.
type outcome struct {
	status             ExitStatus
	stdout, stderr     string
	cut                bool
	timedOut, canceled bool
	duration           time.Duration
}

// execute runs a job. Whatever happens, nothing of the command is left when it returns.
func (a *agent) execute(ctx context.Context, j job) (outcome, error) {
	begun := a.now()
	p, err := a.cfg.Runner.Start(ctx, j.command)
	if err != nil {
		return outcome{}, err
	}
	limited, cancel := context.WithTimeout(ctx, j.timeout)
	defer cancel()
	stop := context.AfterFunc(limited, p.Kill)
	defer stop()

	stdin, stdout, stderr := p.Files()
	var feeding, pumping sync.WaitGroup
	feeding.Go(func() {
		_, _ = stdin.Write(j.stdin) // a command need not read it all
		stdin.Close()
	})
	outs := [2]*outputStream{newOutput("stdout", j.keep), newOutput("stderr", j.keep)}
	for i, r := range []io.Reader{stdout, stderr} {
		pumping.Go(func() { outs[i].pump(limited, r, j.live) })
	}
	status, err := p.Wait()
	// All writers are dead, but a descriptor may have been handed to somebody else.
	late := time.AfterFunc(drainPatience, func() { stdout.Close(); stderr.Close() })
	pumping.Wait()
	late.Stop()
	stdin.Close()
	stdout.Close()
	stderr.Close()
	feeding.Wait()

	out := outcome{status: status, duration: a.now().Sub(begun)}
	out.stdout, out.stderr = outs[0].kept.String(), outs[1].kept.String()
	out.cut = outs[0].kept.cut() || outs[1].kept.cut()
	out.canceled = ctx.Err() != nil
	out.timedOut = !out.canceled && limited.Err() != nil
	if err != nil && !out.canceled {
		return outcome{}, err
	}
	return out, nil
}

func (t *turn) runCommand(c toolCall) (string, error) {
	var p struct {
		Command string  `json:"command"`
		Workdir string  `json:"workdir"`
		Timeout integer `json:"timeout_sec"`
		Reason  string  `json:"reason"`
	}
	if err := arguments(c, &p, "command"); err != nil {
		return "", err
	}
	if err := checkCommand(p.Command); err != nil {
		return "", err
	}
	timeout := defaultCommandTime
	if p.Timeout > 0 {
		timeout = min(time.Duration(min(int(p.Timeout), 1<<30))*time.Second, maxCommandTime)
	}
	if deadline, ok := t.ctx.Deadline(); ok {
		timeout = max(min(timeout, deadline.Sub(t.a.now())), time.Second)
	}
	dir, err := t.a.cfg.Tree.OpenDir(t.ctx, p.Workdir)
	if err != nil {
		return "", fmt.Errorf("workdir: %w", err)
	}
	defer dir.Close()
	workdir := t.a.cfg.Tree.Dir()
	if rel := t.a.cfg.Tree.Local(p.Workdir); rel != "." {
		workdir += "/" + strings.TrimSuffix(rel, "/")
	}
	if err := t.approve(c, turnrpc.ApprovalRequest{
		TurnID: t.id, ToolID: c.id, Command: p.Command, Workdir: workdir, TimeoutSec: max(int(timeout/time.Second), 1),
	}); err != nil {
		return "", err
	}
	j := job{command: Command{Argv: []string{"/bin/sh", "-c", p.Command}, Dir: dir}, timeout: timeout, keep: modelOutput}
	if t.output {
		live := newLive(t, c)
		defer live.end()
		j.live = live.send
	}
	out, err := t.a.execute(t.ctx, j)
	if err != nil {
		return "", err
	}
	if out.canceled {
		return "", context.Cause(t.ctx)
	}
	var b strings.Builder
	if out.timedOut {
		fmt.Fprintf(&b, "killed after %v; what it printed until then:\n", timeout)
	} else {
		fmt.Fprintf(&b, "exit=%d\n", out.status.Code)
	}
	if out.status.Signal != 0 && !out.timedOut {
		fmt.Fprintf(&b, "[killed by signal %d]\n", out.status.Signal)
	}
	b.WriteString(out.stdout)
	if out.stderr != "" {
		if out.stdout != "" && !strings.HasSuffix(out.stdout, "\n") {
			b.WriteByte('\n')
		}
		b.WriteString(out.stderr)
	}
	if out.status.Left > 0 {
		fmt.Fprintf(&b, "\n[%d processes of the command could not be killed]", out.status.Left)
	}
	return b.String(), nil
}

// approve asks the user through the host. Everything but a clear yes is a no.
func (t *turn) approve(c toolCall, r turnrpc.ApprovalRequest) error {
	event := turnrpc.AgentEvent{Kind: turnrpc.EventApproval, Tool: turnrpc.MethodRunCommand, Status: turnrpc.StatusPending, ToolID: c.id, ToolArgs: c.args}
	if err := t.emit(event); err != nil {
		return err
	}
	var decision turnrpc.Approval
	err := t.a.conn.Call(t.ctx, t.a.nextCall(), turnrpc.MethodRequestApproval, r, &decision)
	if t.ctx.Err() != nil {
		return context.Cause(t.ctx)
	}
	event.ToolArgs = ""
	if err == nil && decision.Decision == turnrpc.DecisionAllowOnce {
		event.Status = turnrpc.StatusAllowed
		return t.emit(event)
	}
	event.Status = turnrpc.StatusDenied
	denied := denial(decision, err, t.a.hostKnows(turnrpc.ExtDenialReason))
	return errors.Join(denied, t.emit(event))
}

// denial tells a model why it may not.
func denial(d turnrpc.Approval, err error, reasons bool) error {
	if !reasons || err != nil {
		return errors.New("run_command denied")
	}
	words := map[string]string{
		turnrpc.CauseUser:       "run_command denied by the user",
		turnrpc.CauseRule:       "run_command denied by a rule of the user",
		turnrpc.CauseTimeout:    "run_command denied: nobody answered in time",
		turnrpc.CauseNoApprover: "run_command denied: there is no one to ask",
	}[d.Cause]
	if words == "" {
		words = "run_command denied"
	}
	if reason := strings.TrimSpace(d.Reason); reason != "" {
		words += ": " + clip(reason, 2048)
	}
	return errors.New(words)
}

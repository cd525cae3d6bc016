package vmm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"msb/vmm/runtime"
	"msb/vmm/store"
)

// Start starts a stopped sandbox and returns when the guest is ready; ErrRunning if it runs. One that is
// ending is waited for first. When ctx ends first the sandbox is stopped again.
func (h *Host) Start(ctx context.Context, name string, _ StartOptions, report Progress) (Sandbox, error) {
	s, err := h.Inspect(ctx, name)
	if err != nil {
		return Sandbox{}, err
	}
	if s.ending() {
		st := store.State{RuntimePID: s.RuntimePID, RuntimeStart: s.RuntimeStart}
		done, err := h.awaitEnd(ctx, name, st, DefaultStopTimeout)
		if err != nil {
			return Sandbox{}, err
		}
		if !done {
			return s, fmt.Errorf("start %q: its last run has not ended yet; `msb stop -f %[1]s` ends it", name)
		}
	} else if s.Running() {
		return s, fmt.Errorf("%w: %q", ErrRunning, name)
	}
	if err := h.launch(ctx, name, report); err != nil {
		return Sandbox{}, err
	}
	return h.Inspect(ctx, name)
}

// ending tells whether the sandbox's machine is going away, or has gone while its runtime tidies up.
func (s Sandbox) ending() bool {
	return s.State == store.Stopping || s.State == store.Running && s.EnginePID != 0 && !store.Exists(s.EnginePID)
}

// abortTimeout is how long an interrupted runtime may take to tidy up.
const abortTimeout = 15 * time.Second

// launch starts the sandbox's runtime as a background process and waits until it is ready. On an error no
// runtime is left.
func (h *Host) launch(ctx context.Context, name string, report Progress) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	exe := h.deps.Executable
	if exe == "" {
		var err error
		if exe, err = os.Executable(); err != nil {
			return fmt.Errorf("start %q: %w", name, err)
		}
	}
	if err := os.MkdirAll(h.Home.LogsDir(name), 0o700); err != nil {
		return fmt.Errorf("start %q: %w", name, err)
	}
	log, err := os.OpenFile(h.Home.RuntimeLog(name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("start %q: %w", name, err)
	}
	defer log.Close()
	pr, pw, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start %q: %w", name, err)
	}
	defer pr.Close()
	// Not CommandContext: the runtime outlives us, and is asked, not killed, when ctx ends first.
	cmd := exec.Command(exe, "runtime", name)
	cmd.Dir = "/"
	cmd.Env = append(append(os.Environ(), h.Home.Environ()...), h.deps.Env...)
	cmd.Env = append(cmd.Env, runtime.StatusEnv+"=3")
	cmd.ExtraFiles = []*os.File{pw}
	cmd.Stdout, cmd.Stderr = log, log // a crash of the runtime itself
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	pw.Close()
	if err != nil {
		return fmt.Errorf("start %q: %w", name, err)
	}
	// For a caller that lives on: reaps the runtime when it ends some day.
	ended := make(chan struct{})
	go func() {
		cmd.Wait()
		close(ended)
	}()
	stop := context.AfterFunc(ctx, func() { pr.SetReadDeadline(time.Now()) })
	defer stop()
	err = runtime.ReadStatus(pr, func(r runtime.Report) {
		if report != nil && ctx.Err() == nil {
			report(Event{Stage: r.Stage, Text: r.Text, Warning: r.Warning})
		}
	})
	switch {
	case err == nil && ctx.Err() == nil:
		return nil
	case ctx.Err() != nil:
		h.abort(cmd.Process, ended)
		return fmt.Errorf("start %q: %w", name, ctx.Err())
	case errors.Is(err, store.ErrLocked):
		<-ended
		return fmt.Errorf("%w: %q", ErrRunning, name)
	case errors.Is(err, io.ErrUnexpectedEOF):
		h.abort(cmd.Process, ended)
		return fmt.Errorf("start %q: its runtime ended without a word; see %s", name, h.Home.RuntimeLog(name))
	}
	h.abort(cmd.Process, ended)
	return fmt.Errorf("start %q: %w", name, err)
}

// abort ends a runtime of ours that is not wanted.
func (h *Host) abort(p *os.Process, ended <-chan struct{}) {
	p.Signal(syscall.SIGTERM)
	timeout := time.NewTimer(abortTimeout)
	defer timeout.Stop()
	select {
	case <-ended:
	case <-timeout.C:
		p.Kill() // the machine dies with it
		<-ended
	}
}

// logTail is the end of what the guest printed, for a sandbox whose logs are about to go.
func (h *Host) logTail(name string) string {
	const size, lines = 4 << 10, 10
	f, err := os.Open(h.Home.KernelLog(name))
	if err != nil {
		return ""
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && st.Size() > size {
		f.Seek(-size, io.SeekEnd)
	}
	b, err := io.ReadAll(io.LimitReader(f, size))
	if err != nil {
		return ""
	}
	text := strings.Map(func(r rune) rune {
		if r == '\n' || r >= ' ' && r < 0x7f || r >= 0xa0 && r != 0xfffd {
			return r
		}
		return -1
	}, string(bytes.TrimSpace(b)))
	last := strings.Split(text, "\n")
	last = last[max(0, len(last)-lines):]
	if len(last) == 1 && last[0] == "" {
		return ""
	}
	return "the last lines of its console:\n  " + strings.Join(last, "\n  ")
}

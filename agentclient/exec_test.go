package agentclient

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"msb/protocol/agent"
	"msb/protocol/client"
)

func run(t *testing.T, c *Client, cmd string, args ...string) *Exec {
	t.Helper()
	e, err := c.Exec(within(t), ExecSpec{Cmd: cmd, Args: args})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestExecOutputs(t *testing.T) {
	c, _ := newPeer(t, 9, nil)
	e := run(t, c, "echo", "a", "b")
	code, err := e.Wait()
	if code != 3 || err != nil || e.PID() != 42 {
		t.Errorf("code %d, %v, pid %d", code, err, e.PID())
	}
	out, err1 := io.ReadAll(e.Stdout())
	errs, err2 := io.ReadAll(e.Stderr())
	if string(out) != "a\nb\n" || string(errs) != "err\n" || err1 != nil || err2 != nil {
		t.Errorf("%q %v, %q %v", out, err1, errs, err2)
	}
	if _, err := e.Stdin().Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("write after the end: %v", err)
	}
}

func TestExecFailed(t *testing.T) {
	c, _ := newPeer(t, 9, nil)
	_, err := c.Exec(within(t), ExecSpec{Cmd: "missing"})
	var failed *ExecError
	if !errors.As(err, &failed) || failed.Kind != agent.ExecNotFound || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
	if c.engine.Active() != 0 {
		t.Error("a stream was left")
	}
}

func TestExecSignal(t *testing.T) {
	c, _ := newPeer(t, 9, nil)
	e := run(t, c, "sleep")
	if err := e.Resize(within(t), 10, 20); err != nil {
		t.Error(err)
	}
	if err := e.Signal(within(t), 15); err != nil {
		t.Error(err)
	}
	if code, err := e.Wait(); code != -1 || err != nil {
		t.Errorf("code %d, %v", code, err)
	}
}

func TestExecStdinClosedByCommand(t *testing.T) {
	c, _ := newPeer(t, 9, nil)
	e := run(t, c, "deaf")
	defer e.Close()
	for i := 0; ; i++ {
		_, err := e.Stdin().Write([]byte("x"))
		var in *StdinError
		if errors.As(err, &in) && errors.Is(err, syscall.EPIPE) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Ping(within(t)); err != nil { // the answer is behind the guest's complaint, at some time
			t.Fatal(err)
		}
	}
}

func TestExecCloseKills(t *testing.T) {
	c, p := newPeer(t, 9, nil)
	e := run(t, c, "sleep")
	e.Close()
	if code, err := e.Wait(); code != -1 || err == nil {
		t.Errorf("%d, %v", code, err)
	}
	if _, err := e.Stdout().Read(make([]byte, 1)); err == nil {
		t.Error("read after Close")
	}
	for range 100 {
		if p.op(1) == nil {
			return
		}
		c.Ping(within(t))
	}
	t.Error("the command was not killed")
}

// Giving up before the command runs kills it when it does.
func TestExecStartCancelled(t *testing.T) {
	a, s := newScript(t, 9)
	ctx, cancel := context.WithCancel(within(t))
	failed := make(chan error)
	go func() {
		_, err := a.Exec(ctx, ExecSpec{Cmd: "slow"})
		failed <- err
	}()
	id := s.expect(agent.ExecRequest).ID
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	s.expect(agent.ExecSignal)
	s.send(id, agent.ExecStarted, agent.ExecStartedPayload{PID: 1})
	s.expect(agent.ExecSignal)
	s.send(id, agent.ExecStdout, agent.Data{Data: []byte("x")})
	s.send(id, agent.ExecExited, agent.ExecExitedPayload{Code: -1})
	s.sync(a)
	if n := a.engine.Active(); n != 0 {
		t.Errorf("%d streams left", n)
	}
}

// Nobody reads for as long as the command runs: it ends all the same, other
// streams go on, and every byte is there afterwards.
func TestExecOutputSpooled(t *testing.T) {
	dir := t.TempDir()
	c, _ := newPeer(t, 9, nil, WithSpool(dir, 1<<30))
	const n = 24<<20 + 123
	e := run(t, c, "flood", "25165947")
	if code, err := e.Wait(); code != 0 || err != nil {
		t.Fatal(code, err)
	}
	if _, err := c.Ping(within(t)); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("the spool has a name: %v", left)
	}
	got, err := io.ReadAll(e.Stdout())
	if err != nil || !bytes.Equal(got, pattern(n)) {
		t.Errorf("%d bytes of %d, %v", len(got), n, err)
	}
}

// A reader that is slower than the command, with memory and file in turns.
func TestExecOutputInterleaved(t *testing.T) {
	c, _ := newPeer(t, 9, nil, WithSpool(t.TempDir(), 1<<30), func(c *config) { c.memory = 100 << 10 })
	const n = 8 << 20
	e := run(t, c, "flood", "8388608")
	var got []byte
	buf := make([]byte, 33<<10)
	for {
		m, err := e.Stdout().Read(buf)
		got = append(got, buf[:m]...)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(got, pattern(n)) {
		t.Errorf("%d bytes of %d, or other ones", len(got), n)
	}
}

func TestExecSpoolFull(t *testing.T) {
	c, _ := newPeer(t, 9, nil, WithSpool(t.TempDir(), 1<<20))
	e := run(t, c, "flood", "8388608")
	if _, err := e.Wait(); !errors.Is(err, ErrSpoolFull) {
		t.Errorf("Wait: %v", err)
	}
	got, err := io.ReadAll(e.Stdout())
	if !errors.Is(err, ErrSpoolFull) || !bytes.Equal(got, pattern(8 << 20)[:len(got)]) || len(got) < 1<<20 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if _, err := c.Ping(within(t)); err != nil {
		t.Error(err)
	}
}

// What the guest may not do with a command.
func TestExecBadAnswers(t *testing.T) {
	started := func(s *scripted, id uint32) {
		s.send(id, agent.ExecStarted, agent.ExecStartedPayload{PID: 1})
	}
	cases := map[string]struct {
		play func(s *scripted, id uint32)
		want string
	}{
		"started twice": {func(s *scripted, id uint32) { started(s, id); started(s, id) }, "unexpected core.exec.started"},
		"answer of a file": {func(s *scripted, id uint32) {
			started(s, id)
			s.send(id, agent.FSResponse, agent.FSResponsePayload{OK: true})
		}, "unexpected core.fs.response"},
		"unknown last answer": {func(s *scripted, id uint32) { started(s, id); s.raw(id, 1, "core.exec.vanished", nil) }, "unknown answer"},
		"host's message":      {func(s *scripted, id uint32) { started(s, id); s.raw(id, 0, "core.exec.stdin", nil) }, "goes to the guest"},
		"exited, not last": {func(s *scripted, id uint32) {
			started(s, id)
			s.raw(id, 0, "core.exec.exited", []byte("\xa1\x64code\x00"))
		}, "flags"},
		"stdout, last": {func(s *scripted, id uint32) {
			started(s, id)
			s.raw(id, 1, "core.exec.stdout", []byte("\xa1\x64data\x40"))
		}, "flags"},
		"exited without code": {func(s *scripted, id uint32) { started(s, id); s.raw(id, 1, "core.exec.exited", []byte{0xa0}) }, "missing"},
		"text for bytes": {func(s *scripted, id uint32) {
			started(s, id)
			s.raw(id, 0, "core.exec.stdout", []byte("\xa1\x64data\x61x"))
		}, ""},
		"raw record": {func(s *scripted, id uint32) { started(s, id); s.bulk(id, 1, 2, 0, []byte("x")) }, "flags"},
		"garbage":    {func(s *scripted, id uint32) { started(s, id); s.frame(id, 0, []byte{0xff}) }, ""},
		"error": {func(s *scripted, id uint32) {
			s.send(id, agent.Error, agent.ErrorPayload{Kind: "invalid_session", Message: "paused"})
		}, "invalid_session: paused"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c, s := newScript(t, 9)
			result := make(chan error, 1)
			go func() {
				e, err := c.Exec(within(t), ExecSpec{Cmd: "x"})
				if err == nil {
					_, err = e.Wait()
				}
				result <- err
			}()
			tc.play(s, s.expect(agent.ExecRequest).ID)
			err := <-result
			var bad *ProtocolError
			var said *AgentError
			if !errors.As(err, &bad) && !errors.As(err, &said) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
			s.drain()
			if _, err := c.Ping(within(t)); err != nil {
				t.Errorf("the connection: %v", err)
			}
		})
	}
}

func TestExecLost(t *testing.T) {
	c, s := newScript(t, 9)
	result := make(chan error, 1)
	go func() {
		e, err := c.Exec(within(t), ExecSpec{Cmd: "x"})
		if err != nil {
			result <- err
			return
		}
		_, rerr := io.ReadAll(e.Stdout())
		_, err = e.Wait()
		_, werr := e.Stdin().Write([]byte("x"))
		result <- errors.Join(rerr, err, werr)
	}()
	id := s.expect(agent.ExecRequest).ID
	s.send(id, agent.ExecStarted, agent.ExecStartedPayload{PID: 1})
	s.conn.Close()
	if err := <-result; !client.IsLost(err) {
		t.Errorf("error %v", err)
	}
	select {
	case <-c.Done():
	case <-time.After(time.Minute):
		t.Error("not done")
	}
}

package agentclient

import (
	"context"
	"errors"
	"syscall"
	"testing"

	"msb/protocol/agent"
)

// Without the extension nothing is sent and everything else goes on.
func TestNotOffered(t *testing.T) {
	for generation := uint8(1); generation <= agent.Generation; generation++ {
		c, p := newPeer(t, generation, nil)
		if x := c.Extensions(); len(x) != 0 {
			t.Errorf("generation %d: extensions %v", generation, x)
		}
		_, err := c.Nodes()
		var not *NotOfferedError
		if !errors.As(err, &not) || not.Extension != agent.ExtFS || not.Needs != 1 || not.Offered != 0 {
			t.Errorf("generation %d: %v", generation, err)
		}
		for _, typ := range agent.ExtensionTypes() {
			if typ.Direction()&agent.HostToGuest == 0 {
				continue
			}
			s, err := c.Engine().Open(1)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Send(context.Background(), typ.String(), agent.Empty{}); !errors.As(err, &not) {
				t.Errorf("generation %d: %s: %v", generation, typ, err)
			}
			s.Close()
		}
		e, err := c.Exec(within(t), ExecSpec{Cmd: "true", Window: 100})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e.Wait(); err != nil {
			t.Errorf("generation %d: a command: %v", generation, err)
		}
		if sig, _ := e.Signaled(); sig != 0 {
			t.Errorf("signal %v", sig)
		}
		p.mu.Lock()
		for _, typ := range p.seen {
			if name, _ := typ.Extension(); name != "" {
				t.Errorf("generation %d got %s", generation, typ)
			}
		}
		p.mu.Unlock()
	}
}

func offering(p *peer) { p.extensions = agent.OurExtensions() }

// The extension's messages are refused from a guest that has not listed them.
func TestExtensionAnswerFromAPlainGuest(t *testing.T) {
	c, s := newScript(t, 9)
	ended := make(chan error, 1)
	go func() {
		_, err := c.FS().Stat(within(t), "/", true)
		ended <- err
	}()
	f := s.expect(agent.FSRequest)
	s.send(f.ID, agent.NodeResponse, agent.NodeResponsePayload{})
	var broken *ProtocolError
	if err := <-ended; !errors.As(err, &broken) {
		t.Errorf("%v", err)
	}
}

// Answers that no guest may give end their request, and only that.
func TestNodeAnswers(t *testing.T) {
	entry := []agent.NodeResult{&agent.NodeEntryResult{Node: 1 << 40}}
	for name, c := range map[string]struct {
		answer any
		want   func(error) bool
	}{
		"too many results":    {agent.NodeResponsePayload{Results: append(entry, entry...)}, isBroken},
		"too few results":     {agent.NodeResponsePayload{}, isBroken},
		"success with errno":  {agent.NodeResponsePayload{Results: entry, Errno: 2}, isBroken},
		"errno of no system":  {agent.NodeResponsePayload{Errno: 100000}, isBroken},
		"another result":      {agent.NodeResponsePayload{Results: []agent.NodeResult{&agent.NodeNumberResult{}}}, isBroken},
		"nonsense":            {agent.EncodedPayload("\xff"), isBroken},
		"errno":               {agent.NodeResponsePayload{Errno: uint32(syscall.EXDEV)}, func(err error) bool { return errors.Is(err, syscall.EXDEV) }},
		"errno and a message": {agent.NodeResponsePayload{Errno: uint32(syscall.EIO), Message: "\x1b[31mred"}, func(err error) bool { return errors.Is(err, syscall.EIO) }},
	} {
		t.Run(name, func(t *testing.T) {
			client, s := newScriptOf(t, 9, offering)
			n, err := client.Nodes()
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() {
				_, err := n.Lookup(within(t), 1<<41, []byte("x"))
				ended <- err
			}()
			f := s.expect(agent.NodeRequest)
			s.send(f.ID, agent.NodeResponse, c.answer)
			if err := <-ended; !c.want(err) {
				t.Errorf("%v", err)
			}
		})
	}
}

func isBroken(err error) bool {
	var broken *ProtocolError
	return errors.As(err, &broken)
}

// What a request brings after its caller has gone is given back.
func TestNodesGivenBack(t *testing.T) {
	c, s := newScriptOf(t, 9, offering)
	n, err := c.Nodes()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(within(t))
	ended := make(chan error, 1)
	go func() {
		_, err := n.Do(ctx, &agent.NodeCreate{Dir: 1 << 41, Name: []byte("x")}, &agent.NodeLock{Handle: 1 << 42, Type: agent.NodeWriteLock, Wait: true})
		ended <- err
	}()
	f := s.expect(agent.NodeRequest)
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if g := s.expect(agent.NodeCancel); g.ID != f.ID {
		t.Errorf("cancel of %d, not %d", g.ID, f.ID)
	}
	s.send(f.ID, agent.NodeResponse, agent.NodeResponsePayload{Results: []agent.NodeResult{
		&agent.NodeCreatedResult{Node: 1 << 43, Handle: 1 << 44}, &agent.NodeNoResult{},
	}})
	for _, want := range []string{"close", "lock", "forget"} {
		f := s.expect(agent.NodeRequest)
		e, _ := agent.ParseEnvelope(f.Body)
		var req agent.NodeRequestPayload
		if err := agent.DecodePayload(e.P, &req); err != nil || len(req.Ops) != 1 || agent.NodeOpName(req.Ops[0]) != want {
			t.Fatalf("%v: %+v, want %s", err, req, want)
		}
		if lock, ok := req.Ops[0].(*agent.NodeLock); ok && (lock.Type != agent.NodeUnlock || lock.Wait) {
			t.Errorf("%+v", lock)
		}
	}
}

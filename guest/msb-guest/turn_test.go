package main

import (
	"encoding/json"
	"io"
	"strings"
	"testing"

	"msb/guest/turn/turntest"
	"msb/protocol/agent"
	"msb/protocol/turnrpc"
)

// execStream is the standard input and output of a command in a sandbox.
type execStream struct {
	s    *sandbox
	id   uint32
	at   int
	rest []byte
}

func (e *execStream) Read(p []byte) (int, error) {
	for len(e.rest) == 0 {
		var m message
		e.s.mu.Lock()
		for {
			for e.at < len(e.s.got) && (e.s.got[e.at].id != e.id || (e.s.got[e.at].t != agent.ExecStdout && e.s.got[e.at].t != agent.ExecExited)) {
				e.at++
			}
			if e.at < len(e.s.got) || e.s.closed != nil {
				break
			}
			e.s.cond.Wait()
		}
		if e.at < len(e.s.got) {
			m = e.s.got[e.at]
			e.at++
		}
		e.s.mu.Unlock()
		if m.t != agent.ExecStdout {
			return 0, io.EOF
		}
		var d agent.Data
		if err := agent.DecodePayload(m.p, &d); err != nil {
			return 0, err
		}
		e.rest = d.Data
	}
	n := copy(p, e.rest)
	e.rest = e.rest[n:]
	return n, nil
}

func (e *execStream) Write(p []byte) (int, error) {
	raw, err := agent.AppendFrame(nil, e.id, agent.ExecStdin, agent.Generation, agent.Data{Data: p})
	if err != nil {
		return 0, err
	}
	return e.s.control.Write(append([]byte{}, raw...)) // one write is one frame
}

func (e *execStream) Close() error {
	_, err := e.Write(nil)
	return err
}

// A whole turn in a sandbox that has neither git nor patch: the agent is a user of its own, its commands are dev.
func TestTurnInSandbox(t *testing.T) {
	for _, profile := range []string{agent.SecurityDefault, agent.SecurityRestricted} {
		t.Run(profile, func(t *testing.T) {
			s := up(t, agent.BootstrapPayload{User: "dev", SecurityProfile: profile})
			if out, _ := s.run(1, sh("grep msb-turn /etc/passwd")); !strings.HasPrefix(out, "msb-turn:x:990:990:") {
				t.Errorf("the image's user for the agent: %q", out)
			}
			root := "root"
			s.send(2, agent.ExecRequest, agent.ExecRequestPayload{Cmd: "/run/msb/msb-guest", Args: []string{"turn", "--rpc", "stdio"}, User: &root})
			s.awaitType(2, agent.ExecStarted)
			line, _ := json.Marshal(turnrpc.GuestConfig{SessionID: "sid", Capability: "cap", Model: turnrpc.GuestModel{Name: "m"}})
			rpc := &execStream{s: s, id: 2}
			if _, err := rpc.Write(append(line, '\n')); err != nil {
				t.Fatal(err)
			}
			const patch = `{"patch":"--- /dev/null\n+++ b/hello/f\n@@ -0,0 +1 @@\n+hello\n"}`
			h := turntest.New(t, rpc, turntest.Script{
				Approve: func(turnrpc.ApprovalRequest) turnrpc.Approval {
					return turnrpc.Approval{Decision: turnrpc.DecisionAllowOnce}
				},
				Model: func(n int, _ turnrpc.ProviderRequest) []turnrpc.ProviderEvent {
					switch n {
					case 0:
						return turntest.Use([2]string{"apply_patch", patch}, [2]string{"read_file", `{"path":"hello/f"}`},
							turntest.Command(`id -u; pwd; stat -c %u hello/f; (setsid sleep 3333 &); cat /proc/self/cgroup | tail -1; sudo -n id 2>&1 | tail -1; kill -9 1 2>&1; for p in $(pidof msb-guest exe); do kill -9 $p 2>&1; done`))
					case 1:
						return turntest.Use(turntest.Command("pidof sleep"))
					}
					return turntest.Say("done")
				},
			})
			if events, err := h.Start(turnrpc.UserTurn{Text: "go"}).Wait(); err != nil {
				t.Fatalf("%v, %v; %v", err, events, s.all(2))
			}
			var got []string
			for len(h.Requests) > 0 {
				got = append(got, turntest.Last(<-h.Requests))
			}
			if len(got) != 3 || !strings.HasPrefix(got[1], "exit=") || !strings.Contains(got[1], "1000\n/work/repo\n1000\n") {
				t.Errorf("the model was told %q", got)
			}
			if !strings.HasPrefix(got[2], "exit=1\n") {
				t.Errorf("a child of the command is left: %q", got[2])
			}
			if out, _ := s.run(3, sh("ps -o user,comm,args | grep msb-turn; cat /var/lib/msb/turn/sid/context.json 2>&1")); !strings.Contains(out, "msb-turn") || !strings.Contains(out, "Permission denied") {
				t.Errorf("from a shell: %s", out)
			}
			if err := h.Call(turnrpc.MethodShutdown, nil, nil); err != nil {
				t.Error(err)
			}
			if m := s.terminal(2); m.t != agent.ExecExited || decode[agent.ExecExitedPayload](t, m).Code != 0 {
				t.Errorf("the agent's end: %v", m)
			}
			s.shutdown()
		})
	}
}

package agent

import (
	"maps"
	"os"
	"testing"

	"msb/protocol/agent"
)

// The guest lists what it serves, serves it, and refuses what it does not know by that name.
func TestExtensions(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the agent starts commands as other users, which needs root")
	}
	h := serve(t, Machine{})
	h.send(0, agent.Bootstrap, agent.BootstrapPayload{SecurityProfile: agent.SecurityDefault})
	h.expect(0, agent.InitResolved)
	h.send(0, agent.InitAck, agent.Empty{})
	ready := payload[agent.ReadyPayload](t, h.expect(0, agent.Ready))
	if !maps.Equal(ready.Extensions, agent.OurExtensions()) {
		t.Errorf("listed %v", ready.Extensions)
	}
	raw, err := agent.AppendEncoded(nil, 5, 2, agent.Generation, "msb.fs.unheard", []byte{0xa0})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.conn.Write(raw); err != nil {
		t.Fatal(err)
	}
	if e := payload[agent.ErrorPayload](t, h.expect(5, agent.Error)); e.Kind != agent.KindUnsupportedType || *e.OffendingType != "msb.fs.unheard" {
		t.Errorf("%+v", e)
	}
	// A payload that is none, and flags that are not its own.
	h.send(6, agent.NodeRequest, agent.Empty{})
	if e := payload[agent.ErrorPayload](t, h.expect(6, agent.Error)); e.Kind != agent.KindInvalidPayload {
		t.Errorf("%+v", e)
	}
	raw, _ = agent.AppendEncoded(nil, 7, 0, agent.Generation, agent.NodeRequest.String(), []byte{0xa0})
	if _, err := h.conn.Write(raw); err != nil {
		t.Fatal(err)
	}
	if e := payload[agent.ErrorPayload](t, h.expect(7, agent.Error)); e.Kind != agent.KindInvalidFlags {
		t.Errorf("%+v", e)
	}
	ops := []agent.NodeOp{&agent.NodeAttach{Path: []byte("/")}}
	h.send(8, agent.NodeRequest, agent.NodeRequestPayload{Ops: ops})
	if r, err := agent.DecodeNodeResponse(h.expect(8, agent.NodeResponse), ops); err != nil || r.Errno != 0 {
		t.Errorf("%v: %+v", err, r)
	}
	// A client of core.exec hears nothing of the extension.
	for id, open := range map[uint32]any{9: agent.ExecRequestPayload{Cmd: "/bin/sh", Args: []string{"-c", "kill -9 $$"}}, 10: agent.ExecOpenPayload{Request: agent.ExecRequestPayload{Cmd: "/bin/sh", Args: []string{"-c", "kill -9 $$"}}}} {
		typ := agent.ExecRequest
		if id == 10 {
			typ = agent.ExecOpen
		}
		h.send(id, typ, open)
		h.expect(id, agent.ExecStarted)
		if id == 10 {
			if s := payload[agent.ExecSignaledPayload](t, h.expect(id, agent.ExecSignaled)); s.Signal != 9 {
				t.Errorf("%+v", s)
			}
		}
		if e := payload[agent.ExecExitedPayload](t, h.expect(id, agent.ExecExited)); e.Code != -1 {
			t.Errorf("%+v", e)
		}
	}
}

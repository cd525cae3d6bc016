package main

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"

	"msb/protocol/agent"
)

// A client whose encoder writes 16-bit map heads and tagged byte strings, and emits generation 5, is understood: every
// envelope recorded of it is given to a guest.
func TestOtherEncoder(t *testing.T) {
	b, err := os.ReadFile("../../protocol/agent/testdata/typescript-v5.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Cases []struct {
			Name, EnvelopeHex string
			Flags             uint8
		}
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	s := up(t, agent.BootstrapPayload{})
	const id = 7
	played := 0
	for _, c := range doc.Cases {
		body, err := hex.DecodeString(c.EnvelopeHex)
		if err != nil {
			t.Fatal(err)
		}
		to := uint32(id)
		switch c.Name {
		case "encoded_fs":
			to = id + 1
		case "native_shutdown":
			to = 0
		}
		s.write(rawFrame(t, to, c.Flags, body))
		played++
		switch c.Name {
		case "native_exec":
			s.awaitType(id, agent.ExecStarted)
		case "native_stdin_bytes":
			if m := s.awaitType(id, agent.ExecStdout); string(decode[agent.Data](t, m).Data) != "hi" {
				t.Errorf("cat said %v", m)
			}
		case "encoded_opaque": // a payload that is none
			if f := failure(t, s.awaitType(id, agent.Error)); f != "invalid_payload core.exec.stdin" {
				t.Errorf("%s", f)
			}
		case "encoded_fs": // an operation that there is not
			if f := failure(t, s.awaitType(id+1, agent.Error)); f != "invalid_payload core.fs.request" {
				t.Errorf("%s", f)
			}
		case "native_shutdown":
			<-s.exited
			if !s.cmd.ProcessState.Success() {
				t.Errorf("the guest ended with %v", s.cmd.ProcessState)
			}
		default:
			t.Errorf("%s: nobody knows what should come of it", c.Name)
		}
	}
	if played != 5 {
		t.Errorf("%d of 5 envelopes", played)
	}
}

package controlclient

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"msb/protocol/control"
)

// recordedLine is what one side of a recorded connection said.
type recordedLine struct{ Dir, JSON, Hex string }

func (l recordedLine) bytes(t *testing.T) []byte {
	t.Helper()
	if l.JSON != "" {
		return []byte(l.JSON)
	}
	b, err := hex.DecodeString(l.Hex)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestRecordedServers puts this client in the place of a published one: the servers that it talked to say the same
// again, in both forms of the protocol, and must be asked the same, byte for byte.
func TestRecordedServers(t *testing.T) {
	b, err := os.ReadFile("../protocol/control/testdata/client.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Framed   [][]recordedLine `json:"framed_server"`
		JSONOnly [][]recordedLine `json:"json_only_server"`
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	for name, conns := range map[string][][]recordedLine{"framed": doc.Framed, "JSON only": doc.JSONOnly} {
		t.Run(name, func(t *testing.T) {
			want := ModeFramed
			if name == "JSON only" {
				want = ModeJSON
			}
			played := 0
			for _, group := range discoveries(conns) {
				playRecorded(t, group, want)
				played++
			}
			if played != 3 {
				t.Errorf("%d of 3 conversations", played)
			}
		})
	}
}

// discoveries are the connections from one discovery up to the next. What the published client asks before, whether the
// sandbox is paused, this one asks when it wants to know.
func discoveries(conns [][]recordedLine) (groups [][][]recordedLine) {
	for _, lines := range conns {
		switch {
		case strings.Contains(lines[0].JSON, `"pause_state"`):
		case strings.Contains(lines[0].JSON, `"capabilities"`):
			groups = append(groups, [][]recordedLine{lines})
		default:
			groups[len(groups)-1] = append(groups[len(groups)-1], lines)
		}
	}
	return groups
}

func playRecorded(t *testing.T, group [][]recordedLine, want Mode) {
	t.Helper()
	r := listen(t, func(n int, c net.Conn) {
		if n >= len(group) {
			t.Errorf("connection %d was not recorded", n)
			return
		}
		for _, l := range group[n] {
			say := l.bytes(t)
			if l.Dir == "s2c" {
				_, _ = c.Write(say)
				continue
			}
			got := make([]byte, len(say))
			if n, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, say) {
				t.Errorf("asked %q %v; recorded %q", got[:n], err, say)
				return
			}
		}
		_, _ = io.Copy(io.Discard, c) // a framed connection stays open
	})
	c := Connect(r.path)
	defer c.Close()
	ctx := context.Context(t.Context())
	last := group[len(group)-1]
	asked := string(last[len(last)-2].bytes(t))
	switch {
	case strings.Contains(asked, "memory"):
		if s, err := c.SetMemoryTarget(ctx, 1024); err != nil || s != (control.MemoryState{BootMiB: 512, TargetMiB: 1024, CurrentMiB: 1024, MaxMiB: 4096}) {
			t.Errorf("memory: %+v, %v", s, err)
		}
	case strings.Contains(asked, "cpu"):
		if s, err := c.SetCPUTarget(ctx, 2); err != nil || s != (control.CPUState{Possible: 4, RequestedOnline: 2, ActualOnline: 2, Enforced: 2}) {
			t.Errorf("CPUs: %+v, %v", s, err)
		}
	}
	if mode, err := c.Mode(ctx); err != nil || mode != want {
		t.Errorf("mode %v, %v", mode, err)
	}
}

package main

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

// line is one frame of a recorded exchange between a host and a published guest agent, or the start of a section.
type line struct {
	Section   string `json:"section"`
	Dir       string `json:"dir"` // h2g or g2h
	Kind      string `json:"kind"`
	Type      string `json:"type"`
	ID        uint32 `json:"id"`
	Len       int    `json:"len"`
	Hex       string `json:"hex"`
	HexHead   string `json:"hex_head"`
	Truncated bool   `json:"truncated"`
}

// raw is the frame's bytes. Of a long record only the head was kept; what followed was one byte repeated, or a pattern.
func (l line) raw(t *testing.T) []byte {
	t.Helper()
	b, err := hex.DecodeString(l.Hex + l.HexHead)
	if err != nil {
		t.Fatal(err)
	}
	payload := len(b) - frame.BulkOverhead
	constant := len(b) > 2 && b[len(b)-1] == b[len(b)-2]
	for len(b) < l.Len {
		if constant {
			b = append(b, b[len(b)-1])
			continue
		}
		b = append(b, byte(payload*7+payload>>8))
		payload++
	}
	return b
}

// differences are where this guest means to differ, by file, section and what the recording has there.
var differences = map[string]string{
	"recorded-bulk.json/bulk read credit-limited: 40000 bytes, 16 KiB records, 16 KiB window/core.bulk.cancel": "a credit that crosses the end of a read is not an error",
}

// TestRecordedExchanges plays the host's side of recorded exchanges and compares the answers by meaning: the same
// messages for each id in the same order with the same payloads, process ids and times excepted, and the same bytes of
// output in however many pieces.
func TestRecordedExchanges(t *testing.T) {
	for _, name := range []string{"recorded-generation9.json", "recorded-bulk.json"} {
		t.Run(name, func(t *testing.T) {
			b, err := os.ReadFile(filepath.Join("testdata", name))
			if err != nil {
				t.Fatal(err)
			}
			var lines []line
			if err := json.Unmarshal(b, &lines); err != nil {
				t.Fatal(err)
			}
			r := &replay{sandbox: start(t, busyboxImage(t), false), file: name, next: make(map[uint32]int), expected: make(map[string][]byte)}
			r.handshake(agent.BootstrapPayload{User: "root", TmpfsMounts: []agent.TmpfsMount{{Path: "/data"}}})
			for _, l := range lines {
				r.line(l)
			}
			r.account()
			r.shutdown()
		})
	}
}

type replay struct {
	*sandbox
	file     string
	section  string
	started  bool           // past the recorded handshake
	next     map[uint32]int // by id: how many of its messages are compared
	over     map[uint32]bool
	expected map[string][]byte // by id and stream: output so far
	input    agent.Position
	waits    uint32
}

func (r *replay) line(l line) {
	switch {
	case l.Section != "":
		r.section, r.started = l.Section, true
	case l.Kind == "range-lease":
		r.started = true
		r.host(l)
	case !r.started: // our own handshake took its place
	case l.Dir == "h2g":
		r.host(l)
	case l.ID != frame.IDLifecycle:
		r.guest(l)
	}
}

func (r *replay) host(l line) {
	raw := l.raw(r.t.(*testing.T))
	ty, _ := agent.ParseType(l.Type)
	switch {
	case ty == agent.TCPConnect:
		r.awaitListener(raw)
	case ty == agent.ExecStdin && strings.Contains(r.section, "after close"):
		pid := decode[agent.ExecStartedPayload](r.t, r.awaitType(l.ID, agent.ExecStarted)).PID
		r.until(fmt.Sprintf("! test -e /proc/%d/fd/0", pid))
	}
	r.count(ty, l.Kind == "bulk", raw)
	r.write(raw)
}

// awaitListener waits until somebody listens where the recorded host connects to: it took its time.
func (r *replay) awaitListener(raw []byte) {
	f, err := frame.Parse(raw)
	if err != nil {
		r.t.Fatal(err)
	}
	port := decode[agent.TCPConnectPayload](r.t, open(f)).Port
	if port < 1024 {
		return
	}
	r.until(fmt.Sprintf("grep -q ':%04X 0*:0000 0A' /proc/net/tcp /proc/net/tcp6", port))
}

// until runs a command in the sandbox that ends when a condition holds.
func (r *replay) until(condition string) {
	r.waits++
	id := 1<<20 + r.waits
	wait := sh("until " + condition + "; do sleep 0.02; done")
	request, err := agent.AppendFrame(nil, id, agent.ExecRequest, agent.Generation, wait)
	if err != nil {
		r.t.Fatal(err)
	}
	r.count(agent.ExecRequest, false, request)
	r.write(request)
	r.terminal(id)
}

// count keeps the books that the guest must keep.
func (r *replay) count(t agent.Type, bulk bool, raw []byte) {
	switch {
	case bulk || t.IsDataClass():
		r.input.BulkBytes += uint64(len(raw))
		r.input.BulkFrames++
	default:
		r.input.ControlBytes += uint64(len(raw))
		r.input.ControlFrames++
	}
}

// guest compares one recorded answer with the next one of this guest.
func (r *replay) guest(l line) {
	t := r.t.(*testing.T)
	if _, known := differences[r.file+"/"+r.section+"/"+l.Type]; known {
		r.skip(l.ID)
		return
	}
	if r.over[l.ID] {
		return
	}
	raw := l.raw(t)
	f, err := frame.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	want := open(f)
	if want.t == agent.ExecStdout || want.t == agent.ExecStderr {
		r.outputOf(want)
		return
	}
	got := r.following(l.ID)
	if want.flags == frame.FlagTerminal {
		r.checkOutput(l.ID)
	}
	if l.Truncated {
		kept := len(l.HexHead)/2 - frame.BulkOverhead
		if got.bulk == nil || want.bulk.Offset != got.bulk.Offset || len(want.bulk.Payload) != len(got.bulk.Payload) ||
			!bytes.Equal(want.bulk.Payload[:kept], got.bulk.Payload[:kept]) {
			t.Errorf("%s: got %v, want %v", r.section, got, want)
		}
		return
	}
	if a, b := r.meaning(got), r.meaning(want); a != b {
		t.Errorf("%s:\n got %s\nwant %s", r.section, a, b)
	}
}

func (r *replay) skip(id uint32) {
	if r.over == nil {
		r.over = make(map[uint32]bool)
	}
	r.over[id] = true
}

// following waits for the id's next message that is not output.
func (r *replay) following(id uint32) message {
	r.t.Helper()
	n := 0
	m, _ := r.await(0, fmt.Sprintf("answer to %d in %q", id, r.section), func(m message) bool {
		if m.id != id || m.lease != nil || m.t == agent.ExecStdout || m.t == agent.ExecStderr || id == 0 && m.t != agent.Error {
			return false
		}
		n++
		return n == r.next[id]+1
	})
	r.next[id]++
	return m
}

func stream(id uint32, t agent.Type) string { return fmt.Sprint(id, t) }

// outputOf waits until as much output is there as the recording has.
func (r *replay) outputOf(want message) {
	key := stream(want.id, want.t)
	r.expected[key] = append(r.expected[key], decode[agent.Data](r.t, want).Data...)
	r.await(0, fmt.Sprintf("output in %q", r.section), func(message) bool { return r.lengthLocked(want.id, want.t) >= len(r.expected[key]) })
}

func (r *replay) lengthLocked(id uint32, t agent.Type) int { return len(r.joinedLocked(id, t)) }

func (r *replay) joinedLocked(id uint32, t agent.Type) []byte {
	var b []byte
	for _, m := range r.got {
		if m.id == id && m.t == t {
			b = append(b, decode[agent.Data](r.t, m).Data...)
		}
	}
	return b
}

func (r *replay) checkOutput(id uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range []agent.Type{agent.ExecStdout, agent.ExecStderr} {
		got, want := r.joinedLocked(id, t), r.expected[stream(id, t)]
		if strings.Contains(string(want), "uid=") { // two busyboxes print groups differently
			continue
		}
		if !bytes.Equal(got, want) {
			r.t.Errorf("%s: %s is %q, want %q", r.section, t, got, want)
		}
	}
}

// meaning is a message without what differs from run to run.
func (r *replay) meaning(m message) string {
	if m.bulk != nil {
		return fmt.Sprintf("record kind %d flow %d offset %d %q", m.bulk.Kind, m.bulk.Flow, m.bulk.Offset, m.bulk.Payload)
	}
	var p any
	if err := cbor.Unmarshal(m.p, &p); err != nil {
		return fmt.Sprintf("%s undecodable %x", m.t, m.p)
	}
	return fmt.Sprintf("%s flags %d v %d %v", m.t, m.flags, m.v, plain(p))
}

// plain drops times, process ids, sizes of folders and the exact words of decoding errors.
func plain(v any) any {
	switch v := v.(type) {
	case map[any]any:
		out := make(map[string]any)
		for k, x := range v {
			key := fmt.Sprint(k)
			switch {
			case key == "pid" || key == "atime" || key == "mtime" || key == "modified":
				x = "…"
			case key == "size" && v["kind"] == "dir":
				x = "…"
			case key == "message" && strings.HasPrefix(fmt.Sprint(x), "decode payload"):
				x, _, _ = strings.Cut(fmt.Sprint(x), ":")
			case key == "List":
				x = listing(x)
			default:
				x = plain(x)
			}
			out[key] = x
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, x := range v {
			out[i] = plain(x)
		}
		return out
	}
	return v
}

// listing keeps of a folder's list only how it is built: which files come first is the file system's choice.
func listing(v any) any {
	entries, ok := v.([]any)
	if !ok || len(entries) == 0 {
		return v
	}
	first, ok := entries[0].(map[any]any)
	if !ok {
		return v
	}
	var keys []string
	for _, k := range reflect.ValueOf(first).MapKeys() {
		keys = append(keys, fmt.Sprint(k))
	}
	dir := filepath.Dir(fmt.Sprint(first["path"]))
	return fmt.Sprint(len(keys), " fields, in ", dir)
}

// account checks that all input has been given back as credit, to the byte.
func (r *replay) account() {
	want := agent.InitialGrants
	want.BulkBytes += r.input.BulkBytes
	want.BulkFrames += r.input.BulkFrames
	want.ControlBytes += r.input.ControlBytes
	want.ControlFrames += r.input.ControlFrames
	deadline := time.Now().Add(time.Minute)
	for {
		var last agent.Position
		for _, m := range r.all(frame.IDLifecycle) {
			if m.t == agent.TransportCredit {
				last = decode[agent.Position](r.t, m)
			}
		}
		if last == want {
			return
		}
		if time.Now().After(deadline) {
			r.t.Errorf("the last grant is %+v, want %+v", last, want)
			return
		}
		r.mu.Lock()
		n := len(r.got)
		r.mu.Unlock()
		r.awaitMore(n, deadline)
	}
}

// awaitMore waits for anything new.
func (r *replay) awaitMore(n int, deadline time.Time) {
	timer := time.AfterFunc(time.Until(deadline), func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.cond.Broadcast()
	})
	defer timer.Stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.got) == n && r.closed == nil && time.Now().Before(deadline) {
		r.cond.Wait()
	}
}

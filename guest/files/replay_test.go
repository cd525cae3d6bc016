package files

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"msb/guest/port"
	"msb/protocol/agent"
	"msb/protocol/frame"
)

// step is one line of a recorded exchange with the published agent.
type step struct {
	Section string
	From    string
	ID      uint32
	V       uint8
	Type    string
	Payload string
	Kind    uint8
	Flow    uint8
	Offset  uint64
	Len     int
	Data    *string
}

// ours are the answers that the published agent does not give: it stays silent on a bad offer.
var ours = map[uint32]string{
	20: "filesystem read bulk offer must grant guest-to-host credit",
	21: "invalid filesystem read bulk offer: unsupported bulk format 2",
	22: "invalid filesystem read bulk offer: record payload limit 1000 is outside 16384..=3145728",
}

// The file operations recorded with the published agent 0.7.2 give the same answers here.
func TestReplay(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the exchanges were recorded as root")
	}
	for _, name := range []string{"agent-0.7.2-basic.json", "agent-0.7.2-bulk.json"} {
		t.Run(name, func(t *testing.T) {
			raw, err := os.ReadFile("testdata/" + name)
			if err != nil {
				t.Fatal(err)
			}
			var steps []step
			if err := json.Unmarshal(raw, &steps); err != nil {
				t.Fatal(err)
			}
			r := newReplay(t)
			for _, st := range steps {
				switch {
				case st.Section != "":
					r.section = st.Section
				case st.From == "host":
					r.host(st)
				default:
					r.guest(st)
				}
			}
			if strings.Contains(name, "bulk") {
				for id, text := range ours {
					r.c.failed(id, text)
				}
			}
			r.c.quiet()
		})
	}
}

type replay struct {
	c       *client
	section string
	over    map[uint32]bool // ids whose terminal answer has come
}

func newReplay(t *testing.T) *replay {
	c := newClient(t)
	for _, d := range []string{"data", "bin"} {
		if err := os.Mkdir(c.path(d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 29 {
		if err := os.Symlink("busybox", c.path("bin", fmt.Sprint("tool", i))); err != nil {
			t.Fatal(err)
		}
	}
	return &replay{c: c, over: map[uint32]bool{}}
}

// inside moves the paths of the recording into the test's directory.
func (r *replay) inside(op agent.FSOp) agent.FSOp {
	d := r.c.dir
	switch op := op.(type) {
	case agent.OpStat:
		op.Path = d + op.Path
		return op
	case agent.OpSetStat:
		op.Path = d + op.Path
		return op
	case agent.OpList:
		op.Path = d + op.Path
		return op
	case agent.OpReadLink:
		op.Path = d + op.Path
		return op
	case agent.OpRealPath:
		op.Path = d + op.Path
		return op
	case agent.OpSymlink:
		op.LinkPath = d + op.LinkPath
		return op
	case agent.OpMkdir:
		op.Path = d + op.Path
		return op
	case agent.OpRemove:
		op.Path = d + op.Path
		return op
	case agent.OpRemoveDir:
		op.Path = d + op.Path
		return op
	case agent.OpCopy:
		op.Src, op.Dst = d+op.Src, d+op.Dst
		return op
	case agent.OpRename:
		op.Src, op.Dst = d+op.Src, d+op.Dst
		return op
	case agent.OpOpenFile:
		op.Path = d + op.Path
		return op
	case agent.OpOpenDir:
		op.Path = d + op.Path
		return op
	}
	return op
}

func (r *replay) host(st step) {
	c := r.c
	if r.over[st.ID] {
		// What comes after the terminal answer is late only once the stream is out of the table.
		for c.s.Has(st.ID) {
		}
	}
	if st.Type == "" {
		payload := pattern(st.Len)
		if st.Data != nil {
			payload = unhex(c.t, *st.Data)
		}
		c.s.Bulk(frame.Bulk{ID: st.ID, Kind: st.Kind, Flow: st.Flow, Offset: st.Offset, Payload: payload}, noRelease)
		return
	}
	p := unhex(c.t, st.Payload)
	switch st.Type {
	case "core.fs.request":
		var req agent.FSRequestPayload
		if agent.DecodePayload(p, &req) == nil {
			req.Op = r.inside(req.Op)
			var err error
			if p, err = agent.EncodePayload(req); err != nil {
				c.t.Fatal(err)
			}
		}
		c.s.Request(0, st.ID, st.V, p, noRelease)
	case "core.fs.data":
		c.s.Data(port.Input{ID: st.ID, Data: decode[agent.Data](c.t, p).Data, Release: noRelease})
	case "core.bulk.credit":
		c.s.Credit(st.ID, decode[agent.BulkCreditPayload](c.t, p))
	case "core.bulk.finish":
		c.s.Finish(st.ID, decode[agent.BulkFinishPayload](c.t, p))
	case "core.bulk.cancel":
		c.s.Cancel(st.ID, decode[agent.BulkCancelPayload](c.t, p))
	default:
		c.t.Fatalf("%s: host sent %s", r.section, st.Type)
	}
}

func (r *replay) guest(st step) {
	t := r.c.t
	got := r.c.out.Next(t, st.ID)
	if st.Type == "" {
		want := frame.Bulk{ID: st.ID, Kind: st.Kind, Flow: st.Flow, Offset: st.Offset}
		have := got.Bulk
		payload := have.Payload
		have.Payload = nil
		if got.Type != 0 || fmt.Sprint(have) != fmt.Sprint(want) || len(payload) != st.Len {
			t.Fatalf("%s: got %v, want %+v", r.section, got, st)
		}
		if st.Data != nil && hex.EncodeToString(payload) != *st.Data {
			t.Errorf("%s: %d bytes differ", r.section, len(payload))
		}
		return
	}
	if got.Type.String() != st.Type {
		t.Fatalf("%s: got %v, want %s", r.section, got, st.Type)
	}
	p := unhex(t, st.Payload)
	switch st.Type {
	case "core.fs.response":
		r.over[st.ID] = true
		r.compare(decode[agent.FSResponsePayload](t, got.Payload), decode[agent.FSResponsePayload](t, p))
	case "core.error":
		have, want := decode[agent.ErrorPayload](t, got.Payload), decode[agent.ErrorPayload](t, p)
		if have.Kind != want.Kind || *have.OffendingType != *want.OffendingType {
			t.Errorf("%s: got %+v, want %+v", r.section, have, want)
		}
	default:
		if !slices.Equal(got.Payload, p) {
			t.Errorf("%s: %s is %x, want %x", r.section, st.Type, got.Payload, p)
		}
	}
}

// compare checks an answer by meaning: times, and what depends on the file system, may differ.
func (r *replay) compare(have, want agent.FSResponsePayload) {
	t := r.c.t
	_, haveErr := result(have)
	_, wantErr := result(want)
	if fmt.Sprint(haveErr) != fmt.Sprint(wantErr) {
		t.Errorf("%s: got %v, want %v", r.section, haveErr, wantErr)
		return
	}
	switch w := want.Data.(type) {
	case nil, agent.FSHandle:
		if have.Data != want.Data {
			t.Errorf("%s: got %v, want %v", r.section, have.Data, want.Data)
		}
	case agent.FSPath:
		h, _ := have.Data.(agent.FSPath)
		if strings.TrimPrefix(string(h), r.c.dir) != string(w) {
			t.Errorf("%s: got %v, want %v", r.section, h, w)
		}
	case agent.FSStat:
		h, _ := have.Data.(agent.FSStat)
		r.compareEntry(agent.Entry(h), agent.Entry(w))
	case agent.FSList:
		h, _ := have.Data.(agent.FSList)
		if len(h) != len(w) {
			t.Errorf("%s: %d entries, want %d", r.section, len(h), len(w))
			return
		}
		for i := range w {
			if strings.HasPrefix(w[i].Path, "/bin/") {
				continue // which comes first, and what is busybox itself, is the recorded machine's
			}
			r.compareEntry(h[i], w[i])
		}
	}
}

func (r *replay) compareEntry(have, want agent.Entry) {
	have.Path = strings.TrimPrefix(have.Path, r.c.dir)
	sameSize := have.Size == want.Size || want.Kind == agent.KindDir
	if have.Path != want.Path || !sameSize || have.Kind != want.Kind || have.Mode != want.Mode || have.UID != want.UID || have.GID != want.GID {
		r.c.t.Errorf("%s: got %+v, want %+v", r.section, have, want)
	}
	if have.Mtime == nil || have.Modified == nil || have.Atime == nil || *have.Mtime != *have.Modified {
		r.c.t.Errorf("%s: times of %+v", r.section, have)
	}
}

func decode[P any](t testing.TB, p []byte) P {
	t.Helper()
	var v P
	if err := agent.DecodePayload(p, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

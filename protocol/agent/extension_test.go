package agent

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"msb/protocol/frame"
)

var update = flag.Bool("update", false, "write the snapshot of an extension's newest version, when it is not there")

// extensionSchema is the frozen inventory of one version of an extension.
type extensionSchema struct {
	Extension  string              `json:"extension"`
	Version    uint8               `json:"version"`
	Messages   []extensionMessage  `json:"messages"`
	Operations map[string][]string `json:"operations,omitempty"` // name → fields, the last being the result
	Results    map[string][]string `json:"results,omitempty"`
	Parts      map[string][]string `json:"parts,omitempty"`
	Numbers    map[string]uint64   `json:"numbers,omitempty"`
}

type extensionMessage struct {
	Wire       string   `json:"wire"`
	Introduced uint8    `json:"introduced_in"`
	Direction  string   `json:"direction"`
	Flags      uint8    `json:"flags"`
	Fields     []string `json:"fields"`
}

// messageFields are the payloads of the extensions' messages.
var messageFields = map[Type][]string{
	NodeRequest:   {"ops [operation]", "as identity optional", "bulk BulkOffer optional"},
	NodeResponse:  {"results [result]", "errno u32", "message text optional"},
	NodeCancel:    structFields(NodeCancelPayload{}),
	ExecOpen:      structFields(ExecOpenPayload{}),
	ExecCredit:    structFields(ExecCreditPayload{}),
	ExecSignaled:  structFields(ExecSignaledPayload{}),
	InputWatch:    structFields(InputWatchPayload{}),
	WatchRequest:  structFields(WatchRequestPayload{}),
	WatchStarted:  structFields(WatchStartedPayload{}),
	WatchEvents:   {"seq u64", "lost bool", "events [event]"},
	WatchSeen:     structFields(WatchSeenPayload{}),
	WatchCancel:   structFields(WatchCancelPayload{}),
	WatchEnded:    structFields(WatchEndedPayload{}),
	InputConsumed: {"operations [[id u32, bytes u64, frames u64]]"},
}

func structFields(v any) []string {
	fields := []string{}
	t := reflect.TypeOf(v)
	for i := range t.NumField() {
		name, opts, _ := strings.Cut(t.Field(i).Tag.Get("cbor"), ",")
		typ := t.Field(i).Type
		if typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		if opts != "" {
			opts = " optional"
		}
		fields = append(fields, name+" "+typ.Name()+opts)
	}
	return fields
}

func currentSchema(name string) extensionSchema {
	s := extensionSchema{Extension: name, Version: OurExtensions()[name]}
	for _, t := range ExtensionTypes() {
		ext, version := t.Extension()
		if ext != name {
			continue
		}
		dir := map[Direction]string{HostToGuest: "host to guest", GuestToHost: "guest to host", BothWays: "both"}[t.Direction()]
		s.Messages = append(s.Messages, extensionMessage{t.String(), version, dir, t.Flags(), messageFields[t]})
	}
	switch name {
	case ExtFS:
	case ExtWatch:
		s.Parts = map[string][]string{"event": listFields(&WatchEvent{})}
		s.Numbers = map[string]uint64{
			"window": WatchWindow, "max_events": MaxWatchEvents, "pulse_ms": WatchPulse,
			"data": uint64(WatchData), "attr": uint64(WatchAttr), "created": uint64(WatchCreated), "deleted": uint64(WatchDeleted),
			"moved_away": uint64(WatchMovedAway), "moved_here": uint64(WatchMovedHere),
		}
		return s
	default:
		return s
	}
	s.Operations, s.Results, s.Parts = map[string][]string{}, map[string][]string{}, map[string][]string{}
	for wire, fresh := range nodeOps {
		op := fresh()
		s.Operations[wire] = append(listFields(op), "→ "+op.Result().resultName())
		s.Results[op.Result().resultName()] = listFields(op.Result())
	}
	for part, x := range map[string]fielder{
		"identity": &NodeIdentity{}, "attr": &NodeAttr{}, "count": &NodeCount{}, "direntry": &NodeDirEntry{},
	} {
		s.Parts[part] = listFields(x)
	}
	s.Numbers = map[string]uint64{
		"max_ops": MaxNodeOps, "max_inline": MaxNodeInline,
		"set_mode": uint64(NodeSetMode), "set_uid": uint64(NodeSetUID), "set_gid": uint64(NodeSetGID), "set_size": uint64(NodeSetSize),
		"set_atime": uint64(NodeSetAtime), "set_mtime": uint64(NodeSetMtime), "set_atime_now": uint64(NodeSetAtimeNow), "set_mtime_now": uint64(NodeSetMtimeNow),
		"write_only": uint64(NodeWriteOnly), "read_write": uint64(NodeReadWrite), "exclusive": uint64(NodeExclusive), "truncate": uint64(NodeTruncate),
		"append": uint64(NodeAppend), "data_sync": uint64(NodeDataSync), "direct": uint64(NodeDirect), "directory": uint64(NodeDirectory),
		"no_atime": uint64(NodeNoAtime), "file_sync": uint64(NodeFileSync), "kill_priv": uint64(NodeKillPriv),
		"dir_attr": uint64(NodeDirAttr), "dir_node": uint64(NodeDirNode), "seek_data": uint64(NodeSeekData), "seek_hole": uint64(NodeSeekHole),
		"posix": uint64(NodePosix), "flock": uint64(NodeFlock),
		"read_lock": uint64(NodeReadLock), "write_lock": uint64(NodeWriteLock), "unlock": uint64(NodeUnlock),
	}
	return s
}

func extensionFile(name string, version int) string {
	return fmt.Sprintf("testdata/schema/%s-%d.json", name, version)
}

func loadExtension(t *testing.T, name string, version int) extensionSchema {
	t.Helper()
	b, err := os.ReadFile(extensionFile(name, version))
	if err != nil {
		t.Fatal(err)
	}
	var s extensionSchema
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestExtensionSnapshot holds each extension against the frozen inventory of
// its newest version. A change of what is frozen needs a new version.
func TestExtensionSnapshot(t *testing.T) {
	for name, version := range OurExtensions() {
		current, err := json.MarshalIndent(currentSchema(name), "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		current = append(current, '\n')
		file := extensionFile(name, int(version))
		if _, err := os.Stat(file); err != nil && *update {
			if err := os.WriteFile(file, current, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		frozen, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(frozen, current) {
			t.Errorf("%s is not what %s says; it is now\n%s", name, file, current)
		}
	}
}

// TestExtensionAppendOnly: a version has everything that the one before it had.
func TestExtensionAppendOnly(t *testing.T) {
	for name, newest := range OurExtensions() {
		for version := 2; version <= int(newest); version++ {
			older, newer := loadExtension(t, name, version-1), loadExtension(t, name, version)
			for _, m := range older.Messages {
				if !slices.ContainsFunc(newer.Messages, func(x extensionMessage) bool { return reflect.DeepEqual(x, m) }) {
					t.Errorf("%s %d dropped or changed %s", name, version, m.Wire)
				}
			}
			for _, pair := range [][2]map[string][]string{{older.Operations, newer.Operations}, {older.Results, newer.Results}, {older.Parts, newer.Parts}} {
				for k, fields := range pair[0] {
					if !slices.Equal(pair[1][k], fields) {
						t.Errorf("%s %d dropped or changed %s", name, version, k)
					}
				}
			}
		}
	}
}

func TestEveryExtensionTypeHasARow(t *testing.T) {
	for _, typ := range ExtensionTypes() {
		name, version := typ.Extension()
		if name == "" || version == 0 || typ.Direction() == 0 || !strings.HasPrefix(typ.String(), name+".") {
			t.Errorf("type %d: %q of %q %d", typ, typ, name, version)
		}
		if back, ok := ParseType(typ.String()); !ok || back != typ {
			t.Errorf("%s does not parse back", typ)
		}
		if messageFields[typ] == nil {
			t.Errorf("%s has no fields in the snapshot", typ)
		}
		if typ.AvailableAt(255) {
			t.Errorf("%s is available by generation alone", typ)
		}
	}
	for op := range maps.Keys(nodeOps) {
		if got := nodeOps[op]().opName(); got != op {
			t.Errorf("%s is called %s", op, got)
		}
	}
}

func TestAvailableTo(t *testing.T) {
	for _, c := range []struct {
		name       string
		typ        Type
		generation uint8
		listed     Extensions
		want       bool
	}{
		{"core by generation", BulkCredit, 8, nil, true},
		{"core too new", BulkCredit, 7, OurExtensions(), false},
		{"listed", NodeRequest, 9, Extensions{ExtFS: 1}, true},
		{"listed newer", NodeRequest, 9, Extensions{ExtFS: 7}, true},
		{"listed as version 0", NodeRequest, 9, Extensions{ExtFS: 0}, false},
		{"another one listed", NodeRequest, 9, Extensions{ExtExec: 1}, false},
		{"nothing listed", ExecOpen, 9, nil, false},
		{"generation too old", ExecOpen, 8, OurExtensions(), false},
		{"no type", extensionEnd, 9, OurExtensions(), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.typ.AvailableTo(c.generation, c.listed); got != c.want {
				t.Errorf("%v", got)
			}
		})
	}
}

// samples has one operation of each kind with every field set.
func sampleOps() []NodeOp {
	var ops []NodeOp
	for _, name := range slices.Sorted(maps.Keys(nodeOps)) {
		op := nodeOps[name]()
		fill(reflect.ValueOf(op).Elem(), 7)
		ops = append(ops, op)
	}
	return ops
}

// fill sets every field to something that is not zero.
func fill(v reflect.Value, n uint64) {
	for i := range v.NumField() {
		f := v.Field(i)
		n = n*31 + 5
		switch f.Kind() {
		case reflect.Uint32:
			f.SetUint(n & 0xffffffff)
		case reflect.Uint64:
			f.SetUint(n)
		case reflect.Int64:
			f.SetInt(-int64(n % 1e12))
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Pointer:
			f.Set(reflect.ValueOf(&n))
		case reflect.Struct:
			fill(f, n)
		case reflect.Slice:
			if f.Type().Elem().Kind() == reflect.Uint8 {
				f.SetBytes([]byte{0xff, 'n', byte(n)})
				continue
			}
			f.Set(reflect.MakeSlice(f.Type(), 2, 2))
			fill(f.Index(0), n)
			fill(f.Index(1), n+1)
		}
	}
}

func TestNodeRequestRoundTrip(t *testing.T) {
	want := NodeRequestPayload{
		Ops:  sampleOps(),
		As:   &NodeIdentity{UID: 1000, GID: 100, Groups: []uint32{4, 1 << 31}, Privileged: true},
		Bulk: &BulkOffer{Format: 1, MaxRecordPayload: 1 << 20, GuestToHostCreditLimit: 8 << 20},
	}
	p, err := EncodePayload(want)
	if err != nil {
		t.Fatal(err)
	}
	var got NodeRequestPayload
	if err := DecodePayload(p, &got); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if again, _ := EncodePayload(got); !bytes.Equal(again, p) {
		t.Error("encoded again it differs")
	}
	var results []NodeResult
	for i, op := range want.Ops {
		r := op.Result()
		fill(reflect.ValueOf(r).Elem(), uint64(i))
		results = append(results, r)
	}
	for _, resp := range []NodeResponsePayload{{Results: results}, {Results: results[:3], Errno: 2, Message: "why"}} {
		p, err := EncodePayload(resp)
		if err != nil {
			t.Fatal(err)
		}
		back, err := DecodeNodeResponse(p, want.Ops)
		if err != nil || !reflect.DeepEqual(back, resp) {
			t.Errorf("%v: got %+v\nwant %+v", err, back, resp)
		}
	}
}

// The bytes of one compound, as a reader of the documentation expects them.
func TestNodeRequestBytes(t *testing.T) {
	p, err := EncodePayload(NodeRequestPayload{Ops: []NodeOp{
		&NodeLookup{Dir: 1 << 32, Name: []byte("f")}, &NodeOpen{Node: 0, Flags: NodeReadOnly}, &NodeRead{Handle: 1, Len: 100},
	}})
	if err != nil {
		t.Fatal(err)
	}
	want := "\xa1\x63ops\x83" +
		"\xa1\x66lookup\x82\x1b\x00\x00\x00\x01\x00\x00\x00\x00\x41f" +
		"\xa1\x64open\x82\x00\x00" +
		"\xa1\x64read\x83\x01\x00\x18\x64"
	if string(p) != want {
		t.Errorf("% x\nwant % x", p, want)
	}
}

func TestNodeRequestRefused(t *testing.T) {
	for name, p := range map[string]string{
		"empty":              "",
		"not a map":          "\x80",
		"no ops":             "\xa0",
		"empty ops":          "\xa1\x63ops\x80",
		"indefinite ops":     "\xa1\x63ops\x9f\xff",
		"huge ops":           "\xa1\x63ops\x9b\xff\xff\xff\xff\xff\xff\xff\xff",
		"unknown op":         "\xa1\x63ops\x81\xa1\x61x\x80",
		"two names":          "\xa1\x63ops\x81\xa2\x61x\x80\x61y\x80",
		"missing field":      "\xa1\x63ops\x81\xa1\x64open\x81\x00",
		"extra field":        "\xa1\x63ops\x81\xa1\x64open\x83\x00\x00\x00",
		"wrong type":         "\xa1\x63ops\x81\xa1\x64open\x82\x00\x40",
		"flags above 32 bit": "\xa1\x63ops\x81\xa1\x64open\x82\x00\x1b\x00\x00\x00\x01\x00\x00\x00\x00",
		"text as name":       "\xa1\x63ops\x81\xa1\x66unlink\x82\x00\x61f",
		"cut":                "\xa1\x63ops\x81\xa1\x66unlink\x82\x00\x45f",
		"huge list":          "\xa1\x63ops\x81\xa1\x66forget\x81\x9b\x7f\xff\xff\xff\xff\xff\xff\xff",
		"bad identity":       "\xa2\x63ops\x81\xa1\x66syncfs\x81\x00\x62as\x81\x00",
	} {
		t.Run(name, func(t *testing.T) {
			var r NodeRequestPayload
			if err := DecodePayload([]byte(p), &r); err == nil {
				t.Errorf("taken as %+v", r)
			}
		})
	}
}

func FuzzNodeRequest(f *testing.F) {
	p, _ := EncodePayload(NodeRequestPayload{Ops: sampleOps(), As: &NodeIdentity{Groups: []uint32{1}}, Bulk: &BulkOffer{}})
	f.Add(p)
	for _, op := range sampleOps() {
		p, _ := EncodePayload(NodeRequestPayload{Ops: []NodeOp{op}})
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		var r NodeRequestPayload
		if DecodePayload(p, &r) != nil {
			return
		}
		again, err := EncodePayload(r)
		if err != nil || len(again) > frame.MaxBody && len(p) <= frame.MaxBody/2 {
			t.Fatalf("%v, %d bytes", err, len(again))
		}
		var back NodeRequestPayload
		if err := DecodePayload(again, &back); err != nil || !reflect.DeepEqual(r, back) {
			t.Fatalf("%v: %+v, %+v", err, r, back)
		}
	})
}

func FuzzNodeResponse(f *testing.F) {
	ops := sampleOps()
	for i := range ops {
		r := ops[i].Result()
		fill(reflect.ValueOf(r).Elem(), 3)
		p, _ := EncodePayload(NodeResponsePayload{Results: []NodeResult{r}})
		f.Add(p, uint8(i))
	}
	f.Fuzz(func(t *testing.T, p []byte, op uint8) {
		_, _ = DecodeNodeResponse(p, ops[int(op)%len(ops):])
	})
}

func BenchmarkNodeLookup(b *testing.B) {
	req := NodeRequestPayload{Ops: []NodeOp{&NodeLookup{Dir: 1 << 40, Name: []byte("some_name.go")}}}
	resp := NodeResponsePayload{Results: []NodeResult{&NodeEntryResult{Node: 1 << 41, Attr: NodeAttr{Ino: 1 << 20, Mode: 0o100644, Size: 1 << 16, MtimeSec: 1 << 31, MtimeNsec: 1 << 29}}}}
	b.ReportAllocs()
	for b.Loop() {
		p, _ := EncodePayload(req)
		var r NodeRequestPayload
		if err := DecodePayload(p, &r); err != nil {
			b.Fatal(err)
		}
		p, _ = EncodePayload(resp)
		if _, err := DecodeNodeResponse(p, r.Ops); err != nil {
			b.Fatal(err)
		}
	}
}

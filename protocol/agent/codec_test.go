package agent

import (
	"bytes"
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"testing"
)

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func ptr[T any](v T) *T { return &v }

func TestParseEnvelope(t *testing.T) {
	ping := "6176 09 6174 69 636f72652e70696e67 6170 41a0"
	tests := []struct {
		name, hex string
		ok        bool
	}{
		{"published form", "a3" + ping, true},
		{"sixteen bit head", "b90003" + ping, true},
		{"indefinite map", "bf" + ping + "ff", true},
		{"other order", "a3 6170 41a0 6174 69 636f72652e70696e67 6176 09", true},
		{"unknown key", "a4" + ping + "6178 8301f6f5", true},
		{"integer key", "a4" + ping + "05 01", true},
		{"bytes after it", "a3" + ping + "00ff", true},
		{"tagged bytes", "a3 6176 05 6174 69 636f72652e70696e67 6170 d840 41a0", true},
		{"indefinite bytes", "a3 6176 05 6174 69 636f72652e70696e67 6170 5f 41a0 ff", true},
		{"array of ints", "a3 6176 05 6174 69 636f72652e70696e67 6170 8118a0", true},
		{"text payload", "a3 6176 05 6174 69 636f72652e70696e67 6170 6161", false},
		{"no payload", "a2 6176 05 6174 69 636f72652e70696e67", false},
		{"no name", "a2 6176 05 6170 41a0", false},
		{"generation 256", "a3 6176 190100 6174 69 636f72652e70696e67 6170 41a0", false},
		{"name not UTF-8", "a3 6176 05 6174 61ff 6170 41a0", false},
		{"an array", "83 05 6161 40", false},
		{"empty", "", false},
		{"cut", "a3 6176 09 6174 69 636f72", false},
		{"huge string", "a3 6176 09 6174 7bffffffffffffffff", false},
		{"huge map", "bbffffffffffffffff 6176 09", false},
		{"lone break", "ff", false},
		{"nested ten thousand deep", "a1 6178" + strings.Repeat("81", 10000) + "00", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e, err := ParseEnvelope(unhex(t, tt.hex))
			if (err == nil) != tt.ok {
				t.Fatalf("got %+v, %v", e, err)
			}
			if err != nil {
				if !errors.Is(err, ErrMalformed) {
					t.Errorf("%v does not wrap ErrMalformed", err)
				}
				return
			}
			if e.T != "core.ping" || !bytes.Equal(e.P, []byte{0xa0}) {
				t.Errorf("got %+v", e)
			}
		})
	}
}

func TestScanType(t *testing.T) {
	ping := "6176 09 6174 69 636f72652e70696e67 6170 41a0"
	for _, tt := range []struct {
		name, hex, want string
	}{
		{"published form", "a3" + ping, "core.ping"},
		{"only a name", "a1 6174 69 636f72652e70696e67", "core.ping"},
		{"indefinite", "bf" + ping + "ff", "core.ping"},
		{"two names", "a2 6174 6161 6174 6162", ""},
		{"name is bytes", "a1 6174 4161", ""},
		{"trailing", "a3" + ping + "00", ""},
		{"none", "a0", ""},
		{"unit", "f6", ""},
		{"bulk record", "0801010000", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ScanType(unhex(t, tt.hex))
			if got != tt.want || (err == nil) != (tt.want != "") {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

func TestDecodePayload(t *testing.T) {
	for _, tt := range []struct {
		name, hex string
		into      any
		want      any // nil: an error
	}{
		{"ping", "a0", new(Empty), &Empty{}},
		{"ping unit", "f6", new(Empty), nil},
		{"ping array", "80", new(Empty), nil},
		{"ping nothing", "", new(Empty), nil},
		{"exec defaults", "a1 63636d64 62 6c73", new(ExecRequestPayload), &ExecRequestPayload{Cmd: "ls", Rows: 24, Cols: 80}},
		{"exec null options", "a3 63636d64 62 6c73 63637764 f6 6475736572 f6", new(ExecRequestPayload), &ExecRequestPayload{Cmd: "ls", Rows: 24, Cols: 80}},
		{"exec without cmd", "a1 63747479 f5", new(ExecRequestPayload), nil},
		{"exec cmd null", "a1 63636d64 f6", new(ExecRequestPayload), nil},
		{"exec with a limit", "a2 63636d64 61 61 67726c696d697473 81 a3 687265736f75726365 6163 64736f6674 01 6468617264 02", new(ExecRequestPayload), &ExecRequestPayload{Cmd: "a", Rows: 24, Cols: 80, Rlimits: []Rlimit{{"c", 1, 2}}}},
		{"exec with half a limit", "a2 63636d64 61 61 67726c696d697473 81 a2 687265736f75726365 6163 64736f6674 01", new(ExecRequestPayload), nil},
		{"exec with half a limit, indefinite", "bf 63636d64 61 61 67726c696d697473 9f bf 687265736f75726365 6163 64736f6674 01 ff ff ff", new(ExecRequestPayload), nil},
		{"bulk offer without a limit", "a2 626f70 a1 6b436c6f736548616e646c65 a1 6668616e646c65 07 6462756c6b a1 66666f726d6174 01", new(FSRequestPayload), nil},
		{"open without options", "a1 626f70 a1 684f70656e46696c65 a2 6470617468 612f 676f7074696f6e73 a1 6472656164 f5", new(FSRequestPayload), nil},
		{"open without options, as array", "a1 626f70 a1 684f70656e46696c65 82 612f a1 6472656164 f5", new(FSRequestPayload), nil},
		{"freeze without a position", "a3 73 65787465726e616c5f6d6f756e745f74616773 80 6a617474656d70745f6964 6161 6a686f73745f696e707574 a0", new(FreezePayload), nil},
		{"exec cmd bytes", "a1 63636d64 426c73", new(ExecRequestPayload), nil},
		{"exec cmd not UTF-8", "a1 63636d64 61ff", new(ExecRequestPayload), nil},
		{"rows too large", "a2 63636d64 61 61 64726f7773 1a00010000", new(ExecRequestPayload), nil},
		{"indefinite struct", "bf 66 7369676e616c 09 ff", new(ExecSignalPayload), &ExecSignalPayload{Signal: 9}},
		{"data", "a1 6464617461 426869", new(Data), &Data{Data: []byte("hi")}},
		{"data tag 64", "a1 6464617461 d840426869", new(Data), &Data{Data: []byte("hi")}},
		{"data indefinite", "a1 6464617461 5f 4168 4169 ff", new(Data), &Data{Data: []byte("hi")}},
		{"data ints", "a1 6464617461 821868 1869", new(Data), &Data{Data: []byte("hi")}},
		{"data text", "a1 6464617461 626869", new(Data), nil},
		{"data missing", "a0", new(Data), nil},
		{"stat", "a1 626f70 a1 6453746174 a2 6470617468 612f 6e666f6c6c6f775f73796d6c696e6b f5", new(FSRequestPayload), &FSRequestPayload{Op: OpStat{Path: "/", FollowSymlink: true}}},
		{"stat as array", "a1 626f70 a1 6453746174 82 612f f5", new(FSRequestPayload), &FSRequestPayload{Op: OpStat{Path: "/", FollowSymlink: true}}},
		{"stat short array", "a1 626f70 a1 6453746174 81 612f", new(FSRequestPayload), nil},
		{"stat without follow", "a1 626f70 a1 6453746174 a1 6470617468 612f", new(FSRequestPayload), nil},
		{"indefinite variant", "a1 626f70 bf 6453746174 82 612f f5 ff", new(FSRequestPayload), nil},
		{"unknown operation", "a1 626f70 a1 6470696e67 f5", new(FSRequestPayload), nil},
		{"empty attrs", "a1 626f70 a1 68465365745374 6174 a2 6668616e646c65 01 656174747273 a0", new(FSRequestPayload), &FSRequestPayload{Op: OpFSetStat{Handle: 1}}},
		{"null bulk", "a2 626f70 a1 6b436c6f736548616e646c65 a1 6668616e646c65 07 6462756c6b f6", new(FSRequestPayload), &FSRequestPayload{Op: OpCloseHandle{Handle: 7}}},
		{"response path", "a3 626f6b f5 656572726f72 f6 6464617461 a1 6450617468 612f", new(FSResponsePayload), &FSResponsePayload{OK: true, Data: FSPath("/")}},
		{"response handle", "a3 626f6b f5 656572726f72 f6 6464617461 a1 6648616e646c65 18ff", new(FSResponsePayload), &FSResponsePayload{OK: true, Data: FSHandle(255)}},
		{"response error", "a3 626f6b f4 656572726f72 6178 6464617461 f6", new(FSResponsePayload), &FSResponsePayload{Error: ptr("x")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := DecodePayload(unhex(t, tt.hex), tt.into)
			if tt.want == nil {
				if !errors.Is(err, ErrMalformed) {
					t.Errorf("got %+v, %v", tt.into, err)
				}
				return
			}
			if err != nil || !reflect.DeepEqual(tt.into, tt.want) {
				t.Errorf("got %+v, %v\nwant %+v", tt.into, err, tt.want)
			}
		})
	}
}

// TestOptionalsAreOmittedOrNull pins the two ways in which an absent value is
// written.
func TestOptionalsAreOmittedOrNull(t *testing.T) {
	for _, tt := range []struct {
		name    string
		payload any
		want    string
	}{
		{"unit", nil, "f6"},
		{"empty", Empty{}, "a0"},
		{"null", ExecStdinErrorPayload{Message: "m"}, "a3 65 6572726e6f f6 6a 6572726e6f5f6e616d65 f6 67 6d657373616765 616d"},
		{"omitted", ErrorPayload{Kind: "k", Message: "m"}, "a2 64 6b696e64 616b 67 6d657373616765 616d"},
		{"empty list", FreezePayload{AttemptID: "a"}, "a3 73 65787465726e616c5f6d6f756e745f74616773 80 6a 617474656d70745f6964 6161 6a 686f73745f696e707574 a4 6d 636f6e74726f6c5f6279746573 00 6e 636f6e74726f6c5f6672616d6573 00 6a 62756c6b5f6279746573 00 6b 62756c6b5f6672616d6573 00"},
		{"array of ints", ClientDisconnectedPayload{IDStart: 1, IDEndExclusive: 2, Incarnation: Octets{1, 0xff}}, "a3 68 69645f7374617274 01 70 69645f656e645f6578636c7573697665 02 6b 696e6361726e6174696f6e 82 01 18ff"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := EncodePayload(tt.payload)
			if err != nil || !bytes.Equal(got, unhex(t, tt.want)) {
				t.Errorf("got %x, %v", got, err)
			}
		})
	}
}

func TestDataFrames(t *testing.T) {
	for _, n := range []int{0, 1, 23, 24, 255, 256, 65535, 65536, 3 << 20} {
		data := bytes.Repeat([]byte{7}, n)
		want, err := AppendFrame(nil, 5, ExecStdout, 9, Data{Data: data})
		if err != nil {
			t.Fatal(err)
		}
		got, err := AppendDataFrame([]byte("x"), 5, ExecStdout, 9, data)
		if err != nil || !bytes.Equal(got[1:], want) {
			t.Errorf("%d bytes: differs from the general encoder (%v)", n, err)
		}
	}
	if _, err := AppendDataFrame(nil, 5, ExecStdout, 9, make([]byte, 4<<20)); err == nil {
		t.Error("data larger than a frame was accepted")
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte("\xa3av\x09atiCore.pingapA\xa0"))
	f.Add(must(AppendFrame(nil, 1, FSRequest, 9, FSRequestPayload{Op: OpStat{Path: "/"}}))[9:])
	f.Add(must(AppendFrame(nil, 1, ExecRequest, 9, ExecRequestPayload{Cmd: "ls"}))[9:])
	for _, body := range recordedBodies(f) {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if _, err := ScanType(body); err == nil {
			_ = CheckPlain(body)
		}
		e, err := ParseEnvelope(body)
		if err != nil {
			return
		}
		typ, ok := e.Type()
		if !ok {
			return
		}
		payload := newPayload(typ)
		if payload == nil || DecodePayload(e.P, payload) != nil {
			return
		}
		p, err := EncodePayload(payload)
		if err != nil {
			t.Fatalf("%s decoded and does not encode: %v", typ, err)
		}
		again := newPayload(typ)
		if err := DecodePayload(p, again); err != nil {
			t.Fatalf("%s: our own encoding does not decode: %v\n%x", typ, err, p)
		}
	})
}

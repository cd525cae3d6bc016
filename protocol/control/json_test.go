package control

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
)

func TestParseRequest(t *testing.T) {
	for _, tt := range []struct {
		name, line string
		ok         bool
	}{
		{"capabilities", `{"op":"capabilities"}`, true},
		{"whitespace", " \t{ \"op\" : \"capabilities\" } \n", true},
		{"u64 max", `{"op":"memory_target","total_mib":18446744073709551615}`, true},
		{"u64 overflow", `{"op":"memory_target","total_mib":18446744073709551616}`, false},
		{"huge exponent", `{"op":"memory_target","total_mib":1e400}`, false},
		{"float", `{"op":"memory_target","total_mib":1024.0}`, false},
		{"negative", `{"op":"memory_target","total_mib":-1}`, false},
		{"text", `{"op":"memory_target","total_mib":"1024"}`, false},
		{"no total", `{"op":"memory_target"}`, false},
		{"key twice", `{"op":"memory_target","total_mib":1,"total_mib":2}`, false},
		{"key twice inside", `{"op":"secrets_update","changes":[{"change":"remove","name":"a","name":"b"}]}`, false},
		{"unknown key", `{"op":"capabilities","future":[{}]}`, true},
		{"no op", `{}`, false},
		{"an array", `[]`, false},
		{"cut", `{"op":`, false},
		{"two objects", `{"op":"capabilities"}{"op":"capabilities"}`, false},
		{"NUL", "{\"op\":\"capa\x00bilities\"}", false},
		{"empty", ``, false},
		{"u32 overflow", `{"op":"cpu_target","online":4294967296}`, false},
		{"rotate", `{"op":"secrets_update","changes":[{"change":"rotate","name":"A","value":"v"}]}`, true},
		{"rotate without value", `{"op":"secrets_update","changes":[{"change":"rotate","name":"A"}]}`, false},
		{"deep", strings.Repeat("[", 10000), false},
		{"deep inside", `{"op":"capabilities","x":` + strings.Repeat("[", 40) + strings.Repeat("]", 40) + `}`, false},
		{"other case", `{"Op":"capabilities"}`, false},
		{"other case beside", `{"op":"capabilities","OP":"pause"}`, true},
		{"other case inside", `{"op":"secrets_update","changes":[{"change":"remove","Name":"a"}]}`, false},
		{"escaped key twice", `{"op":"capabilities","\u006fp":"pause"}`, false},
		{"null", `null`, false},
		{"null op", `{"op":null}`, false},
		{"not UTF-8", "{\"op\":\"secrets_update\",\"changes\":[{\"change\":\"rotate\",\"name\":\"A\",\"value\":\"\xff\"}]}", false},
		{"half a character", `{"op":"secrets_update","changes":[{"change":"rotate","name":"A","value":"\ud83d"}]}`, false},
		{"a whole character", `{"op":"secrets_update","changes":[{"change":"rotate","name":"A","value":"\ud83d\ude00 \\ud83d"}]}`, true},
		{"no changes", `{"op":"secrets_update","changes":[]}`, true},
		{"changes null", `{"op":"secrets_update","changes":null}`, false},
		{"change null", `{"op":"secrets_update","changes":[null]}`, false},
		{"no name", `{"op":"secrets_update","changes":[{"change":"remove"}]}`, false},
		{"too many keys", `{` + manyKeys(300) + `"op":"capabilities"}`, false},
		{"future operation", `{"op":"checkpoint_create"}`, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := ParseRequest([]byte(tt.line))
			if (err == nil) != tt.ok {
				t.Errorf("got %+v, %v", r, err)
			}
			if tt.name == "u64 max" && *r.TotalMiB != math.MaxUint64 {
				t.Errorf("got %d", *r.TotalMiB)
			}
		})
	}
}

func manyKeys(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "\"k%d\":1,", i)
	}
	return b.String()
}

func TestParseReply(t *testing.T) {
	for _, tt := range []struct {
		name, line string
		ok         bool
	}{
		{"bare", `{"ok":true}`, true},
		{"other case", `{"OK":true}`, false},
		{"ok twice", `{"ok":true,"ok":false}`, false},
		{"ok null", `{"ok":null}`, false},
		{"ok a number", `{"ok":1}`, false},
		{"memory", `{"ok":true,"memory":{"boot_mib":1,"target_mib":9007199254740993,"current_mib":0,"max_mib":18446744073709551615}}`, true},
		{"memory as floats", `{"ok":true,"memory":{"boot_mib":1.0,"target_mib":1,"current_mib":0,"max_mib":2}}`, false},
		{"memory cut", `{"ok":true,"memory":{"boot_mib":1}}`, false},
		{"memory null", `{"ok":true,"memory":null}`, true},
		{"memory other case", `{"ok":true,"memory":{"Boot_mib":1,"target_mib":1,"current_mib":0,"max_mib":2}}`, false},
		{"cpu too large", `{"ok":true,"cpu":{"possible":4294967296,"requested_online":1,"actual_online":1,"enforced":1}}`, false},
		{"unknown fields", `{"ok":false,"error":"no","error_code":"x","memory":null}`, true},
		{"an array", `[]`, false},
		{"nothing", ``, false},
		{"text after", `{"ok":true} x`, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := ParseReply([]byte(tt.line))
			if (err == nil) != tt.ok {
				t.Errorf("got %+v, %v", r, err)
			}
			if tt.name == "memory" && (r.Memory.TargetMiB != 1<<53+1 || r.Memory.MaxMiB != math.MaxUint64) {
				t.Errorf("got %+v", r.Memory)
			}
		})
	}
}

func TestErrorsDoNotQuoteSecrets(t *testing.T) {
	for _, line := range []string{
		`{"op":"secrets_update","changes":[{"change":"rotate","name":"A","value":["hunter2"]}]}`,
		`{"op":"secrets_update","changes":[{"change":"rotate","name":"A","value":"hunter2`,
		`{"op":"secrets_update","changes":[{"change":"remove","name":"A","value":"hunter2"}]}`,
		`{"op":"secrets_update","changes":[{"change":"hunter2x","name":"A","value":hunter2}]}`,
		`{"op":"secrets_update","changes":[{"change":"hunter2","name":"A","value":"v"}]}`,
		`{"op":"secrets_update","changes":["hunter2"]}`,
		`{"op":"secrets_update","hunter2":1,"hunter2":2}`,
	} {
		if _, err := ParseRequest([]byte(line)); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", line, err)
		}
	}
}

// TestPublishedClient reads every line that a published client and its server
// exchanged, and writes the requests again byte for byte.
func TestPublishedClient(t *testing.T) {
	b, err := os.ReadFile("testdata/client.json")
	if err != nil {
		t.Fatal(err)
	}
	type line struct{ Dir, JSON string }
	var doc struct {
		Framed   [][]line `json:"framed_server"`
		JSONOnly [][]line `json:"json_only_server"`
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, connection := range append(doc.Framed, doc.JSONOnly...) {
		for _, l := range connection {
			if l.JSON == "" {
				continue
			}
			seen++
			var v any
			if l.Dir == "c2s" {
				v, err = ParseRequest([]byte(l.JSON))
			} else {
				v, err = ParseReply([]byte(l.JSON))
			}
			if err != nil {
				t.Errorf("%s: %v", l.JSON, err)
				continue
			}
			if again, err := AppendLine(nil, v); err != nil || string(again) != l.JSON {
				t.Errorf("got %s want %s (%v)", again, l.JSON, err)
			}
		}
	}
	if seen == 0 {
		t.Error("no line in the recording")
	}
}

func FuzzJSON(f *testing.F) {
	f.Add([]byte(`{"op":"memory_target","total_mib":1024}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = ParseRequest(b)
		_, _ = ParseReply(b)
	})
}

package control

import (
	"encoding/json"
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

func TestErrorsDoNotQuoteSecrets(t *testing.T) {
	for _, line := range []string{
		`{"op":"secrets_update","changes":[{"change":"rotate","name":"A","value":["hunter2"]}]}`,
		`{"op":"secrets_update","changes":[{"change":"rotate","name":"A","value":"hunter2`,
		`{"op":"secrets_update","changes":[{"change":"remove","name":"A","value":"hunter2"}]}`,
		`{"op":"secrets_update","changes":[{"change":"hunter2x","name":"A","value":hunter2}]}`,
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

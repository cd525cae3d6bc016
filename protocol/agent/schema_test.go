package agent

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"msb/protocol/frame"
)

type schemaType struct {
	Introduced uint8  `json:"introduced_in"`
	Wire       string `json:"wire"`
}

type schema struct {
	Bulk     map[string]uint64 `json:"bulk"`
	Frame    map[string]uint64 `json:"frame"`
	Types    []schemaType      `json:"message_types"`
	Protocol uint8             `json:"protocol_version"`
}

func loadSchema(t *testing.T, generation int) schema {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("testdata/schema/gen-%d.json", generation))
	if err != nil {
		t.Fatal(err)
	}
	var s schema
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSchemaSnapshot holds the type table against the frozen inventory of
// every generation: the same names with the same introduction, no more.
func TestSchemaSnapshot(t *testing.T) {
	for generation := 3; generation <= int(Generation); generation++ {
		t.Run(fmt.Sprint(generation), func(t *testing.T) {
			s := loadSchema(t, generation)
			if int(s.Protocol) != generation {
				t.Fatalf("file says generation %d", s.Protocol)
			}
			want := map[string]uint8{}
			for _, x := range s.Types {
				want[x.Wire] = x.Introduced
			}
			for _, typ := range Types() {
				since, listed := want[typ.String()]
				if listed != typ.AvailableAt(uint8(generation)) {
					t.Errorf("%s: available %v, in the inventory %v", typ, !listed, listed)
				}
				if listed && since != typ.Since() {
					t.Errorf("%s: introduced in %d, the inventory says %d", typ, typ.Since(), since)
				}
				delete(want, typ.String())
			}
			for name := range want {
				t.Errorf("%s is not known here", name)
			}
			for name, n := range s.Frame {
				got, ok := map[string]uint64{
					"flag_bulk": uint64(frame.FlagBulk), "flag_session_start": uint64(frame.FlagSessionStart),
					"flag_shutdown": uint64(frame.FlagShutdown), "flag_terminal": uint64(frame.FlagTerminal),
					"header_size": frame.HeaderSize, "max_frame_size": frame.MaxLength,
				}[name]
				if !ok || got != n {
					t.Errorf("frame.%s: %d, want %d", name, got, n)
				}
			}
			for name, n := range s.Bulk {
				got, ok := map[string]uint64{
					"default_filesystem_record_payload": frame.DefaultBulkRecordFS, "default_record_payload": frame.DefaultBulkRecord,
					"default_window": frame.DefaultBulkWindow, "format_raw_v1": uint64(frame.BulkFormat), "header_size": frame.BulkHeaderSize,
					"max_record_payload": frame.MaxBulkRecord, "max_window": frame.MaxBulkWindow, "min_record_payload": frame.MinBulkRecord,
				}[name]
				if !ok || got != n {
					t.Errorf("bulk.%s: %d, want %d", name, got, n)
				}
			}
		})
	}
}

func TestSchemaAppendOnly(t *testing.T) {
	for generation := 4; generation <= int(Generation); generation++ {
		older, newer := loadSchema(t, generation-1), loadSchema(t, generation)
		have := map[schemaType]bool{}
		for _, x := range newer.Types {
			have[x] = true
			if x.Introduced > uint8(generation) {
				t.Errorf("generation %d lists %s of generation %d", generation, x.Wire, x.Introduced)
			}
		}
		for _, x := range older.Types {
			if !have[x] {
				t.Errorf("generation %d dropped or changed %s", generation, x.Wire)
			}
		}
	}
}

func TestEveryTypeHasARow(t *testing.T) {
	seen := map[string]bool{}
	for _, typ := range Types() {
		i := types[typ]
		if i.wire == "" || i.since == 0 || i.dir == 0 {
			t.Errorf("type %d has no row", typ)
		}
		if seen[i.wire] {
			t.Errorf("%s is listed twice", i.wire)
		}
		seen[i.wire] = true
		if back, ok := ParseType(i.wire); !ok || back != typ {
			t.Errorf("%s does not parse back", i.wire)
		}
	}
}

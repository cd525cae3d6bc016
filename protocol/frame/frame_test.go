package frame

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"testing"
	"testing/iotest"
)

func TestReader(t *testing.T) {
	big, err := Append(nil, 7, FlagTerminal, bytes.Repeat([]byte{9}, MaxBody))
	if err != nil {
		t.Fatal(err)
	}
	small, _ := Append(nil, 0xFFFFFFFF, 0xFF, nil)
	stream := append(append(bytes.Clone(small), big...), small...)
	for name, src := range map[string]io.Reader{
		"at once":      bytes.NewReader(stream),
		"in halves":    iotest.HalfReader(bytes.NewReader(stream)),
		"with the EOF": iotest.DataErrReader(bytes.NewReader(stream)),
	} {
		t.Run(name, func(t *testing.T) {
			r := NewReader(src)
			for i, want := range [][]byte{small, big, small} {
				f, err := r.Next()
				if err != nil || !bytes.Equal(f.Raw, want) {
					t.Fatalf("frame %d: %v", i, err)
				}
			}
			if _, err := r.Next(); err != io.EOF {
				t.Errorf("at the end: %v", err)
			}
		})
	}
}

func TestReaderErrors(t *testing.T) {
	for _, tt := range []struct {
		name, hex string
		want      error
	}{
		{"length 0", "00000000", ErrTooShort},
		{"length 1", "0000000100", ErrTooShort},
		{"length 2", "000000020000", ErrTooShort},
		{"length 3", "00000003000000", ErrTooShort},
		{"length 4", "0000000400000000", ErrTooShort},
		{"length 4194305", "00400001", ErrTooLarge},
		{"length all ones", "ffffffff", ErrTooLarge},
		{"cut in the length", "000000", io.ErrUnexpectedEOF},
		{"cut in the header", "000000050000", io.ErrUnexpectedEOF},
		{"nothing", "", io.EOF},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, _ := hex.DecodeString(tt.hex)
			r := NewReader(bytes.NewReader(b))
			for range 2 { // errors are final
				if _, err := r.Next(); !errors.Is(err, tt.want) {
					t.Errorf("got %v", err)
				}
			}
		})
	}
}

func TestReadFullBeforeFrames(t *testing.T) {
	f, _ := Append(nil, 1, 0, []byte("x"))
	r := NewReader(bytes.NewReader(append([]byte("prologue"), f...)))
	p := make([]byte, 8)
	if err := r.ReadFull(p); err != nil || string(p) != "prologue" {
		t.Fatalf("%q, %v", p, err)
	}
	if got, err := r.Next(); err != nil || got.ID != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
}

func TestBulkRules(t *testing.T) {
	record := func(change func(b []byte)) Frame {
		b, err := AppendBulk(nil, Bulk{ID: 1, Kind: BulkTCP, Flow: FlowGuestToHost, Offset: 5, Payload: []byte{1, 2}})
		if err != nil {
			t.Fatal(err)
		}
		change(b)
		return Frame{ID: 1, Flags: b[8], Body: b[9:], Raw: b}
	}
	for _, tt := range []struct {
		name   string
		change func(b []byte)
		ok     bool
	}{
		{"good", func(b []byte) {}, true},
		{"kind 0", func(b []byte) { b[9] = 0 }, false},
		{"kind 3", func(b []byte) { b[9] = 3 }, false},
		{"flow 0", func(b []byte) { b[10] = 0 }, false},
		{"flow 3", func(b []byte) { b[10] = 3 }, false},
		{"reserved", func(b []byte) { b[12] = 1 }, false},
		{"flags 9", func(b []byte) { b[8] = 9 }, false},
		{"offset overflows", func(b []byte) {
			for i := 13; i < 21; i++ {
				b[i] = 0xff
			}
		}, false},
		{"offset at the very end", func(b []byte) {
			for i := 13; i < 21; i++ {
				b[i] = 0xff
			}
			b[20] = 0xfd // max-2, and 2 bytes of payload
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := ParseBulk(record(tt.change))
			if (err == nil) != tt.ok || err != nil && !errors.Is(err, ErrBulk) {
				t.Errorf("got %+v, %v", r, err)
			}
		})
	}
	if _, err := ParseBulk(Frame{Flags: FlagBulk, Body: make([]byte, BulkHeaderSize)}); !errors.Is(err, ErrBulk) {
		t.Errorf("record without payload: %v", err)
	}
	if _, err := AppendBulk(nil, Bulk{Kind: 1, Flow: 1, Payload: make([]byte, MaxBulkRecord+1)}); err == nil {
		t.Error("a record above the maximum was encoded")
	}
}

type vector struct{ Name, Hex string }

func loadTransport(t testing.TB) []vector {
	t.Helper()
	b, err := os.ReadFile("testdata/transport.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct{ Vectors []vector }
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	return doc.Vectors
}

func TestTransportVectors(t *testing.T) {
	inc := Incarnation{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	start, end := Range(0)
	shm, _ := Append(nil, 0, 0, []byte("MSBS\x01\x01"))
	smallest, _ := AppendBulk(nil, Bulk{ID: 0x01020304, Kind: 1, Flow: 1, Offset: 0x0102030405060708, Payload: []byte{0xff}})
	ours := map[string][]byte{
		"smallest_bulk_record":                                  smallest,
		"local_shm_upgrade_request":                             shm,
		"local_shm_upgrade_reject_ack_unframed":                 ShmReject,
		"range_lease_connected_slot0_incarnation_01..10":        AppendLease(nil, Lease{LeaseConnected, start, end, inc}),
		"range_lease_disconnected_ack_slot0_incarnation_01..10": AppendLease(nil, Lease{LeaseDisconnected, start, end, inc}),
		"bulk_hello_template":                                   BindHello(Incarnation{}),
		"bulk_ack_template":                                     BindReply(Incarnation{}),
	}
	// We never advertise shared memory, so we have no accepting answer.
	unused := "local_shm_upgrade_accept_ack_unframed_with_two_SCM_RIGHTS_fds"
	for _, v := range loadTransport(t) {
		if v.Name == unused {
			continue
		}
		if got := hex.EncodeToString(ours[v.Name]); got != v.Hex {
			t.Errorf("%s:\n got %s\nwant %s", v.Name, got, v.Hex)
		}
		raw, _ := hex.DecodeString(v.Hex)
		f, err := Parse(raw)
		if err != nil {
			continue
		}
		switch {
		case IsLease(f):
			l, err := ParseLease(f)
			if err != nil || l.Incarnation != inc || l.Start != start || l.End != end {
				t.Errorf("%s: %+v, %v", v.Name, l, err)
			}
		case IsShmRequest(f) != (v.Name == "local_shm_upgrade_request"):
			t.Errorf("%s: shared-memory request %v", v.Name, IsShmRequest(f))
		}
	}
}

func TestRanges(t *testing.T) {
	for _, tt := range []struct {
		id   uint32
		slot int
		ok   bool
	}{
		{0, 0, false}, {1, 0, true}, {33554430, 0, true}, {33554431, 1, false}, {33554432, 1, true},
		{67108863, 2, true}, {127*RangeStep + 1, 127, true}, {128 * RangeStep, 128, false}, {math.MaxUint32, 128, false},
	} {
		slot, ok := Slot(tt.id)
		if ok != tt.ok || ok && slot != tt.slot {
			t.Errorf("id %d: slot %d, %v", tt.id, slot, ok)
		}
	}
	if s, e := Range(1); s != 33554432 || e != 67108862 {
		t.Errorf("slot 1 is [%d, %d)", s, e)
	}
}

func FuzzReader(f *testing.F) {
	f.Add([]byte{0, 0, 0, 5, 0, 0, 0, 1, 0})
	for _, v := range loadTransport(f) {
		raw, _ := hex.DecodeString(v.Hex)
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := NewReader(bytes.NewReader(b))
		for {
			fr, err := r.Next()
			if err != nil {
				return
			}
			_, _ = ParseBulk(fr)
			_, _ = ParseLease(fr)
		}
	})
}

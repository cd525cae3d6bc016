package record

import (
	"encoding/hex"
	"errors"
	"reflect"
	"testing"
)

// order has a field of every kind: required, with a default, by pointer, omitted when empty.
type order struct {
	Name  string   `cbor:"name"`
	Count uint8    `cbor:"count" wire:"optional"`
	Price *uint32  `cbor:"price"`
	Tags  []string `cbor:"tags,omitempty"`
}

func (o *order) SetDefaults() { o.Count = 1 }

func price(n uint32) *uint32 { return &n }

func TestEncode(t *testing.T) {
	for _, tc := range []struct {
		name string
		in   any
		want string
	}{
		{"in declared order, shortest heads", order{Name: "a", Count: 24, Price: price(300), Tags: []string{"x"}},
			"a4 646e616d65 6161 65636f756e74 1818 657072696365 19012c 6474616773 81 6178"},
		{"nil is null, or left out", order{Name: "a"}, "a3 646e616d65 6161 65636f756e74 00 657072696365 f6"},
		{"a nil list is an empty one", []string(nil), "80"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Encode(tc.in)
			if err != nil || hex.EncodeToString(got) != hex.EncodeToString(unhex(t, tc.want)) {
				t.Errorf("%x, %v; want %s", got, err, tc.want)
			}
		})
	}
	if _, err := Encode(make(chan int)); err == nil {
		t.Error("a channel was encoded")
	}
}

// What each decoder makes of the same bytes: the agent protocol is tolerant, the control protocol strict.
func TestDecode(t *testing.T) {
	const name, count, null = "646e616d65 6161", "65636f756e74 05", "f6"
	for _, tc := range []struct {
		name, hex        string
		tolerant, strict *order // nil: refused
	}{
		{"all there", "a3" + name + count + "657072696365 07", &order{Name: "a", Count: 5, Price: price(7)}, &order{Name: "a", Count: 5, Price: price(7)}},
		{"only what must be there", "a1" + name, &order{Name: "a", Count: 1}, &order{Name: "a"}},
		{"indefinite map", "bf" + name + count + "ff", &order{Name: "a", Count: 5}, &order{Name: "a", Count: 5}},
		{"unknown field", "a2" + name + "6178 8101", &order{Name: "a", Count: 1}, &order{Name: "a"}},
		{"bytes after it", "a1" + name + "00", &order{Name: "a", Count: 1}, nil},
		{"key that is no text", "a2" + name + "01 02", &order{Name: "a", Count: 1}, nil},
		{"null where a value may be", "a2" + name + "657072696365" + null, &order{Name: "a", Count: 1}, nil},
		{"null that is required", "a1 646e616d65" + null, nil, nil},
		{"field twice", "a2" + name + name, &order{Name: "a", Count: 1}, nil},
		{"required field missing", "a1" + count, nil, nil},
		{"number too large", "a2" + name + "65636f756e74 190100", nil, nil},
		{"wrong type", "a1 646e616d65 01", nil, nil},
		{"no UTF-8", "a1 646e616d65 61ff", nil, nil},
		{"no map", "81 01", nil, nil},
		{"nothing", "", nil, nil},
		{"cut off", "a2" + name, nil, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, d := range []struct {
				name   string
				decode func([]byte, any) error
				want   *order
			}{{"tolerant", DecodeStruct, tc.tolerant}, {"strict", DecodeStrict, tc.strict}} {
				var got order
				err := d.decode(unhex(t, tc.hex), &got)
				switch {
				case d.want == nil && !errors.Is(err, ErrMalformed):
					t.Errorf("%s: %+v, error %v", d.name, got, err)
				case d.want != nil && (err != nil || !reflect.DeepEqual(got, *d.want)):
					t.Errorf("%s: %+v, %v; want %+v", d.name, got, err, *d.want)
				}
			}
		})
	}
}

type point struct {
	X uint8 `cbor:"x"`
	Y uint8 `cbor:"y"`
}

func TestDecodeFields(t *testing.T) {
	for _, tc := range []struct {
		name, hex string
		ok        bool
	}{
		{"map", "a2 6178 01 6179 02", true},
		{"array", "82 01 02", true},
		{"array that is too short", "81 01", false},
		{"array that is too long", "83 01 02 03", false},
		{"array of something else", "82 01 6161", false},
		{"nothing", "", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got point
			err := DecodeFields(unhex(t, tc.hex), &got)
			if tc.ok && (err != nil || got != point{1, 2}) || !tc.ok && !errors.Is(err, ErrMalformed) {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}
